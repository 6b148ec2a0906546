"""Public pre-training: an encoder of images learned from unlabelled public images alone.

Contrastive learning as in SimCLR (Chen, Kornblith, Norouzi and Hinton 2020, "A Simple Framework for Contrastive
Learning of Visual Representations"): two random views of an image should be alike, and unlike all other images of the
batch. With z the unit-length projections of the 2B views, view i with partner j loses (NT-Xent)

    −log( exp(z_i·z_j / τ) / Σ_{k≠i} exp(z_i·z_k / τ) ).

The projection head is thrown away. Neighbouring datasets differ in one private unit. Everything here is a function of
public inputs, settings and the seed: it costs no privacy, and neither does what it is applied to.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

from data.errors import UserError
from data.examples import Examples
from data.streams import stream
from student.augmentation import Strength, warped
from student.components import principal_components
from student.pretraining_settings import PretrainingSettings
from teachers.backbones import backbone
from teachers.encoders import CONTRASTIVE, Encoder, check_own, outputs, own
from teachers.fitting import adamw_of, device_of, pixelwise, threads_for
from teachers.layers import linear
from teachers.networks import as_input
from teachers.vectorised import repeatable

Progress = Callable[[int, int], None]
VIEWS = Strength(rotation=15.0, shift=0.08, scale=0.15, shear=0.2, elastic=0.06)
# Images that an epoch shows, and that the principal axes are found from.
LARGEST_EPOCH = 20_000
_LARGEST_SAMPLE = 50_000
_HIDDEN, _PROJECTED = 256, 64
_WEIGHT_DECAY = 1e-4
_WARM_UP = 0.1
# A component of less than this share of the largest eigenvalue is rounding: whitening would blow it up.
_LEAST_SHARE = 1e-6


def pretrain(public: Examples, settings: PretrainingSettings, seed: int, progress: Progress | None = None) -> Encoder:
    """The encoder of these settings, in eval mode, on the CPU.

    Deterministic on one machine at one number of threads, from the run's stream "pretrain"; torch's global generator is
    left as it was. Images are made floating point a batch at a time. Raises UserError as :func:`check` does, and where
    training diverged.
    """
    shape = public.features.shape[1:]
    check(settings, shape, len(public.features), seed)
    learned = settings.method == CONTRASTIVE
    if learned:
        network: nn.Module = _contrastive(public.features, settings, seed, progress)
    else:
        network = own(settings.method, shape, seed)
    rows = _sample(len(public.features), _LARGEST_SAMPLE, stream(seed, "pretrain", 1))
    made = outputs(network, public.features[rows], settings.device)
    found = np.concatenate([block[:count].numpy() for block, count in made])
    network.cpu()
    if not np.isfinite(found).all():
        raise UserError(
            f"pretraining.learning_rate = {settings.learning_rate}: training diverged; choose a lower one"
            if learned
            else f"pretraining.method = {settings.method!r}: gives numbers that are not finite"
        )
    mean, axes = _axes(found, settings)
    return Encoder(settings.method, shape, network, mean, axes, settings.width if learned else 0, settings.device)


def check(settings: PretrainingSettings, shape: tuple[int, ...], inputs: int, seed: int) -> int:
    """K, the number of features of ``inputs`` public inputs of a shape; UserError for what could not be learned."""
    if settings.method != CONTRASTIVE:
        return min(settings.components, check_own(settings.method, shape, seed), inputs)
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise UserError(
            "pretraining.method = 'contrastive': is for images of at least 4×4 pixels; others take none or module:"
        )
    if inputs < settings.batch_size:
        raise UserError(f"pretraining.batch_size = {settings.batch_size}: must be at most the {inputs} public inputs")
    return min(settings.components, inputs)


def nt_xent(first: torch.Tensor, second: torch.Tensor, temperature: float) -> torch.Tensor:
    """The mean loss of projections (B, D) of two views of the same B images."""
    unit = nn.functional.normalize(torch.cat([first, second]), dim=1)
    alike = unit @ unit.mT / temperature
    alike = alike.masked_fill(torch.eye(len(unit), dtype=torch.bool, device=unit.device), float("-inf"))
    places = torch.arange(len(first), device=unit.device)
    return nn.functional.cross_entropy(alike, torch.cat([places + len(first), places]))


def _contrastive(
    images: np.ndarray, settings: PretrainingSettings, seed: int, progress: Progress | None
) -> nn.Sequential:
    draw, device = stream(seed, "pretrain"), device_of(settings.device)
    generator = torch.Generator().manual_seed(draw)
    network = backbone(images.shape[1:], settings.width, settings.dimensions, draw)
    head = nn.Sequential(
        linear(settings.dimensions, _HIDDEN, generator),
        nn.BatchNorm1d(_HIDDEN),
        nn.ReLU(),
        linear(_HIDDEN, _PROJECTED, generator),
    )
    both = nn.Sequential(network, head).to(device).to(memory_format=torch.channels_last).train()
    step = adamw_of(list(both.parameters()), _WEIGHT_DECAY)
    a_pass = min(len(images), LARGEST_EPOCH) // settings.batch_size
    steps = settings.epochs * a_pass
    batch = settings.batch_size
    with threads_for(2 * batch * math.prod(images.shape[1:])), repeatable(device):
        for done, rows in enumerate(_batches(len(images), batch, a_pass, settings.epochs, generator)):
            shown = as_input(images[rows])
            views = torch.cat([warped(shown, generator, VIEWS), warped(shown, generator, VIEWS)])
            with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=settings.precision == "mixed"):
                made = both(pixelwise(views).to(device))
            loss = nt_xent(made[:batch].float(), made[batch:].float(), settings.temperature)
            step(loss, settings.learning_rate * one_cycle(done / steps))
            if progress is not None:
                progress(done + 1, steps)
    return network.cpu().eval()


def _batches(inputs: int, batch: int, a_pass: int, epochs: int, generator: torch.Generator) -> Iterator[np.ndarray]:
    """Rows of whole batches: normalisation and loss are of a batch, and a small last one would be another."""
    for _ in range(epochs):
        order = torch.randperm(inputs, generator=generator).numpy()
        yield from np.split(order[: a_pass * batch], a_pass)


def one_cycle(share: float) -> float:
    """The learning rate as a share of the largest, at a share of all steps: up from 1/25, then down to 0, by cosines.

    Smith and Topin 2018, "Super-Convergence".

    >>> one_cycle(0.0), one_cycle(0.1), round(one_cycle(0.55), 3), round(one_cycle(1.0), 3)
    (0.04, 1.0, 0.5, 0.0)
    """
    if share < _WARM_UP:
        return 0.04 + 0.96 * (1 - math.cos(math.pi * share / _WARM_UP)) / 2
    return (1 + math.cos(math.pi * (share - _WARM_UP) / (1 - _WARM_UP))) / 2


def _sample(rows: int, most: int, draw: int) -> np.ndarray | slice:
    if rows <= most:
        return slice(None)
    return np.sort(np.random.default_rng(draw).permutation(rows)[:most])


def _axes(found: np.ndarray, settings: PretrainingSettings) -> tuple[np.ndarray, np.ndarray]:
    """Mean (D,) and axes (D, K), each divided by its eigenvalue to the power of ``whitening``."""
    principal = principal_components(found, settings.components)
    spread = principal.project(found).astype(np.float64).var(0)
    kept = spread > _LEAST_SHARE * max(spread.max(initial=0.0), 1e-300)
    scale = np.where(kept, np.where(kept, spread, 1.0) ** -settings.whitening, 0.0)
    return principal.mean.astype(np.float32), (principal.axes * scale).astype(np.float32)
