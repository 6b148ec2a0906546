"""Noise for a target: the guarantee of what is returned meets it, and a little less noise would not."""

import pytest

from accounting.calibration import noise_multiplier_for, sigma_for
from accounting.cost import dpsgd_epsilon, guarantee
from accounting.events import DPSGD, GNMax
from data.errors import UserError


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "delta", "answers"), [(1.0, 1e-5, 300), (8.0, 1e-6, 20), (0.1, 1e-5, 10)])
def test_sigma_meets_the_target_and_is_the_smallest(epsilon: float, delta: float, answers: int) -> None:
    """The calibrated sigma costs at most epsilon; 0.5% less noise costs more."""
    sigma = sigma_for(epsilon, delta, answers)
    assert guarantee(GNMax(sigma, answers), delta).epsilon <= epsilon
    assert guarantee(GNMax(sigma * 0.995, answers), delta).epsilon > epsilon


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "rate", "steps"), [(1.0, 0.01, 2000), (5.0, 0.1, 60), (2.0, 1.0, 1)])
def test_noise_multiplier_meets_the_target_and_is_the_smallest(epsilon: float, rate: float, steps: int) -> None:
    """The calibrated multiplier costs at most epsilon by the stated guarantee; 0.2% less noise costs more."""
    noise = noise_multiplier_for(epsilon, 1e-5, rate, steps)
    assert dpsgd_epsilon(DPSGD(noise, rate, steps), 1e-5) <= epsilon
    assert dpsgd_epsilon(DPSGD(noise * 0.998, rate, steps), 1e-5) > epsilon


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bad_target_is_named(bad: float) -> None:
    """A target that is not a finite positive number is refused by name."""
    with pytest.raises(UserError, match="^epsilon = "):
        sigma_for(bad, 1e-5, 10)
    with pytest.raises(UserError, match="^epsilon = "):
        noise_multiplier_for(bad, 1e-5, 0.1, 10)


def test_bad_counts_and_rates_are_named() -> None:
    """Answers and steps are whole numbers from 1, a rate lies in (0, 1], delta in (0, 1)."""
    for count in (0, -3, 2.5, True):
        with pytest.raises(UserError, match="^answers = "):
            sigma_for(1.0, 1e-5, count)  # type: ignore[arg-type]
        with pytest.raises(UserError, match="^steps = "):
            noise_multiplier_for(1.0, 1e-5, 0.1, count)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="^sampling_rate = "):
        noise_multiplier_for(1.0, 1e-5, 1.5, 10)
    for delta in (0.0, 1.0, float("nan")):
        with pytest.raises(UserError, match="^delta = "):
            sigma_for(1.0, delta, 10)
