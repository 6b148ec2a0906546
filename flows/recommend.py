"""What a first config recommends for a dataset, from counts alone: teachers, σ, caps, δ and a limit.

Rules of thumb, each said in the config that `pate init` writes; none of them is part of a guarantee.
"""

import math
from dataclasses import dataclass

from accounting.calibration import sigma_for
from accounting.cost import guarantee
from accounting.events import GNMax
from data.errors import UserError

# A shard needs enough units to learn from, and there should be enough shards for the noise: both grow with the data.
UNITS_A_SHARD = 0.6  # times the square root of the units
UNITS_A_CLASS = 3  # least a shard, times the classes
MOST_TEACHERS = 5_000
# The two most voted classes are often more than n/2 votes apart: √2 σ = n/4 then decides rightly.
TEACHERS_A_SIGMA = 6
MOST_ANSWERS = 1_000


@dataclass(frozen=True)
class Recommendation:
    """``epsilon`` is what ``answers`` of GNMax with ``sigma`` cost at ``delta``; ``doubts`` are sentences."""

    teachers: int
    sigma: float
    answers: int
    epsilon: float
    delta: float
    doubts: tuple[str, ...]


def delta_for(units: int) -> float:
    """A power of ten, at most a tenth of 1/units.

    >>> delta_for(30_000), delta_for(1_000)
    (1e-06, 0.0001)
    """
    return float(f"1e-{math.ceil(math.log10(10 * units) - 1e-9)}")


def recommend(units: int, public: int, classes: int, epsilon: float) -> Recommendation:
    """Teachers, noise and answers for a target ε, given the number of private units, public inputs and classes.

    As many answers as the target pays for at σ = n/6; but at least two a class, with as much noise as that needs.

    Raises:
        UserError: too few units for two teachers, or a target that nothing meets.
    """
    shard = max(UNITS_A_SHARD * math.sqrt(units), UNITS_A_CLASS * classes)
    teachers = min(int(units / shard), MOST_TEACHERS)
    if teachers < 2:
        raise UserError(f"FILE: holds too few units: with {classes} classes at least {2 * UNITS_A_CLASS * classes}")
    delta = delta_for(units)
    sigma = float(f"{max(teachers / TEACHERS_A_SIGMA, 1.0):.3g}")
    most = min(public, MOST_ANSWERS)
    least = min(2 * classes, most)
    answers = _affordable(sigma, epsilon, delta, most)
    doubts = []
    if answers < least:
        answers = least
        sigma = float(f"{sigma_for(epsilon, delta, answers) * 1.0005:.4g}")
        if sigma > teachers / 4:
            doubts.append(
                f"{teachers} teachers are few for ε = {epsilon:g}: at σ = {sigma:g} many labels will be wrong. "
                "More units, a larger ε or fewer classes help."
            )
    if answers < 5 * classes:
        doubts.append(f"{answers} labels for {classes} classes are few for a student.")
    published = guarantee(GNMax(sigma, answers), delta).epsilon
    if not published > 0:
        raise UserError(f"--epsilon = {epsilon:g}: is so small that δ = {delta:g} alone covers it; give a larger one")
    return Recommendation(teachers, sigma, answers, published, delta, tuple(doubts))


def _affordable(sigma: float, epsilon: float, delta: float, most: int) -> int:
    """The most answers, up to ``most``, that cost at most ε; 0 if one is too much."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        # By RDP, which is quick: never too many.
        cost = guarantee(GNMax(sigma, middle), delta, method="rdp").epsilon
        low, high = (middle, high) if cost <= epsilon else (low, middle)
    return low
