"""Whether a model's confidence can be taken at its word: reliability, expected calibration error and Brier score.

A prediction's confidence is the probability of the class that it names. Of inputs with confidence p a share p should
be right. Bins hold equal numbers of inputs: Roelofs, Cain, Shlens and Mozer, "Mitigating bias in calibration error
estimation" (AISTATS 2022), find less bias than with bins of equal width. What bias there is makes the error of a
well calibrated model look larger than it is; the interval allows for that.
"""

from dataclasses import dataclass

import numpy as np

from student.rates import CONFIDENCE, FEW, NONE, Estimate, Rate, rate

RESAMPLES = 1000
BINOMIAL_BOOTSTRAP = "binomial bootstrap within bins"
BOOTSTRAP = "percentile bootstrap"
MOST_BINS = 15
_BIN_SIZE = 20


@dataclass(frozen=True)
class Bin:
    """Inputs of similar confidence: the mean of it, and how many of them are right."""

    confidence: float
    right: Rate


@dataclass(frozen=True)
class Calibration:
    """The bins of the reliability diagram, in order of confidence, and the expected calibration error over them."""

    bins: tuple[Bin, ...]
    error: Estimate


def calibration(probabilities: np.ndarray, labels: np.ndarray, seed: int) -> Calibration:
    """Expected calibration error of probabilities (N, C), N ≥ 1, for labels (N,): Σ_b n_b/N · |confidence_b − right_b|.

    Bins: N/20 of them, at least 1 and at most 15, divided at the confidences' quantiles, equal confidences together.

    The interval, at given inputs: by the triangle inequality the estimate is off by at most D = Σ_b n_b/N · |right_b −
    E right_b|, so in 95% of test parts by no more than the 95% quantile of D. That quantile is simulated: right answers
    of bin b as binomial with (right + 2)/(n_b + 4), which is no less variable than a bin whose inputs differ and leaves
    room for mistakes in a bin where none was seen.
    """
    confidence = probabilities.max(1).astype(np.float64)
    right = probabilities.argmax(1) == labels
    wanted = min(max(len(labels) // _BIN_SIZE, 1), MOST_BINS)
    edges = np.percentile(confidence, np.linspace(0, 1, wanted + 1) * 100)
    at = np.searchsorted(edges[1:-1], confidence)
    sizes = np.bincount(at, minlength=wanted)
    held = sizes > 0
    sizes = sizes[held]
    means = np.bincount(at, confidence, wanted)[held] / sizes
    correct = np.bincount(at, right, wanted)[held].astype(int)
    estimate = float(np.abs(means * sizes - correct).sum() / len(labels))
    distance = _distance(correct, sizes, seed)
    error = Estimate(
        estimate, max(estimate - distance, 0.0), min(estimate + distance, 1.0), len(labels), BINOMIAL_BOOTSTRAP
    )
    bins = (Bin(float(m), rate(int(k), int(n))) for m, k, n in zip(means, correct, sizes, strict=True))
    return Calibration(tuple(bins), error)


def _distance(correct: np.ndarray, sizes: np.ndarray, seed: int) -> float:
    share = (correct + 2) / (sizes + 4)
    drawn = np.random.default_rng(seed).binomial(sizes, share, (RESAMPLES, len(sizes)))
    return float(np.quantile(np.abs(drawn - sizes * share).sum(1) / sizes.sum(), CONFIDENCE))


def brier_score(probabilities: np.ndarray, labels: np.ndarray, seed: int) -> Estimate:
    """Brier (1950): the mean of Σ_c (p_c − [label = c])², from 0 (best) to 2; with two classes half of that, as usual.

    The interval is the percentile bootstrap's (Efron and Tibshirani 1993, chapter 13). It is too narrow where hardly
    any prediction is wrong (or right), so none is given where fewer than ten are.
    """
    truth = np.eye(probabilities.shape[1])[labels]
    losses = ((probabilities.astype(np.float64) - truth) ** 2).sum(1)
    if probabilities.shape[1] == 2:
        losses /= 2
    wrong = int((probabilities.argmax(1) != labels).sum())
    if min(wrong, len(labels) - wrong) < FEW:
        return Estimate(float(losses.mean()), None, None, len(losses), NONE)
    generator = np.random.default_rng(seed)
    means = [losses[generator.integers(len(losses), size=len(losses))].mean() for _ in range(RESAMPLES)]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Estimate(float(losses.mean()), float(low), float(high), len(losses), BOOTSTRAP)
