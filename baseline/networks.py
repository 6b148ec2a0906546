"""Which network the baseline trains, and the part of it that has something to train."""

import numpy as np
import torch
from torch import nn

from baseline.settings import BaselineSettings
from data.errors import UserError
from data.streams import stream
from teachers import fitting, networks


def name_of(settings: BaselineSettings, shape: tuple[int, ...]) -> str:
    """The network's name in :mod:`teachers.networks`: ``auto`` resolved by the inputs' shape, never by their values.

    >>> name_of(BaselineSettings(), (1, 28, 28))
    'scattering'
    >>> name_of(BaselineSettings(), (104,))
    'logistic'
    """
    if settings.model != "auto":
        return settings.model
    return "scattering" if len(shape) == 3 and min(shape[1:]) >= 8 else "logistic"


def build(settings: BaselineSettings, shape: tuple[int, ...], classes: int, seed: int) -> nn.Sequential:
    """The network with initial weights from the run's stream "baseline": they hold nothing private.

    Raises UserError for a network that is not for inputs of this shape, and for moved copies of anything but images.
    """
    if settings.augmentation and len(shape) != 3:
        raise UserError(f"baseline.augmentation = {settings.augmentation}: is for images; tables take 0")
    network = networks.build(name_of(settings, shape), shape, classes, stream(seed, "baseline"))
    return network if isinstance(network, nn.Sequential) else nn.Sequential(network)


def divide(network: nn.Sequential) -> tuple[nn.Sequential, nn.Sequential]:
    """(fixed, trained): the leading layers without parameters, and the rest, sharing the network's parameters."""
    layers = list(network)
    first = next(i for i, layer in enumerate(layers) if any(True for _ in layer.parameters()))
    return nn.Sequential(*layers[:first]), nn.Sequential(*layers[first:])


def fixed_features(fixed: nn.Sequential, features: np.ndarray, batch: int = 1024) -> torch.Tensor:
    """What the trained layers see of each of N records, (N, …) float32, computed once.

    A constant function of each record alone (pixels / 255, then layers without parameters), so one unit still changes
    one row.
    """
    rows = features if len(features) else np.zeros((1, *features.shape[1:]), features.dtype)
    batch = fitting.rows_at_once(batch, rows.shape[1:])
    with torch.no_grad():
        parts = [fixed(networks.as_input(rows[start : start + batch])) for start in range(0, len(rows), batch)]
    return torch.cat(parts)[: len(features)]
