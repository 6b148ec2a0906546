"""Every measured number another way: scikit-learn's metrics, scipy's exact intervals, loops over test inputs."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from scipy.stats import binomtest
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, brier_score_loss, confusion_matrix, precision_score, recall_score

Key = tuple[str, str, str, str | None, str | None, str | None]
Number = tuple[float, float | None, float | None, int]


def exact(right: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share."""
    found = binomtest(right, total).proportion_ci(level, method="exact")
    return float(found.low), float(found.high)


def _share(value: float, total: int) -> Number:
    return (float(value), *exact(round(value * total), total), total)


def _joint(shares: list[Number], number: int) -> list[tuple[float, float]]:
    return [exact(round(value * total), total, 1 - 0.05 / number) for value, _, _, total in shares]


def gap(*families: list[Number]) -> Number:
    """The larger spread of any family, and the spreads that are possible within simultaneous intervals."""
    kept = [family for family in families if len(family) > 1]
    number = sum(map(len, kept))
    spreads, least, most = [], [0.0], []
    for family in kept:
        spreads.append(max(abs(a[0] - b[0]) for a in family for b in family))
        ends = _joint(family, number)
        least.append(max(a[0] - b[1] for a in ends for b in ends))
        most.append(max(a[1] - b[0] for a in ends for b in ends))
    return max(spreads), max(least), max(most), sum(share[3] for family in kept for share in family)


def paired(first: np.ndarray, second: np.ndarray) -> Number:
    """The difference of two models' accuracies, over all that simultaneous intervals of its two factors allow."""
    n, apart, won = len(first), int((first != second).sum()), int((first & ~second).sum())
    shares = exact(apart, n, 0.995)
    wins = exact(won, apart, 0.955) if apart else (0.0, 1.0)
    ends = [share * (2 * win - 1) for share in shares for win in wins]
    return float(first.mean() - second.mean()), min(ends), max(ends), n


def calibration_error(p: np.ndarray, y: np.ndarray, seed: int) -> tuple[Number, list[tuple[float, int, int]]]:
    """The error with its interval, and of each bin mean confidence, number right and number of inputs."""
    confidence, right = p.max(1).astype(float), (p.argmax(1) == y).astype(int)
    number = min(15, max(1, len(y) // 20))
    inner = np.percentile(confidence, np.linspace(0, 1, number + 1) * 100)[1:-1]
    bins = []
    for at in range(number):
        here = [i for i, c in enumerate(confidence) if (inner < c).sum() == at]
        if here:
            bins.append((float(confidence[here].mean()), int(right[here].sum()), len(here)))
    if 0 < right.sum() < len(right):
        # scikit-learn's curve refuses a single outcome; where it can be drawn it has these points.
        true, mean = calibration_curve(right, confidence, n_bins=number, strategy="quantile")
        assert np.allclose(mean, [c for c, _, _ in bins])
        assert np.allclose(true, [k / n for _, k, n in bins])
    error = sum(abs(c - k / n) * n for c, k, n in bins) / len(y)
    sizes, share = np.array([n for _, _, n in bins]), np.array([(k + 2) / (n + 4) for _, k, n in bins])
    draws = np.random.default_rng(seed).binomial(sizes, share, (1000, len(sizes)))
    off = float(np.quantile([sum(abs(draw - sizes * share)) / len(y) for draw in draws], 0.95))
    return (error, max(error - off, 0), min(error + off, 1), len(y)), bins


def brier(p: np.ndarray, y: np.ndarray, seed: int) -> Number:
    """scikit-learn's score, and the bootstrap of its terms."""
    classes = p.shape[1]
    labels = list(range(classes))
    # A row that does not add up to 1 in float64 is refused.
    value = brier_score_loss(y, p / p.sum(1, keepdims=True), labels=labels)
    wrong = int((p.argmax(1) != y).sum())
    if min(wrong, len(y) - wrong) < 10:
        return float(value), None, None, len(y)
    terms = np.array([sum((q - (c == label)) ** 2 for c, q in enumerate(row)) for row, label in zip(p, y, strict=True)])
    terms = terms.astype(float) / (2 if classes == 2 else 1)
    generator = np.random.default_rng(seed)
    means = [terms[generator.integers(len(y), size=len(y))].mean() for _ in range(1000)]
    return float(value), float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975)), len(y)


def expected(
    models: Mapping[str, np.ndarray], y: np.ndarray, groups: Mapping[str, np.ndarray], names: list[str], seed: int
) -> dict[Key, Number]:
    """Every row that a table of these models should have."""
    every = np.ones(len(y), bool)
    parts: list[tuple[str, str | None, str | None, np.ndarray]] = [("overall", None, None, every)]
    parts += [
        ("subgroup", column, str(v), values == v) for column, values in groups.items() for v in sorted(set(values))
    ]
    found: dict[Key, Number] = {}
    for scope, column, value, rows in parts:
        truth = y[rows]
        for model, p in models.items():
            for measure, of, number in _of_part(p[rows], truth, len(names), seed):
                name, at = (None, scope) if of is None else (names[of], "class" if scope == "overall" else scope)
                found[model, measure, at, column, value, name] = number
        for c, name in enumerate(names):
            at = "class" if scope == "overall" else scope
            found["labels", "base_rate", at, column, value, name] = _share(float((truth == c).mean()), len(truth))
        if len(models) > 1:
            right = {model: p[rows].argmax(1) == truth for model, p in models.items()}
            found["difference", "accuracy", scope, column, value, None] = paired(right["student"], right["baseline"])
    for model, p in models.items():
        found |= {(model, *key): number for key, number in _whole(p, y, names, seed).items()}
        for column in groups:
            found |= {(model, *key): number for key, number in _gaps(found, model, column, names).items()}
    if len(models) > 1:
        for c in sorted(set(y.tolist())):
            right = {model: (p.argmax(1) == y)[y == c] for model, p in models.items()}
            found["difference", "recall", "class", None, None, names[c]] = paired(right["student"], right["baseline"])
    return found


def _of_part(p: np.ndarray, y: np.ndarray, classes: int, seed: int) -> Iterator[tuple[str, int | None, Number]]:
    predicted = p.argmax(1)
    yield "accuracy", None, _share(accuracy_score(y, predicted), len(y))
    yield "expected_calibration_error", None, calibration_error(p, y, seed)[0]
    yield "brier_score", None, brier(p, y, seed)
    labels = list(range(classes))
    tables: tuple[tuple[str, Callable[..., Any], np.ndarray], ...] = (
        ("recall", recall_score, y),
        ("precision", precision_score, predicted),
    )
    for name, metric, counted in tables:
        values = metric(y, predicted, labels=labels, average=None, zero_division=0)
        for c in labels:
            if (counted == c).any():
                yield name, c, _share(values[c], int((counted == c).sum()))
    for c in labels:
        yield "selection_rate", c, _share(float((predicted == c).mean()), len(y))
        others = predicted[y != c]
        if len(others):
            yield "false_positive_rate", c, _share(float((others == c).mean()), len(others))


def _whole(p: np.ndarray, y: np.ndarray, names: list[str], seed: int) -> dict[Any, Number]:
    found: dict[Any, Number] = {}
    for at, (confidence, right, total) in enumerate(calibration_error(p, y, seed)[1]):
        found["confidence", "bin", "confidence", str(at), None] = (confidence, None, None, total)
        found["accuracy", "bin", "confidence", str(at), None] = _share(right / total, total)
    matrix = confusion_matrix(y, p.argmax(1), labels=list(range(len(names))))
    for true, named in zip(*np.nonzero(matrix), strict=True):
        total = int(matrix[true].sum())
        found["confusion", "class", "predicted", names[named], names[true]] = _share(matrix[true, named] / total, total)
    return found


def _gaps(found: dict[Key, Number], model: str, column: str, names: list[str]) -> dict[Any, Number]:
    def of(measure: str, name: str | None = None) -> dict[str | None, Number]:
        mine = (model, measure, "subgroup", column, name)
        return {key[4]: number for key, number in found.items() if (*key[:4], key[5]) == mine and key[4] is not None}

    accuracies = of("accuracy")
    worst = min(accuracies, key=lambda value: accuracies[value][0])
    ends = _joint(list(accuracies.values()), len(accuracies))
    out: dict[Any, Number] = {
        ("worst_group_accuracy", "subgroup", column, worst, None): (
            accuracies[worst][0],
            min(low for low, _ in ends),
            min(high for _, high in ends),
            accuracies[worst][3],
        )
    }
    terms = {
        "demographic_parity_difference": ("selection_rate",),
        "equal_opportunity_difference": ("recall",),
        "equalized_odds_difference": ("recall", "false_positive_rate"),
    }
    wanted: list[tuple[str, str | None, tuple[str, ...]]] = [("accuracy_difference", None, ("accuracy",))]
    wanted += [(term, name, measures) for name in names for term, measures in terms.items()]
    for term, name, measures in wanted:
        families = [list(of(measure, name).values()) for measure in measures]
        if any(len(family) > 1 for family in families):
            out[term, "subgroup", column, None, name] = gap(*families)
    return out


def differences(rows: list[dict[str, Any]], wanted: dict[Key, Number], tolerance: float = 1e-9) -> list[str]:
    """Rows of a table that are missing, not wanted, or not the number that they should be."""
    key = ("model", "measure", "scope", "column", "value", "class")
    found = {tuple(row[name] for name in key): row for row in rows}
    problems = [f"{at}: missing" for at in wanted.keys() - found.keys()]
    problems += [f"{at}: has no origin" for at in found.keys() - wanted.keys()]
    if len(found) != len(rows):
        problems.append("rows: repeat a name")
    for at in found.keys() & wanted.keys():
        row = found[at]
        shown = (row["estimate"], row["low"], row["high"], row["count"])
        if any(
            (a is None) != (b is None) or (a is not None and abs(a - b) > tolerance)
            for a, b in zip(shown, wanted[at], strict=True)
        ):
            problems.append(f"{at}: {shown}")
        if row["interval"] != _method(at, row["low"] is not None):
            problems.append(f"{at}: interval {row['interval']}")
    return problems


def _method(at: tuple[Any, ...], given: bool) -> str:
    model, measure = at[:2]
    if model == "difference":
        return "Bonferroni of Clopper-Pearson, paired"
    if measure.endswith("_difference") or measure == "worst_group_accuracy":
        return "Bonferroni of Clopper-Pearson"
    methods = {"expected_calibration_error": "binomial bootstrap within bins", "brier_score": "percentile bootstrap"}
    return methods.get(measure, "Clopper-Pearson") if given else "none"
