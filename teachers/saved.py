"""Saved models: weights without pickle, beside a JSON file that says what they are.

A network is ``<prefix>.safetensors``, a scikit-learn estimator ``<prefix>.skops``; ``<prefix>.json`` holds the
description and is written last, so a half-written model is never loaded.
"""

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import skops.io
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from data.errors import UserError
from data.examples import as_matrix
from data.store import atomic, digest, read_json, write_json
from teachers import estimators, fitting, networks


@dataclass(frozen=True)
class Description:
    """What a saved model is: its name in the settings, the input's shape, C classes, and the caller's own facts.

    ``extra`` must be JSON, e.g. class names or a table's encoder.
    """

    model: str
    shape: tuple[int, ...]
    classes: int
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded:
    """A model read back, ready to predict."""

    description: Description
    model: Any

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """(N, C) float32 for features (N, *shape)."""
        if features.shape[1:] != self.description.shape:
            raise UserError(f"features of shape {features.shape[1:]}: the model takes {self.description.shape}")
        if isinstance(self.model, nn.Module):
            return fitting.probabilities(self.model, features)
        return estimators.probabilities(self.model, as_matrix(features), self.description.classes)


def save(prefix: Path, model: Any, description: Description) -> tuple[Path, Path]:
    """Write the weights, then the description; returns both paths. The network's weights are saved from the CPU."""
    weights = _weights_path(prefix, description.model)
    with atomic(weights) as temporary:
        if isinstance(model, nn.Module):
            save_file({k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}, temporary)
        else:
            skops.io.dump(model, temporary)
    page = prefix.with_name(prefix.name + ".json")
    write_json(
        page,
        {
            "model": description.model,
            "shape": list(description.shape),
            "classes": description.classes,
            "weights": {"file": weights.name, "sha256": digest(weights)},
            "extra": description.extra,
        },
    )
    return weights, page


def load(prefix: Path) -> Loaded:
    """Read a saved model back. Raises UserError naming the file that is missing, corrupt or of another model."""
    page = prefix.with_name(prefix.name + ".json")
    record = read_json(page)
    try:
        description = Description(
            str(record["model"]), tuple(int(n) for n in record["shape"]), int(record["classes"]), dict(record["extra"])
        )
        expected = str(record["weights"]["sha256"])
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{page}: is corrupt (not a model's description)") from None
    weights = _weights_path(prefix, description.model)
    if not weights.is_file():
        raise UserError(f"{weights}: no such file")
    if digest(weights) != expected:
        raise UserError(f"{weights}: is corrupt (not the file that {page.name} describes)")
    if weights.suffix == ".skops":
        return Loaded(description, _load_estimator(weights))
    network = networks.build(description.model, description.shape, description.classes, 0)
    try:
        network.load_state_dict(load_file(weights))
    except (SafetensorError, RuntimeError):
        raise UserError(f"{weights}: is corrupt (not the weights of {description.model})") from None
    return Loaded(description, network.eval())


def _weights_path(prefix: Path, model: str) -> Path:
    return prefix.with_name(prefix.name + (".skops" if model.startswith(estimators.PREFIX) else ".safetensors"))


def _load_estimator(path: Path) -> Any:
    try:
        # Beyond what skops trusts, only classes of scikit-learn itself: whoever can write the file could otherwise
        # have code run.
        reported = skops.io.get_untrusted_types(file=path)
        refused = [name for name in reported if not _is_sklearn_class(name)]
        if not refused:
            return skops.io.load(path, trusted=reported)
    except MemoryError:
        raise
    except Exception:
        raise UserError(f"{path}: is corrupt (not a skops file)") from None
    raise UserError(f"{path}: holds {refused[0]!r}, which is no class of scikit-learn: refused")


def _is_sklearn_class(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    if not module.startswith("sklearn."):
        return False
    return isinstance(getattr(importlib.import_module(module), attribute, None), type)
