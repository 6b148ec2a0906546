"""What the trained layers see of the sampled units in a step."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from baseline import augmentation
from baseline.networks import fixed_features
from baseline.sampling import one_per_unit
from baseline.settings import BaselineSettings
from data.examples import PrivateRecords
from teachers.networks import scaled


@dataclass(frozen=True)
class Inputs:
    """N units, one record each; row by row, so one unit is one row.

    features: (N, …) outputs of the fixed layers, or the images themselves where each step moves them anew.
    labels: (N,) int64. keys: (N,) uint64 of :mod:`baseline.augmentation`.
    """

    features: torch.Tensor
    labels: torch.Tensor
    keys: np.ndarray
    fixed: nn.Sequential
    copies: int
    shift: int

    def __len__(self) -> int:
        return len(self.labels)

    def block(self, rows: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs (B, K, …) of the trained layers, K = max(copies, 1), and labels (B,), of B rows."""
        chosen = self.features[rows]
        if not self.copies:
            return chosen[:, None], self.labels[rows]
        moves = augmentation.moves_of(self.keys[rows.numpy()], step, self.copies, self.shift)
        with torch.no_grad():
            images = augmentation.moved(scaled(chosen), moves, self.shift)
            return self.fixed(images.flatten(0, 1)).unflatten(0, images.shape[:2]), self.labels[rows]


def prepare(records: PrivateRecords, fixed: nn.Sequential, settings: BaselineSettings, seed: int) -> Inputs:
    """Inputs of the units of ``records``. Without copies the fixed layers are computed here, once."""
    kept = one_per_unit(records)
    copies = settings.augmentation
    return Inputs(
        torch.from_numpy(kept.features) if copies else fixed_features(fixed, kept.features),
        torch.from_numpy(kept.labels.astype("int64")),
        augmentation.keys_of(kept.units, seed) if copies else np.zeros(len(kept.units), np.uint64),
        fixed,
        copies,
        settings.shift,
    )
