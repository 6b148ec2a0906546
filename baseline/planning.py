"""The noise of DP-SGD for a target guarantee, without torch: what is charged is known before anything is loaded."""

from accounting.calibration import noise_multiplier_for
from accounting.events import DPSGD
from baseline.settings import BaselineSettings


def plan(settings: BaselineSettings, epsilon: float, delta: float) -> DPSGD:
    """The event whose guarantee by privacy loss distributions is at most (epsilon, delta), with the least noise.

    >>> round(plan(BaselineSettings(sampling_rate=1.0, steps=1), epsilon=1.0, delta=1e-5).noise_multiplier, 2)
    3.73
    """
    multiplier = noise_multiplier_for(epsilon, delta, settings.sampling_rate, settings.steps)
    return DPSGD(noise_multiplier=multiplier, sampling_rate=settings.sampling_rate, steps=settings.steps)
