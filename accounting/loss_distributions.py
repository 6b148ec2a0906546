"""Privacy loss distributions (PLDs) of several events, composed apart for adding and for removing a unit.

Each mechanism is replaced by a pair of laws that dominates it (arXiv 2106.08567): a noisy maximum by the noisy counts
it is read from (two Gaussians of shift 1, hence one of sqrt(2)/sigma; or two Laplace laws), a test by its statistic's
Gaussian, a pure mechanism by randomized response. A pair for the argmax itself is no tighter (docs/accounting.md), so
Renyi divergence is often the better number for answers. Gaussians add up exactly to one of mu^2 = sum mu_i^2, in any
order of tests and answers; the rest is dp_accounting's, on a pessimistic grid.
"""

import math
from collections.abc import Sequence

from dp_accounting.pld import common
from dp_accounting.pld import privacy_loss_distribution as pld

from accounting.cost import FFT_MARGIN, PLD_INTERVAL, SMALLEST_PLD_DELTA
from accounting.events import DPSGD, Event, Gaussian, GNMax, Laplace, LNMax, PureDP, Thresholded
from accounting.gaussian_mechanism import gaussian_epsilon

# The grid is coarsened where losses are so large that it would have more points than this.
_POINTS = 1e6


def gaussian_square(event: Event) -> float | None:
    """mu^2 of the Gaussian pair that dominates the whole event; None where none does.

    GNMax: 2/sigma^2 an answer; a test adds 1/threshold_sigma^2. A Poisson-sampled Gaussian has no useful one.
    """
    match event:
        case GNMax(sigma=sigma, answers=answers):
            return 2 * answers / sigma**2
        case Gaussian():
            return event.count * (event.sensitivity / event.sigma) ** 2
        case DPSGD(sampling_rate=1):
            return event.steps / event.noise_multiplier**2
        case _ if isinstance(event, Thresholded):
            return 2 * event.answers / event.sigma**2 + event.queries / event.threshold_sigma**2
        case _:
            return None


def pld_epsilon(events: Sequence[Event], delta: float) -> float | None:
    """epsilon of all events together at ``delta``, the larger of adding and removing a unit.

    None where a mechanism has no dominating pair here, or where delta is so small that the rounding of dp_accounting's
    Fourier transforms might matter (Gaussians alone need none).
    """
    gaussian, others = 0.0, []
    for event in events:
        square = gaussian_square(event)
        if square is None:
            others.append(event)
        gaussian += square or 0.0
    if not others:
        return gaussian_epsilon(math.sqrt(gaussian) * (1 + 1e-14), delta) if gaussian else 0.0
    if delta < SMALLEST_PLD_DELTA or not all(isinstance(event, LNMax | Laplace | PureDP | DPSGD) for event in others):
        return None
    interval = max(PLD_INTERVAL, _largest_loss(gaussian, others) / _POINTS)
    total = pld.identity(interval)
    if gaussian:
        deviation = 1 / (math.sqrt(gaussian) * (1 + 1e-14))
        total = total.compose(pld.from_gaussian_mechanism(deviation, value_discretization_interval=interval))
    for event in others:
        found = _distribution(event, interval)
        if found is not None:
            total = total.compose(found)
    return max(0.0, float(total.get_epsilon_for_delta(delta - FFT_MARGIN)))


def _distribution(event: Event, interval: float) -> pld.PrivacyLossDistribution | None:
    """The PLD of all of an event's releases; None for an event that releases nothing."""
    match event:
        case LNMax():
            one, count = pld.from_laplace_mechanism(event.scale, value_discretization_interval=interval), event.answers
            count *= 2
        case Laplace():
            ratio, count = event.scale / event.sensitivity, event.count
            one = pld.from_laplace_mechanism(ratio, value_discretization_interval=interval)
        case PureDP():
            pure = common.DifferentialPrivacyParameters(event.epsilon, 0.0)
            one, count = pld.from_privacy_parameters(pure, interval), event.count
        case DPSGD():
            one, count = _subsampled(event, interval), event.steps
        case _:
            return None
    return one.self_compose(count) if count else None


def _subsampled(event: DPSGD, interval: float) -> pld.PrivacyLossDistribution:
    return pld.from_gaussian_mechanism(
        event.noise_multiplier,
        value_discretization_interval=interval,
        sampling_prob=event.sampling_rate,
        neighboring_relation=pld.NeighborRel.ADD_OR_REMOVE_ONE,
    )


def _largest_loss(gaussian: float, others: Sequence[Event]) -> float:
    """About the largest loss that a grid must reach: that of one release for bounded ones, ten deviations else."""
    losses = [gaussian / 2 + 10 * math.sqrt(gaussian)]
    for event in others:
        match event:
            case LNMax():
                losses.append(2 / event.scale)
            case Laplace():
                losses.append(event.sensitivity / event.scale)
            case PureDP():
                losses.append(event.epsilon)
            case DPSGD():
                losses.append(0.5 / event.noise_multiplier**2 + 10 / event.noise_multiplier)
    return max(losses)
