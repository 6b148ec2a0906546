"""Training the student: what the unlabelled pool is worth, repeatability, and the edges."""

from typing import Any

import numpy as np
import pytest
import torch

from data.errors import UserError
from data.examples import Examples
from student import training
from student.evaluation import evaluate
from student.queries import choose
from student.settings import QuerySettings, StudentSettings
from student.training import probabilities, train
from tests.student.digits_data import noisy, parts

TREES = {"model": "sklearn:sklearn.ensemble.ExtraTreesClassifier", "params": {"n_estimators": 50}}


def table(rows: int, seed: int) -> tuple[Examples, np.ndarray]:
    """Two interleaved half circles with two columns of noise, and their labels."""
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % 2
    angle = rng.uniform(0, np.pi, rows)
    circles = np.where(
        labels[:, None] == 0, np.c_[np.cos(angle), np.sin(angle)], np.c_[1 - np.cos(angle), 0.5 - np.sin(angle)]
    )
    return Examples(
        np.c_[circles + rng.normal(0, 0.1, (rows, 2)), rng.normal(0, 0.1, (rows, 2))].astype(np.float32),
        np.arange(rows),
    ), labels


def accuracy(model: Any, examples: Examples, labels: np.ndarray, classes: int = 10) -> float:
    found = evaluate(probabilities(model, examples.features, classes), labels).overall.accuracy
    assert found is not None
    return found


@pytest.mark.slow
def test_the_unlabelled_pool_makes_a_better_student() -> None:
    """On digits with 24 prototypes, one label in twenty wrong, spreading beats the labels alone clearly."""
    methods = {
        "supervised": StudentSettings(method="supervised"),
        "spreading": StudentSettings(method="label-spreading"),
    }
    found: dict[str, list[float]] = {name: [] for name in methods}
    for seed in range(5):
        public, truth, test = parts(seed)
        rows = choose(public, QuerySettings(strategy="prototypes", count=24), seed)
        given = noisy(truth[rows], 0.05, seed)
        for name, settings in methods.items():
            model = train(public, rows, given, settings, seed, 10)
            assert test.labels is not None
            found[name].append(accuracy(model, test, test.labels))
    assert np.mean(found["spreading"]) >= np.mean(found["supervised"]) + 0.03
    assert np.mean(found["spreading"]) >= 0.83


@pytest.mark.parametrize("method", ["self-training", "label-spreading"])
def test_a_table_s_pool_is_worth_something_too(method: Any) -> None:
    """With ten labels of two half circles, a forest that uses the pool does no worse than one on the labels alone."""
    alone, pooled = [], []
    for seed in range(6):
        public, truth = table(400, seed)
        rows = np.random.default_rng(seed).permutation(400)[:10]
        for kind, out in (("supervised", alone), (method, pooled)):
            settings = StudentSettings(method=kind, components=4, **TREES)
            fresh, labels = table(500, seed + 100)
            out.append(accuracy(train(public, rows, truth[rows], settings, seed, 2), fresh, labels, 2))
    assert np.mean(pooled) >= np.mean(alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        StudentSettings(method="self-training", iterations=1, epochs=5),
        StudentSettings(method="label-spreading", model="cnn", epochs=5),
        StudentSettings(method="label-spreading", **TREES),
    ],
    ids=["mlp", "cnn", "trees"],
)
def test_the_same_seed_gives_the_same_student(settings: StudentSettings) -> None:
    """Bit for bit, and without touching torch's or numpy's global generators; another seed gives another student."""
    public, truth, test = parts(0)
    rows = choose(public, QuerySettings(strategy="random", count=40), 0)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, second, other = (
        probabilities(train(public, rows, truth[rows], settings, seed, 10), test.features, 10) for seed in (5, 5, 6)
    )
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_abstention_is_no_label() -> None:
    """Rows that the teachers abstained on train the same student as rows never asked about."""
    public, truth, test = parts(0)
    rows = np.arange(30)
    given = np.where(rows % 3 == 0, -1, truth[rows])
    settings = StudentSettings(method="label-spreading", **TREES)
    with_them = train(public, rows, given, settings, 0, 10)
    without = train(public, rows[given >= 0], given[given >= 0], settings, 0, 10)
    assert np.array_equal(probabilities(with_them, test.features, 10), probabilities(without, test.features, 10))


def test_without_any_label_there_is_no_student() -> None:
    """All abstained, or nothing asked: one line says so."""
    public, _ = table(20, 0)
    for rows, labels in ((np.arange(5), np.full(5, -1)), (np.zeros(0, int), np.zeros(0, int))):
        with pytest.raises(UserError, match="none was released"):
            train(public, rows, labels, StudentSettings(), 0, 2)


def test_one_class_among_the_labels_gives_a_constant_student() -> None:
    """A network then always answers that class; an estimator that needs two says so in one line."""
    public, _, _ = parts(0)
    rows = np.arange(6)
    for method in ("supervised", "self-training", "label-spreading"):
        settings = StudentSettings(method=method, epochs=2, iterations=1)  # type: ignore[arg-type]
        model = train(public, rows, np.full(6, 4), settings, 0, 10)
        assert (probabilities(model, public.features, 10).argmax(1) == 4).all()
    with pytest.raises(UserError, match=r"student\.model = .* 6 labels of 1 classes"):
        train(public, rows, np.full(6, 4), StudentSettings(method="supervised", model="sklearn:sklearn.svm.SVC"), 0, 10)


@pytest.mark.parametrize(("rows", "labels"), [([0, 20], [0, 1]), ([-1, 2], [0, 1]), ([0, 1], [0, 2]), ([0, 1], [0])])
def test_labels_that_fit_no_public_row_or_class_are_refused(rows: list[int], labels: list[int]) -> None:
    """Rows outside the pool, classes that are not, and lengths that differ are errors before any training."""
    public, _ = table(20, 0)
    with pytest.raises(UserError, match="labels: must be"):
        train(public, np.array(rows), np.array(labels), StudentSettings(), 0, 2)


@pytest.mark.parametrize(("method", "steps"), [("supervised", 1), ("self-training", 3), ("label-spreading", 2)])
def test_progress_counts_to_its_total(method: Any, steps: int) -> None:
    """The bar moves by one a step and ends full."""
    public, truth = table(60, 0)
    calls: list[tuple[int, int]] = []
    settings = StudentSettings(method=method, iterations=2, **TREES)
    train(public, np.arange(10), truth[:10], settings, 0, 2, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(i + 1, steps) for i in range(steps)]


@pytest.mark.slow
def test_a_pool_too_large_for_a_graph_is_sampled_with_its_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a larger pool a sample is used that holds every labelled input."""
    monkeypatch.setattr(training, "LARGEST_POOL", 300)
    public, truth = table(3_000, 0)
    rows = np.random.default_rng(0).permutation(3_000)[:60]
    model = train(public, rows, truth[rows], StudentSettings(method="label-spreading", components=4, **TREES), 0, 2)
    assert accuracy(model, public, truth, 2) > 0.95
