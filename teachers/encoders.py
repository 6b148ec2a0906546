"""An encoder: what turns inputs into features, learned from public inputs alone or given by the user.

Neighbouring datasets differ in one unit of the private part. An encoder is a function of public inputs, settings and
the seed, so it is the same for both: it may be released, and applied to private records it is a fixed function of each
record by itself. Nothing that it holds needs an event on the ledger. Of a user's own module that is an assumption, and
the statement says that it was not checked.

    release/encoder.safetensors     mean and axes, and the weights of a network that was learned here
    release/encoder.json            what they are, and the digest of the weights of a user's own module

features = unit length of (network(x) − mean) · axes, where axes are the first K principal axes of what the network
makes of the public inputs, each divided by its eigenvalue to the power ``whitening``. Few private examples then have K
numbers of like size to learn from, and no record is longer than another, which bounds what DP-SGD must clip.
"""

import copy
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from data.errors import UserError
from data.examples import PrivateRecords
from data.store import atomic, digest, read_json, write_json
from teachers import modules
from teachers.backbones import backbone, folded
from teachers.fitting import device_of, pixelwise, rows_at_once, threads_for
from teachers.networks import as_input
from teachers.settings import MODULE

CONTRASTIVE = "contrastive"
FIELD = "pretraining.method"
BLOCK = 64


class UnitLength(nn.Module):
    """Rows (N, D) scaled to length 1; a zero row stays zero."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(rows, dim=1)


@dataclass(frozen=True)
class Encoder:
    """``network``: inputs (N, *shape) to (N, D), in eval mode. ``mean`` (D,) and ``axes`` (D, K) float32.

    ``method``: contrastive, or the module: path of the user's own; ``width`` of the network that was learned here.
    """

    method: str
    shape: tuple[int, ...]
    network: nn.Module
    mean: np.ndarray
    axes: np.ndarray
    width: int = 0
    device: str = "cpu"

    @property
    def count(self) -> int:
        """K, the number of features."""
        return int(self.axes.shape[1])

    def features(self, inputs: np.ndarray, block: int = BLOCK) -> np.ndarray:
        """(N, K) float32 of inputs (N, *shape), a block at a time. A feature that is not finite is 0.

        Blocks have one size, the last filled up with zeros, so that a record's features do not depend on how many
        others there are; with ``block`` = 1, on none of them, whatever the kernels do.
        """
        if inputs.shape[1:] != self.shape:
            raise UserError(f"features: inputs of shape {inputs.shape[1:]}; the encoder takes {self.shape}")
        mean, axes = torch.from_numpy(self.mean), torch.from_numpy(self.axes)
        parts = [np.zeros((0, self.count), np.float32)]
        with torch.inference_mode():
            for rows, count in outputs(self.network, inputs, self.device, block):
                unit = nn.functional.normalize((rows - mean) @ axes, dim=1)
                parts.append(torch.nan_to_num(unit, 0.0, 0.0, 0.0)[:count].numpy())
        return np.concatenate(parts)

    def trainable(self) -> list[nn.Module]:
        """Layers that give the features of images and may be trained on, each record by itself: new at each call."""
        if not isinstance(self.network, nn.Sequential) or self.method != CONTRASTIVE:
            raise UserError(f"{FIELD} = {self.method!r}: must be contrastive for teachers that start from its weights")
        inputs, features = self.axes.shape
        projection = nn.Linear(inputs, features, device="meta")
        projection.weight = nn.Parameter(torch.tensor(self.axes.T.copy()))
        projection.bias = nn.Parameter(torch.tensor(-self.mean @ self.axes))
        return [*folded(copy.deepcopy(self.network).cpu()), projection, UnitLength()]


def outputs(
    network: nn.Module, inputs: np.ndarray, device: str, block: int = BLOCK
) -> Iterator[tuple[torch.Tensor, int]]:
    """What a network in eval mode makes of (N, *shape): blocks (block, D), on the CPU, and how many rows count."""
    shape = inputs.shape[1:]
    block, device = rows_at_once(block, shape), device_of(device)
    network.to(device).eval()
    with torch.inference_mode(), threads_for(block * math.prod(shape)):
        for start in range(0, len(inputs), block):
            rows = as_input(inputs[start : start + block])
            filled = torch.zeros(block, *shape)
            filled[: len(rows)] = rows
            made = network((pixelwise(filled) if filled.ndim == 4 else filled).to(device))
            yield made.float().cpu(), len(rows)


def own(method: str, shape: tuple[int, ...], seed: int) -> nn.Module:
    """A user's own network, ``module:<import path>`` of a callable (shape) -> torch.nn.Module, frozen, in eval mode."""
    network = modules.made(method, FIELD, {"shape": shape}, seed).eval()
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    return network


def check_own(method: str, shape: tuple[int, ...], seed: int) -> int:
    """D, the numbers that a user's module gives for each input. Tried on made-up records, never on anybody's.

    Raises UserError for one that gives no (N, D) numbers, mixes the records of a batch, draws random numbers, or has
    other weights at the next call.
    """
    named = f"{FIELD} = {method!r}"
    network = own(method, shape, seed)
    if weights_digest(network) != weights_digest(own(method, shape, seed)):
        raise UserError(f"{named}: must give the same weights at each call")
    rows = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0))
    others = rows.clone()
    others[1:] = 1 - others[1:]
    state = torch.get_rng_state()
    try:
        with torch.inference_mode():
            found, changed, single = network(rows), network(others), network(rows[:1])
        if not isinstance(found, torch.Tensor) or found.ndim != 2 or len(found) != len(rows):
            shown = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
            raise UserError(f"{named}: must map {tuple(rows.shape)} to ({len(rows)}, D), gives {shown}")
        if not bool(torch.isfinite(found).all()):
            raise UserError(f"{named}: gives numbers that are not finite, on made-up records")
        if not torch.equal(state, torch.get_rng_state()):
            raise UserError(f"{named}: must not draw random numbers in eval mode")
        size = float(found.abs().max()) + 1e-12
        if not all(torch.allclose(found[0] / size, each[0] / size, atol=1e-4) for each in (changed, single)):
            raise UserError(f"{named}: must not mix the records of a batch in eval mode")
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"{named}: does not take even made-up records of shape {shape} ({modules.reason(error)})"
        ) from None
    finally:
        torch.set_rng_state(state)
    return int(found.shape[1])


def encoded(records: PrivateRecords, encoder: Encoder) -> PrivateRecords:
    """Private records by their features, each encoded by itself: one unit still changes its own rows alone."""
    return replace(records, features=encoder.features(records.features, block=1))


def weights_digest(network: nn.Module) -> str:
    """A digest of a network's weights and buffers."""
    found = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        found.update(f"{name}:{tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().numpy().tobytes())
    return found.hexdigest()


def save(prefix: Path, encoder: Encoder) -> tuple[Path, Path]:
    """Write the weights, then the page; returns both paths."""
    weights, page = prefix.with_suffix(".safetensors"), prefix.with_suffix(".json")
    learned = encoder.method == CONTRASTIVE
    tensors = {"mean": torch.from_numpy(encoder.mean), "axes": torch.from_numpy(np.ascontiguousarray(encoder.axes))}
    if learned:
        state = encoder.network.state_dict()
        tensors |= {f"network.{name}": t.detach().cpu().contiguous() for name, t in state.items()}
    with atomic(weights) as temporary:
        save_file(tensors, temporary)
    record = {
        "method": encoder.method,
        "shape": list(encoder.shape),
        "width": encoder.width,
        "dimensions": len(encoder.mean),
        "components": encoder.count,
        "module": None if learned else weights_digest(encoder.network),
        "weights": {"file": weights.name, "sha256": digest(weights)},
    }
    write_json(page, record)
    return weights, page


def load(prefix: Path, seed: int, device: str = "auto") -> Encoder:
    """Read an encoder back. ``seed``: the run's, for a user's module that draws its weights.

    Raises UserError naming the file that is missing or corrupt, or the module that is another now.
    """
    weights, page = prefix.with_suffix(".safetensors"), prefix.with_suffix(".json")
    record = read_json(page)
    try:
        method, shape = str(record["method"]), tuple(int(n) for n in record["shape"])
        width, dimensions = int(record["width"]), int(record["dimensions"])
        expected = str(record["weights"]["sha256"])
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{page}: is corrupt (not an encoder's description)") from None
    if not weights.is_file():
        raise UserError(f"{weights}: no such file")
    if digest(weights) != expected:
        raise UserError(f"{weights}: is corrupt (not the file that {page.name} describes)")
    try:
        tensors = load_file(weights)
        mean, axes = (tensors.pop(name).numpy() for name in ("mean", "axes"))
        if method.startswith(MODULE):
            network = own(method, shape, seed)
            if weights_digest(network) != record["module"]:
                raise UserError(f"{FIELD} = {method!r}: gives other weights than {page} says; rerun `pate pretrain`")
        else:
            network = backbone(shape, width, dimensions, 0)
            network.load_state_dict({name.removeprefix("network."): t for name, t in tensors.items()})
    except (SafetensorError, RuntimeError, KeyError):
        raise UserError(f"{weights}: is corrupt (not the weights of an encoder)") from None
    return Encoder(method, shape, network.eval(), mean, axes, width, device)
