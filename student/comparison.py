"""Two models on the same test inputs: how much more accurate one is, from the inputs on which only one is right."""

from student.rates import CONFIDENCE, Estimate, rate

PAIRED = "Bonferroni of Clopper-Pearson, paired"
# Of the 5% that may go wrong, how much on how many inputs tell the models apart; the rest on which model they favour.
_ON_SHARE = 0.1


def paired_difference(only_first: int, only_second: int, total: int) -> Estimate:
    """Accuracy of the first model less the second's, over ``total`` ≥ 1 inputs common to both.

    Inputs on which both are right or both wrong do not tell them apart (McNemar 1947). With d the share of the others
    and f the share of those on which the first is right, the difference is d(2f − 1). d has an exact interval at
    99.5%, f given their number one at 95.5%; both hold together in at least 95% of test parts, and then so do the least
    and the greatest difference that they allow. It leaves 0 out just where McNemar's exact test rejects at 4.5%.

    >>> found = paired_difference(30, 10, 200)
    >>> found.value, found.low > 0
    (0.1, True)
    """
    apart = only_first + only_second
    wrong = 1 - CONFIDENCE
    share = rate(apart, total, 1 - _ON_SHARE * wrong)
    favour = rate(only_first, apart, 1 - (1 - _ON_SHARE) * wrong)
    shares = (share.low or 0.0, 1.0 if share.high is None else share.high)
    signs = (2 * (favour.low or 0.0) - 1, 2 * (1.0 if favour.high is None else favour.high) - 1)
    products = [d * sign for d in shares for sign in signs]
    return Estimate((only_first - only_second) / total, min(products), max(products), total, PAIRED)
