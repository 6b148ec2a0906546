"""Training a group of networks as one computation, each as if it were alone.

Every teacher keeps its own batches, its own number of steps and its own schedule. All take their step s at the same
time, so AdamW's step count is common; a teacher's parameters are taken out when its last step is done, and what its
place computes afterwards is thrown away. The loop runs as long as the longest of them, which no bit of the others
shows. Batches have the width of the settings: a shard's last one is filled up with a blank record that counts nothing.

A teacher gets the initial weights, the order of records and the changes of images that it gets when trained
alone (:mod:`teachers.fitting`): its parameters agree with those up to rounding.
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.optim.adamw import adamw

from teachers import fitting
from teachers.augmentation import Augmentation, augmentation_of
from teachers.gradients import Parameters, gradients_of
from teachers.networks import as_input
from teachers.settings import TeacherSettings

_EPOCHS = 16


@dataclass(frozen=True)
class Place:
    """One teacher's place in a group: its network with initial weights, its records and the seed of their order.

    None for the records: an empty place.
    """

    network: nn.Module
    features: np.ndarray | None
    labels: np.ndarray | None
    seed: int

    @property
    def records(self) -> int:
        return 0 if self.features is None else len(self.features)


def train_group(
    places: Sequence[Place], settings: TeacherSettings, device: str
) -> list[dict[str, torch.Tensor] | None]:
    """Every place's parameters by name, on the CPU; None where it is empty or a parameter is not finite."""
    if not any(place.records for place in places):
        return [None] * len(places)
    held = _Records.of(places, device, augmentation_of(settings))
    parameters = _stacked(places, device)
    names = list(parameters)
    moved = [parameters[name] for name in names]
    previous, first, second = ([torch.zeros_like(p) for p in moved] for _ in range(3))
    counts = [torch.zeros((), device=device) for _ in names]
    # What starts from an encoder's weights has its layers before those of the model.
    model = "" if settings.pretrained == "weights" else settings.model
    gradients = gradients_of(model, places[0].network, parameters, settings.batch_size, settings.precision == "mixed")
    steps = [settings.epochs * -(-place.records // settings.batch_size) for place in places]
    shares = _shares(steps).to(device)
    feeds = [held.batches(place, number, settings) for number, place in enumerate(places)]
    kept: list[Parameters | None] = [None] * len(places)
    with repeatable(device), torch.no_grad():
        for step in range(max(steps, default=0)):
            rows = torch.stack([next(feed) for feed in feeds]).to(device)
            classes = held.labels.index_select(0, rows.view(-1)).view(rows.shape)
            found = gradients(held.seen, rows, classes, rows < len(held.labels) - 1)
            for before, now in zip(previous, moved, strict=True):
                before.copy_(now)
            adamw(
                moved,
                [fitting.laid_out(found[name], parameters[name]) for name in names],
                first,
                second,
                [],
                counts,
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=settings.learning_rate,
                weight_decay=settings.weight_decay,
                eps=1e-8,
                maximize=False,
            )
            # AdamW moves a parameter by the learning rate times something: a share of the rate is a share of the way.
            for before, now in zip(previous, moved, strict=True):
                torch.lerp(before, now, shares[step].view(-1, *[1] * (now.ndim - 1)), out=now)
            for number in (n for n, last in enumerate(steps) if last == step + 1):
                kept[number] = _taken_out(parameters, number)
    return kept


@dataclass(frozen=True)
class _Records:
    """All records of a group in a row, a blank one at the end; ``seen``: as changed in the current epochs."""

    inputs: torch.Tensor
    seen: torch.Tensor
    labels: torch.Tensor
    starts: tuple[int, ...]
    augmentation: Augmentation

    @staticmethod
    def of(places: Sequence[Place], device: str, augmentation: Augmentation) -> "_Records":
        features = [place.features for place in places if place.features is not None]
        labels = [place.labels for place in places if place.labels is not None]
        blank = np.zeros((1, *features[0].shape[1:]), features[0].dtype)
        inputs = as_input(np.concatenate([*features, blank])).to(device)
        classes = torch.tensor(np.concatenate([*labels, [0]]).astype(np.int64))
        starts = tuple(itertools.accumulate((place.records for place in places), initial=0))
        seen = inputs.clone() if augmentation.changes(inputs) else inputs
        return _Records(inputs, seen, classes.to(device), starts, augmentation)

    def batches(self, place: Place, number: int, settings: TeacherSettings) -> Iterator[torch.Tensor]:
        """Rows (B,) of a place's records, batch after batch, epoch after epoch; blank ones for ever after."""
        size, records, start = settings.batch_size, place.records, self.starts[number]
        blank = len(self.labels) - 1
        changed = self.augmentation.changes(self.inputs)
        generator = torch.Generator().manual_seed(place.seed)
        # Epochs whose order is drawn at once; what changes images is drawn between two orders.
        block = 1 if changed else _EPOCHS
        for epoch in range(0, settings.epochs if records else 0, block):
            rows = torch.full((min(block, settings.epochs - epoch), -(-records // size) * size), blank)
            for order in rows[:, :records]:
                torch.randperm(records, generator=generator, out=order)
            rows[:, :records] += start
            if changed:
                own = slice(start, start + records)
                self.seen[own] = self.augmentation(self.inputs[own], generator)
            yield from rows.view(-1, size)
        yield from itertools.repeat(torch.full((size,), blank))


def _stacked(places: Sequence[Place], device: str) -> Parameters:
    """Trainable parameters (G, ...) by name, in the network's order."""
    states = [{name: p.detach() for name, p in place.network.named_parameters()} for place in places]
    return {name: torch.stack([state[name] for state in states]).to(device) for name in states[0]}


def _shares(steps: Sequence[int]) -> torch.Tensor:
    """(steps, G): the learning rate of each step as a share of the settings', as in fitting.fit."""
    longest = torch.arange(max(steps, default=0), dtype=torch.float64)[:, None]
    lasts = torch.tensor(steps, dtype=torch.float64).clamp_(min=1)
    return (2.0 * (1.0 - longest / lasts)).clamp_(0.0, 1.0).to(torch.float32)


def _taken_out(parameters: Parameters, number: int) -> Parameters | None:
    own = {name: parameter[number].cpu().clone() for name, parameter in parameters.items()}
    return own if all(bool(torch.isfinite(tensor).all()) for tensor in own.values()) else None


@contextlib.contextmanager
def repeatable(device: str) -> Iterator[None]:
    """On a GPU: convolutions by algorithms that give the same bits each time."""
    if not device.startswith("cuda"):
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield
