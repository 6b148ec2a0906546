"""How far groups of people are treated alike: gaps between the rates of groups, and the rate of the worst-off group.

Demographic parity compares how often a class is predicted (Agarwal et al. 2018); equal opportunity how often those who
belong to it are found, equalised odds also how often others are taken for it (Hardt, Price and Srebro 2016). Each is
the difference between the largest and the smallest rate of any two groups, as Fairlearn (Bird et al. 2020) has it.
"""

from collections.abc import Sequence

from student.rates import CONFIDENCE, Estimate, Rate, rate

BONFERRONI = "Bonferroni of Clopper-Pearson"
Counts = Sequence[tuple[int, int]]


def largest_gap(*families: Counts) -> Estimate | None:
    """The largest rate less the smallest, over groups given as (number, of how many); groups of none are left out.

    Of several families of rates (true and false positives) the larger gap. None where no family has two groups.

    The interval: k exact intervals in all hold together with probability 95% (each at 1 − 5%/k, Bonferroni). Then the
    largest true rate of a family is at least the largest lower end, the smallest at most the smallest upper end. So its
    gap lies between the largest lower end less the smallest upper end (or 0) and the largest upper less the smallest
    lower end; and the larger of two gaps between the larger of each.

    >>> largest_gap([(9, 10), (5, 10)]).value
    0.4
    """
    held = [kept for family in families if len(kept := [each for each in family if each[1]]) > 1]
    if not held:
        return None
    number = sum(len(family) for family in held)
    value, low, high = 0.0, 0.0, 0.0
    for family in held:
        shares = [correct / total for correct, total in family]
        joint = [_joint(each, number) for each in family]
        lows, highs = [each[0] for each in joint], [each[1] for each in joint]
        value = max(value, max(shares) - min(shares))
        low = max(low, max(lows) - min(highs))
        high = max(high, max(highs) - min(lows))
    return Estimate(value, low, high, sum(total for family in held for _, total in family), BONFERRONI)


def worst(groups: Counts) -> tuple[int, Estimate] | None:
    """The position of the group with the smallest rate, and that rate; None without any group.

    With all k intervals holding together, the smallest true rate lies between the smallest lower and upper ends.
    """
    held = [(position, each) for position, each in enumerate(groups) if each[1]]
    if not held:
        return None
    joint = [_joint(each, len(held)) for _, each in held]
    position, (correct, total) = min(held, key=lambda item: item[1][0] / item[1][1])
    low, high = min(each[0] for each in joint), min(each[1] for each in joint)
    return position, Estimate(correct / total, low, high, total, BONFERRONI)


def _joint(counts: tuple[int, int], number: int) -> tuple[float, float]:
    found: Rate = rate(*counts, confidence=1 - (1 - CONFIDENCE) / number)
    return found.low or 0.0, 1.0 if found.high is None else found.high
