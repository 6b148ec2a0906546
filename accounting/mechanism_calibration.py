"""The noise with which a whole noisy-max event meets a target epsilon, whatever its mechanism and caps."""

import math
import warnings
from collections.abc import Callable

from accounting import conversion as convert
from accounting.cost import guarantee
from accounting.events import NoisyMax
from data.errors import UserError

LEAST_NOISE, MOST_NOISE = 1e-3, 1e9
# How far below its target the result may cost, relatively; and what the search aims at, a little below.
TOLERANCE, AIM = 1e-3, 3e-4


def noise_for(build: Callable[[float], NoisyMax], epsilon: float, delta: float) -> float:
    """The smallest noise, to about 0.1% in epsilon, with which ``build(noise)`` is guaranteed to cost at most epsilon.

    ``build`` makes the event of a noise, all else fixed or in proportion to it, so that its cost falls as the noise
    grows. The textbook's cost is an upper bound, quick to compute, so where it meets the target is a first answer. The
    guarantee is below it by a factor that hardly depends on the noise: the textbook's cost is bisected for the target
    divided by that factor, which is then computed anew, a few times. What is returned was checked by the guarantee.

    Raises:
        UserError: a target out of range, or one that no noise up to 10^9 meets.
    """
    target, small = convert.checked_epsilon(epsilon), convert.checked_delta(delta)

    def textbook(noise: float) -> float:
        return guarantee(build(noise), small, "textbook").epsilon

    with warnings.catch_warnings():
        # Of orders at the end of the grid: valid, and only looked at on the way.
        warnings.simplefilter("ignore")
        if not textbook(MOST_NOISE) <= target:
            raise UserError(f"epsilon = {epsilon!r}: too small; no noise up to {MOST_NOISE:g} meets it")
        noise = best = _bisected(textbook, target)
        for _ in range(8):
            found = guarantee(build(noise), small).epsilon
            if found <= target:
                best = min(best, noise)
                # 0: the total variation is within delta, where cost no longer falls smoothly.
                if found >= target * (1 - TOLERANCE) or found == 0:
                    break
            noise = _bisected(textbook, textbook(noise) * target * (1 - AIM) / found)
            if noise >= best:
                break
    return best


def _bisected(cost: Callable[[float], float], target: float) -> float:
    """The smallest noise, five digits from above, whose cost, which falls, is at most target."""
    low, high = LEAST_NOISE, MOST_NOISE
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= target else (middle, high)
    unit = 10.0 ** (math.floor(math.log10(high)) - 4)
    return float(f"{math.ceil(high / unit * (1 - 1e-12)) * unit:.5g}")
