"""The noise that meets a privacy target: found numerically, then checked by the guarantee itself."""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from accounting import conversion as convert
from accounting import curves
from accounting.cost import PLD_INTERVAL, Method, dpsgd_epsilon, guarantee
from accounting.events import DPSGD, GNMax
from accounting.orders import default_orders
from data.errors import UserError

# What is returned is found to this relative precision, from above.
PRECISION = 2e-4
# The search by recursion aims this much below its target, relatively, and ends within twice as much.
AIM = 4e-4


def _checked_count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not value >= 1:
        raise UserError(f"{name} = {value!r}: must be a whole number, at least 1")
    return int(value)


def _rounded_up(value: float, digits: int = 5) -> float:
    """The next number of so many significant digits: what is printed is then what was checked."""
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return float(f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.{digits}g}")


def sigma_for(epsilon: float, delta: float, answers: int, method: Method = "best") -> float:
    """The smallest sigma, to about 0.1%, whose ``answers`` GNMax answers are guaranteed to cost at most epsilon.

    First by RDP. The cost per answer is c alpha / sigma^2 where c, between 0.6 and 1, depends on sigma only slowly. So:
    certify c at a guess, bisect for the sigma that would meet the target with these c (the cost falls as sigma grows),
    twice; then raise sigma until its own guarantee meets the target. What the recursion saves is then taken off sigma,
    in a few steps, each checked by the guarantee.

    Args:
        epsilon: target, above 0.
        delta: in (0, 1).
        answers: most answers given, at least 1.
        method: "best", or "rdp" for the sigma that RDP alone gives: larger, and faster to find.

    Raises:
        UserError: a target out of range, or one that no sigma below 10^9 meets at the orders used.
    """
    target, small = convert.checked_epsilon(epsilon), convert.checked_delta(delta)
    count = _checked_count("answers", answers)
    orders = np.array(default_orders())

    def meets(sigma: float, factor: np.ndarray, alpha: np.ndarray) -> bool:
        cost = count * factor * alpha / sigma**2
        return convert.epsilon(cost, alpha, small, warn=False)[0] <= target

    def solve(factor: np.ndarray, alpha: np.ndarray) -> float:
        low, high = 1e-3, 1e9
        if not meets(high, factor, alpha):
            raise UserError(f"epsilon = {epsilon!r}: too small for {count} answers at delta = {delta!r}")
        while high / low > 1 + PRECISION / 4:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if meets(middle, factor, alpha) else (middle, high)
        return high

    sigma = 0.8 * solve(np.ones(len(orders)), orders)
    for _ in range(2):
        _, best = convert.epsilon(count * 0.65 * orders / sigma**2, orders, small, warn=False)
        near = orders[(orders >= 1 + (best - 1) / 1.5) & (orders <= 1 + (best - 1) * 1.5)]
        factor = curves.rdp_per_answer(GNMax(sigma, count), near) * sigma**2 / near
        sigma = _rounded_up(solve(factor, near))
    while not (found := guarantee(GNMax(sigma, count), small, method="rdp").epsilon) <= target:
        sigma = _rounded_up(sigma * max(found / target, 1 + PRECISION / 2))
    return sigma if method == "rdp" else _lowered(sigma, target, small, count)


def _lowered(sigma: float, target: float, delta: float, count: int) -> float:
    """The smallest sigma whose best guarantee meets the target; ``sigma`` meets it.

    epsilon is nearly a power of sigma, so each trial aims a little below the target along the last slope.
    """
    best, slope = sigma, 1.0
    trials = [(sigma, guarantee(GNMax(sigma, count), delta).epsilon)]
    for _ in range(6):
        last, found = trials[-1]
        if found == 0 or (found <= target and found >= target * (1 - 2 * AIM)):
            break
        trial = _rounded_up(last * (found / (target * (1 - AIM))) ** (1 / slope))
        if trial >= best:
            break
        trials.append((trial, guarantee(GNMax(trial, count), delta).epsilon))
        if trials[-1][1] <= target:
            best = min(best, trial)
        if trials[-1][1] > 0:
            slope = math.log(trials[-1][1] / found) / math.log(last / trial)
            slope = min(max(slope, 0.7), 2.0)
    return best


# A run asks for the same noise when it reserves, trains and reports; the search takes seconds.
@lru_cache(maxsize=64)
def noise_multiplier_for(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    """The smallest noise multiplier, to 0.02%, with which DP-SGD costs at most (epsilon, delta), by PLD.

    Adding and removing a unit are both covered: the larger epsilon of the two must meet the target. A bracket is
    taken from RDP, closed on coarse privacy losses (fast, pessimistic) and then on fine ones; the result is checked
    by :func:`accounting.cost.dpsgd_epsilon`, the function that states the guarantee.

    Raises:
        UserError: a value out of range, or a target that no multiplier up to 10^5 meets.
    """
    target, small = convert.checked_epsilon(epsilon), convert.checked_delta(delta)
    count = _checked_count("steps", steps)

    DPSGD(1.0, sampling_rate, count)  # a wrong sampling rate is named before anything is computed

    def cost(interval: float) -> Callable[[float], float]:
        return lambda multiplier: dpsgd_epsilon(DPSGD(multiplier, sampling_rate, count), small, interval)

    low, high = _bracket(target, small, sampling_rate, count)
    rough = _smallest(cost(10 * PLD_INTERVAL), target, low, high, 10 * PRECISION)
    result = _rounded_up(_smallest(cost(PLD_INTERVAL), target, rough / 1.004, rough, PRECISION))
    while not dpsgd_epsilon(DPSGD(result, sampling_rate, count), small) <= target:
        result = _rounded_up(result * (1 + PRECISION))
    return result


def _smallest(cost: Callable[[float], float], target: float, low: float, high: float, precision: float) -> float:
    """The smallest argument, to the relative precision and from above, whose decreasing cost is at most target.

    The bracket is widened where it does not hold the target. Cost is close to a power of the argument, so false
    position in logarithms is used, aimed a little above the root and then a little below, so that both ends move.
    """
    low_cost, high_cost = cost(low), cost(high)
    while not high_cost <= target:
        low, low_cost = high, high_cost
        high *= 1.1
        high_cost = cost(high)
    while low_cost <= target and low > 1e-3:
        high, high_cost = low, low_cost
        low /= 1.1
        low_cost = cost(low)
    for _ in range(30):
        if not (high / low > 1 + precision and low_cost > target):
            break
        drop = math.log(low_cost) - math.log(max(high_cost, 1e-12))
        share = (math.log(low_cost) - math.log(target)) / max(drop, 1e-12)
        middle = low * (high / low) ** min(max(share, 0.02), 0.98)
        for trial in (middle * (1 + precision / 3), middle * (1 - precision / 3)):
            if low < trial < high:
                found = cost(trial)
                if found <= target:
                    high, high_cost = trial, found
                else:
                    low, low_cost = trial, found
    return high


def _bracket(epsilon: float, delta: float, sampling_rate: float, steps: int) -> tuple[float, float]:
    """(low, high) multipliers around the target from RDP at a few orders, which is fast and never too small."""
    orders = np.concatenate([np.arange(2, 33), np.geomspace(36, 1024, 16).round()])

    def meets(multiplier: float) -> bool:
        curve = curves.rdp(DPSGD(multiplier, sampling_rate, steps), orders)
        return convert.epsilon(curve, orders, delta, warn=False)[0] <= epsilon

    low, high = 0.05, 1.0
    while not meets(high):
        low, high = high, high * 2
        if high > 1e5:
            raise UserError(f"epsilon = {epsilon!r}: too small for {steps} steps at delta = {delta!r}")
    while high / low > 1.02:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if meets(middle) else (middle, high)
    # privacy loss distributions usually need a tenth less noise than RDP
    return 0.85 * high, high
