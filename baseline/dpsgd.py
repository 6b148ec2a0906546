"""DP-SGD, the rival of PATE: a model trained on the private records by noisy gradient steps.

Neighbours: one unit added or removed. A unit is represented by at most one record, chosen from that unit alone.
Released: the weights of one network (the last ones, or the mean of the last ones: both are functions of the noisy
steps). Event: :class:`accounting.events.DPSGD`, that is ``steps`` Gaussian mechanisms of ``noise_multiplier``, each on
a Poisson sample of the units at ``sampling_rate``.

One step (Abadi et al. 2016, "Deep Learning with Differential Privacy", Algorithm 1): every unit enters with the
configured probability; its gradient g is scaled to length at most C = ``clip``; N(0, (noise_multiplier · C)²) is added
to each coordinate of the sum; the result is divided by the constant ``batch_size``. Nothing else depends on the data:
no number of records, no batch's size, no statistic of the inputs. An empty sample is a step of noise alone. With
``augmentation`` g is the mean over the unit's moved copies: still one gradient a unit, so the same event and the same
noise (:mod:`baseline.augmentation` says what that rests on). Gradients and their clip are :mod:`baseline.gradients`'
and torch's; noise and step are Opacus'.
The Poisson-sampled Gaussian mechanism is analysed by Mironov, Talwar and Zhang (2019, "Rényi Differential Privacy of
the Sampled Gaussian Mechanism") and Balle and Wang (2018, "Improving the Gaussian Mechanism for Differential Privacy",
the exact Gaussian profile at rate 1); here its noise is calibrated by privacy loss distributions (Koskela, Jälkö and
Honkela 2020; Doroshenko et al. 2022, "Connect the Dots"), adding and removing a unit composed apart.

Disclosed with every release: gradients, noise and sampling are floating-point numbers (:data:`DISCLOSURE`). Opacus'
sum of four Gaussians makes the attack on their representation harder (Holohan and Braghin 2021); it is no proof.
"""

import functools
import os
from collections.abc import Callable, Iterable

import torch
from opacus.optimizers import DPOptimizerFastGradientClipping
from torch import nn

from accounting.events import DPSGD
from baseline.gradients import Gradients, workers
from baseline.inputs import prepare
from baseline.networks import build, divide
from baseline.sampling import Entropy, poisson_sample, system_generator
from baseline.settings import BaselineSettings
from data.errors import UserError
from data.examples import PrivateRecords

Progress = Callable[[int, int], None]

DISCLOSURE = (
    "DP-SGD draws its noise and its Poisson samples in floating point from Mersenne Twister generators whose whole "
    "state comes from the operating system: the guarantee is that of the ideal mechanism, not floating-point safe, "
    "and the training is not repeatable."
)


def train(
    records: PrivateRecords,
    event: DPSGD,
    settings: BaselineSettings,
    seed: int,
    shape: tuple[int, ...],
    classes: int,
    progress: Progress | None = None,
    *,
    entropy: Entropy = os.urandom,
) -> nn.Module:
    """The released network, trained by exactly the steps of ``event``.

    Args:
        records: N private records (N, *shape) with labels in [0, classes); N may be 0.
        event: rate, steps and noise; the clipping norm, the divisor and SGD's settings come from ``settings``.
        seed: the run's; it fixes the initial weights and the copies' moves, neither noise nor samples.
        progress: called with (steps done, steps) after each step.
        entropy: random bytes for sampling and noise. Anything but ``os.urandom`` is for tests.

    Raises:
        UserError: the event is not one of these settings.
    """
    if (event.sampling_rate, event.steps) != (settings.sampling_rate, settings.steps):
        raise UserError("baseline: sampling_rate and steps differ from those of the event that is charged")
    network = build(settings, shape, classes, seed)
    fixed, trained = divide(network)
    inputs = prepare(records, fixed, settings, seed)
    optimiser = _private(trained, event, settings, system_generator(entropy))
    sampling = system_generator(entropy)
    first_averaged = event.steps - int(settings.averaging * event.steps)
    weights = nn.utils.parameters_to_vector(trained.parameters()).detach().clone()
    with workers(trained, _threads(settings), settings.clip) as compute:
        for step in range(event.steps):
            rows = poisson_sample(len(inputs), event.sampling_rate, sampling)
            # An empty sample is one block without rows.
            blocks = compute(functools.partial(inputs.block, step=step), rows.split(settings.micro_batch))
            noisy_step(optimiser, blocks)
            current = nn.utils.parameters_to_vector(trained.parameters()).detach()
            # Post-processing of released steps: averaging costs no privacy and damps the noise of the last steps.
            taken = max(step - first_averaged, 0) + 1
            weights = weights + (current - weights) / taken
            if progress is not None:
                progress(step + 1, event.steps)
    # A network of its own: Opacus leaves per-unit gradients on the parameters that it steps.
    released = build(settings, shape, classes, seed)
    nn.utils.vector_to_parameters(weights, released.parameters())
    return released.eval()


def _threads(settings: BaselineSettings) -> int:
    """As many threads as torch would use, no more than a step has blocks by its nominal size."""
    return max(1, min(torch.get_num_threads(), settings.batch_size // settings.micro_batch))


def _private(
    trained: nn.Module, event: DPSGD, settings: BaselineSettings, noise: torch.Generator
) -> DPOptimizerFastGradientClipping:
    """SGD on the clipped sum with noise, divided by ``settings.batch_size``. It clips nothing itself."""
    return DPOptimizerFastGradientClipping(
        torch.optim.SGD(trained.parameters(), lr=settings.learning_rate, momentum=settings.momentum),
        noise_multiplier=event.noise_multiplier,
        max_grad_norm=settings.clip,
        # The constant, not the batch: "mean" divides the noisy sum by it and by nothing else.
        expected_batch_size=settings.batch_size,
        loss_reduction="mean",
        generator=noise,
        secure_mode=True,
    )


def noisy_step(optimiser: DPOptimizerFastGradientClipping, blocks: Iterable[Gradients]) -> None:
    """One step on the clipped sums of a sample's blocks, at least one: added up, then noise added once."""
    first, *others = blocks
    for gradients in others:
        for total, gradient in zip(first, gradients, strict=True):
            total += gradient
    optimiser.zero_grad(set_to_none=True)
    for parameter, total in zip(optimiser.params, first, strict=True):
        parameter.grad = total
    optimiser.step()
