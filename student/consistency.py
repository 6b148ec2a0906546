"""Consistency training of a student on images: it learns to say of a changed image what it says of the image itself.

Neighbouring datasets differ in one private unit. Everything is a function of public inputs, released labels, settings
and the seed: post-processing, which costs no privacy. No test label is read.

Known parts, in the order in which they act: targets start as labels spread over a neighbour graph
(:mod:`student.spreading`); the network sees random affine and elastic views (:mod:`student.augmentation`); after a
share of the epochs the targets are its own predictions of the unchanged images, made by the moving average of its
weights (Tarvainen and Valpola 2017, "Mean teachers are better role models"), sharpened and brought to the spread
labels' shares of classes (distribution alignment: Berthelot et al. 2020, "ReMixMatch"), and only sure ones count (Sohn
et al. 2020, "FixMatch"). A released label stays the target of its input unless the student is surely of another mind:
noise makes some of them wrong.
"""

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from data.errors import UserError
from student.augmentation import Strength, warped
from student.settings import StudentSettings
from teachers.fitting import pixelwise, probabilities, threads_for
from teachers.networks import as_input

Progress = Callable[[int, int], None]
DISBELIEF = 0.9
LEAST_STEPS = 500
_SHARPNESS = 2.0
_WARM_UP = 0.1


def train_consistent(
    network: nn.Module,
    images: np.ndarray,
    belief: np.ndarray,
    rows: np.ndarray,
    labels: np.ndarray,
    settings: StudentSettings,
    seed: int,
    progress: Progress | None = None,
) -> nn.Module:
    """The moving average of a network's weights, trained from where it stands; it is on the CPU and in eval mode.

    images: (N, channels, height, width) of the pool. belief: (N, C) probabilities to start from. rows, labels: (Q,) the
    released labels. At least LEAST_STEPS steps are made. ``progress(done, epochs)`` after each epoch. The same
    arguments give the same weights bit for bit on one machine; torch's global generator is left alone. Raises UserError
    when training diverges.
    """
    generator = torch.Generator().manual_seed(seed)
    given, released = _targets(belief), _one_hot(rows, labels, belief.shape)
    batch = min(settings.batch_size, len(images))
    network = network.to(memory_format=torch.channels_last)
    average = copy.deepcopy(network).eval()
    optimiser = torch.optim.AdamW(network.parameters(), settings.learning_rate, weight_decay=settings.weight_decay)
    epochs = max(settings.epochs, -(-LEAST_STEPS // (len(images) // batch)))
    steps = epochs * (len(images) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, settings.learning_rate, total_steps=steps + 1, pct_start=_WARM_UP
    )
    strength = Strength() if settings.variations else Strength(0, 0, 0, 0, 0)
    wanted, weight, step = given, torch.ones(len(images)), 0
    with threads_for(batch * int(np.prod(images.shape[1:]))):
        for epoch in range(epochs):
            if epoch >= settings.own_targets * epochs:
                own = torch.from_numpy(probabilities(average, images))
                wanted, weight = own_targets(own, given.mean(0), released, settings.confidence)
            network.train()
            for part in torch.randperm(len(images), generator=generator).split(batch):
                # A smaller last batch is left out: it would weigh its images, and the normalisation's moments, more.
                if len(part) < batch:
                    continue
                seen = pixelwise(warped(as_input(images[part.numpy()]), generator, strength))
                with torch.autocast("cpu", torch.bfloat16, enabled=settings.precision == "mixed"):
                    outputs = network(seen)
                log_probabilities = outputs.float().log_softmax(1)
                loss = -(weight[part] * (wanted[part] * log_probabilities).sum(1)).mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
                step += 1
                _follow(average, network, min(settings.averaging, 1 - 1 / (step + 1)))
            if progress is not None:
                progress(epoch + 1, epochs)
    if not all(bool(torch.isfinite(value).all()) for value in average.state_dict().values()):
        raise UserError(f"student.learning_rate = {settings.learning_rate}: training diverged; choose a lower one")
    return average.to(memory_format=torch.contiguous_format)


def own_targets(
    own: torch.Tensor, shares: torch.Tensor, released: torch.Tensor, confidence: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets (N, C) and weights (N,) of 0 or 1 from a student's own probabilities (N, C).

    p² is brought to the ``shares`` (C,) of classes by one multiplication; inputs whose largest probability is above
    ``confidence`` count. ``released`` (N, C): one-hot, or zeros without a label; a released label is the target, and
    counts, unless the student gives another class over DISBELIEF.
    """
    sharp = _normalised(own.double() ** _SHARPNESS)
    sharp = _normalised(sharp * shares / sharp.mean(0).clamp(min=1e-12)).float()
    sure, chosen = sharp.max(1)
    labelled = released.sum(1) > 0
    kept = labelled & ((released.argmax(1) == chosen) | (sure <= DISBELIEF))
    targets = torch.where(kept[:, None], released, sharp)
    return targets, ((sure > confidence) | labelled).float()


def _targets(belief: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(belief.astype(np.float32))


def _one_hot(rows: np.ndarray, labels: np.ndarray, shape: tuple[int, ...]) -> torch.Tensor:
    released = torch.zeros(shape)
    released[torch.from_numpy(rows), torch.from_numpy(labels)] = 1.0
    return released


def _normalised(values: torch.Tensor) -> torch.Tensor:
    return values / values.sum(1, keepdim=True).clamp(min=1e-12)


def _follow(average: nn.Module, network: nn.Module, decay: float) -> None:
    """average ← decay · average + (1 − decay) · network, the moments of a normalisation included."""
    with torch.no_grad():
        for mean, value in zip(average.state_dict().values(), network.state_dict().values(), strict=True):
            if mean.dtype.is_floating_point:
                mean.lerp_(value, 1 - decay)
            else:
                mean.copy_(value)
