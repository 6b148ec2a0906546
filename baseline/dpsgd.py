"""DP-SGD, the rival of PATE: a model trained on the private records by noisy gradient steps.

Neighbours: one unit added or removed. A unit is represented by at most one record, chosen from that unit alone.
Released: the weights of one network (the last ones, or the mean of the last ones: both are functions of the noisy
steps). Event: :class:`accounting.events.DPSGD`, that is ``steps`` Gaussian mechanisms of ``noise_multiplier``, each on
a Poisson sample of the units at ``sampling_rate``.

One step (Abadi et al. 2016, "Deep Learning with Differential Privacy", Algorithm 1): every unit enters with the
configured probability; its gradient g is scaled to length at most C = ``clip``; N(0, (noise_multiplier · C)²) is added
to each coordinate of the sum; the result is divided by the constant ``batch_size``. Nothing else depends on the data:
no number of records, no batch's size, no statistic of the inputs. An empty sample is a step of noise alone.
The Poisson-sampled Gaussian mechanism is analysed by Mironov, Talwar and Zhang (2019, "Rényi Differential Privacy of
the Sampled Gaussian Mechanism") and Balle and Wang (2018, "Improving the Gaussian Mechanism for Differential Privacy",
the exact Gaussian profile at rate 1); here its noise is calibrated by privacy loss distributions (Koskela, Jälkö and
Honkela 2020; Doroshenko et al. 2022, "Connect the Dots"), adding and removing a unit composed apart.

Disclosed with every release: gradients, noise and sampling are floating-point numbers (:data:`DISCLOSURE`). Opacus'
sum of four Gaussians makes the attack on their representation harder (Holohan and Braghin 2021); it is no proof.
"""

import os
import warnings
from collections.abc import Callable

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn

from accounting.events import DPSGD
from baseline.networks import build, divide, fixed_features
from baseline.sampling import Entropy, one_per_unit, poisson_sample, system_generator
from baseline.settings import BaselineSettings
from data.errors import UserError
from data.examples import PrivateRecords
from teachers.fitting import threads_for

Progress = Callable[[int, int], None]

# Numbers in a micro-batch of inputs below which one thread is as fast as several.
SMALL_STEP = 1_000_000

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
        seed: the run's; it fixes the initial weights and nothing else.
        progress: called with (steps done, steps) after each step.
        entropy: random bytes for sampling and noise. Anything but ``os.urandom`` is for tests.

    Raises:
        UserError: the event is not one of these settings.
    """
    if (event.sampling_rate, event.steps) != (settings.sampling_rate, settings.steps):
        raise UserError("baseline: sampling_rate and steps differ from those of the event that is charged")
    network = build(settings, shape, classes, seed)
    fixed, trained = divide(network)
    kept = one_per_unit(records)
    inputs = fixed_features(fixed, kept.features)
    labels = torch.from_numpy(kept.labels.astype("int64"))
    gradients, optimiser = _private(trained, event, settings, system_generator(entropy))
    sampling = system_generator(entropy)
    first_averaged = event.steps - int(settings.averaging * event.steps)
    weights = nn.utils.parameters_to_vector(trained.parameters()).detach().clone()
    with threads_for(settings.micro_batch * inputs[:1].numel(), SMALL_STEP):
        for step in range(event.steps):
            rows = poisson_sample(len(labels), event.sampling_rate, sampling)
            noisy_step(gradients, optimiser, inputs[rows], labels[rows], settings.micro_batch)
            current = nn.utils.parameters_to_vector(trained.parameters()).detach()
            # Post-processing of released steps: averaging costs no privacy and damps the noise of the last steps.
            taken = max(step - first_averaged, 0) + 1
            weights = weights + (current - weights) / taken
            if progress is not None:
                progress(step + 1, event.steps)
    # A network of its own: Opacus leaves per-unit gradients on the parameters that it trained.
    released = build(settings, shape, classes, seed)
    nn.utils.vector_to_parameters(weights, released.parameters())
    return released.eval()


def _private(
    trained: nn.Module, event: DPSGD, settings: BaselineSettings, noise: torch.Generator
) -> tuple[GradSampleModule, DPOptimizer]:
    """The network with per-unit gradients, and SGD on their clipped, noisy sum divided by ``settings.batch_size``."""
    gradients = GradSampleModule(trained, loss_reduction="sum", strict=True)
    optimiser = DPOptimizer(
        torch.optim.SGD(trained.parameters(), lr=settings.learning_rate, momentum=settings.momentum),
        noise_multiplier=event.noise_multiplier,
        max_grad_norm=settings.clip,
        # The constant, not the batch: "mean" divides the noisy sum by it and by nothing else, since the gradients are
        # those of a *summed* loss and each noisy step hands over exactly one block of them (see noisy_step).
        expected_batch_size=settings.batch_size,
        loss_reduction="mean",
        generator=noise,
        secure_mode=True,
    )
    return gradients, optimiser


def noisy_step(
    gradients: GradSampleModule, optimiser: DPOptimizer, inputs: torch.Tensor, labels: torch.Tensor, micro_batch: int
) -> None:
    """One step on a sample (B, …), B ≥ 0, at most ``micro_batch`` gradients in memory at a time, noise added once."""
    blocks = range(0, max(len(labels), 1), micro_batch)
    for start in blocks:
        rows = slice(start, start + micro_batch)
        optimiser.zero_grad(set_to_none=True)
        _per_unit_gradients(gradients, inputs[rows], labels[rows])
        optimiser.signal_skip_step(do_skip=start != blocks[-1])
        optimiser.step()


def _per_unit_gradients(gradients: GradSampleModule, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    """Fill ``grad_sample`` (B, *parameter) of each parameter; (0, *parameter) for an empty sample."""
    parameters = [p for p in gradients.parameters() if p.requires_grad]
    if len(labels):
        with warnings.catch_warnings():
            # Inputs need no gradient, which torch remarks on for Opacus' hooks; per-unit gradients are complete.
            warnings.filterwarnings("ignore", message="Full backward hook is firing", category=UserWarning)
            nn.functional.cross_entropy(gradients(inputs), labels, reduction="sum").backward()
    for parameter in parameters:
        if not len(labels):
            parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))
        else:
            # A gradient that overflowed would be scaled to 0 · inf = NaN, and one unit would ruin the sum.
            torch.nan_to_num_(parameter.grad_sample, nan=0.0, posinf=0.0, neginf=0.0)
