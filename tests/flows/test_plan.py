"""`pate plan`: noise for a target and back, defaults, forecasts, charts, and one line for every mistake."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accounting.cost import guarantee
from accounting.events import ConfidentGNMax, GNMax, LNMax
from accounting.mechanism_calibration import noise_for
from data.errors import UserError
from flows.forecast import assumed_votes, outcomes
from tests.accounting import oracles

Pate = Callable[..., tuple[int, dict[str, Any], str]]

SMALL = ("plan", "--teachers", 250, "--classes", 10, "--answers", 300)
KEYS = {
    "epsilon", "delta", "sigma", "threshold", "threshold_sigma", "scale", "mechanism", "max_queries", "max_answers",
    "method",
}  # fmt: skip


def test_a_target_gives_noise_and_the_noise_gives_the_target_back(pate: Pate) -> None:
    """ε 0.47 for 100 answers needs σ of at most 93; that σ costs the same ε."""
    options = ("plan", "--teachers", 500, "--classes", 10, "--delta", 1e-5, "--answers", 100)
    code, found, _ = pate(*options, "--epsilon", 0.47, "--json")
    assert code == 0
    assert set(found) >= KEYS
    assert 80 < found["sigma"] <= 93
    assert 0.465 < found["epsilon"] <= 0.47
    assert (found["mechanism"], found["max_queries"], found["max_answers"]) == ("gnmax", 100, 100)
    assert found["threshold"] is found["threshold_sigma"] is found["scale"] is None
    _, back, _ = pate(*options, "--sigma", found["sigma"], "--json")
    assert back["epsilon"] == found["epsilon"]
    assert back["epsilon"] == guarantee(GNMax(found["sigma"], 100), 1e-5).epsilon


@pytest.mark.slow
@pytest.mark.parametrize("extra", [(), ("--threshold-sigma", 150, "--threshold", 200, "--queries", 640)])
def test_a_confident_plan_meets_its_target_and_little_less_noise_does_not(pate: Pate, extra: tuple[Any, ...]) -> None:
    """Whether the test's noise is given or grows with σ: the cost is at most ε, and above it with 1% less noise."""
    code, found, _ = pate(*SMALL, "--epsilon", 2, "--mechanism", "confident-gnmax", *extra, "--json")
    assert code == 0
    event = ConfidentGNMax(
        found["sigma"], found["threshold"], found["threshold_sigma"], found["max_queries"], found["max_answers"]
    )
    assert guarantee(event, 1e-5).epsilon == found["epsilon"]
    assert 1.99 < found["epsilon"] <= 2
    if extra:
        assert (found["threshold_sigma"], found["threshold"], found["max_queries"]) == (150, 200, 640)
        test = found["threshold_sigma"]
    else:
        assert (found["threshold"], found["max_queries"]) == (200, 600)
        assert found["threshold_sigma"] == pytest.approx(4 * found["sigma"], rel=1e-5)
        test = found["threshold_sigma"] * 0.99
    less = ConfidentGNMax(found["sigma"] * 0.99, found["threshold"], test, found["max_queries"], 300)
    assert guarantee(less, 1e-5).epsilon > 2


def test_laplace_noise_is_planned_by_its_scale(pate: Pate) -> None:
    """lnmax: --scale gives ε, with neither σ nor threshold."""
    code, found, _ = pate(*SMALL, "--scale", 150, "--mechanism", "lnmax", "--json")
    assert code == 0
    assert (found["scale"], found["sigma"], found["threshold"]) == (150, None, None)
    assert found["epsilon"] == guarantee(LNMax(150.0, 300), 1e-5).epsilon


@pytest.mark.parametrize(("answers", "target"), [(20, 3.0)])
def test_the_noise_found_is_the_smallest(answers: int, target: float) -> None:
    """The target is met within 0.2%, never passed."""
    sigma = noise_for(lambda noise: GNMax(noise, answers), target, 1e-5)
    assert target * 0.998 < guarantee(GNMax(sigma, answers), 1e-5).epsilon <= target


def test_a_tiny_target_still_has_noise(pate: Pate) -> None:
    """A target below what conversion adds is met where the whole law moves by less than δ."""
    code, found, _ = pate(*SMALL, "--epsilon", 1e-9, "--mechanism", "confident-gnmax", "--json")
    assert code == 0
    assert found["epsilon"] == 0


def test_the_thresholds_noise_may_leave_nothing(pate: Pate) -> None:
    """Where the tests alone cost more than the target no σ helps, and the message says so."""
    code, _, said = pate(*SMALL, "--epsilon", 0.5, "--mechanism", "confident-gnmax", "--threshold-sigma", 5, "--json")
    assert code == 2
    assert "--threshold-sigma = 5" in said


def test_an_interactive_plan_costs_what_a_confident_one_does(pate: Pate) -> None:
    """Its threshold defaults to half the teachers; a forecast is refused, since it depends on a student."""
    options = ("--sigma", 40, "--threshold-sigma", 150, "--queries", 600)
    _, interactive, _ = pate(*SMALL, *options, "--mechanism", "interactive-gnmax", "--json")
    _, confident, _ = pate(*SMALL, *options, "--mechanism", "confident-gnmax", "--json")
    assert interactive["epsilon"] == confident["epsilon"]
    assert (interactive["threshold"], confident["threshold"]) == (125, 200)
    assert pate(*SMALL, *options, "--mechanism", "interactive-gnmax", "--consensus", 0.9)[0] == 2


@pytest.mark.parametrize("event", [GNMax(3.0, 50), LNMax(2.0, 50), ConfidentGNMax(3.0, 9.0, 2.0, 20, 12)])
def test_a_forecast_is_the_mechanisms_law(event: GNMax | LNMax | ConfidentGNMax) -> None:
    """Agreement and answers of two histograms, against quadrature and against simulated runs of the tests."""
    votes = np.array([[9.0, 3.0, 2.0], [6.0, 6.0, 2.0]])
    law = oracles.lnmax_law if isinstance(event, LNMax) else oracles.gnmax_law
    noise = event.scale if isinstance(event, LNMax) else event.sigma
    wins = [[float(p) for p in law(tuple(int(v) for v in row), noise)] for row in votes]
    right = np.array([wins[0][0], wins[1][0] + wins[1][1]])
    answered, agreement = outcomes(votes, event)
    assert agreement is not None
    if not isinstance(event, ConfidentGNMax):
        assert answered == 50
        assert agreement == pytest.approx(right.mean(), rel=1e-9)
        return
    random = np.random.default_rng(7)
    chosen = random.integers(0, 2, (20_000, event.queries))
    passes = votes.max(axis=1)[chosen] + random.normal(0, event.threshold_sigma, chosen.shape) >= event.threshold
    assert answered == pytest.approx(np.minimum(passes.sum(axis=1), event.answers).mean(), abs=0.05)
    weights = np.array([passes[chosen == k].mean() for k in (0, 1)])
    assert agreement == pytest.approx((weights * right).sum() / weights.sum(), abs=5e-3)


def test_assumed_votes_are_whole_and_even() -> None:
    """All votes are cast, the first class has its share and the plurality, the others differ by at most one."""
    for teachers, classes, consensus in itertools.product((1, 7, 250), (2, 3, 10), (0.51, 0.77, 1.0)):
        (votes,) = assumed_votes(teachers, classes, consensus)
        assert votes.sum() == teachers
        assert votes[0] == votes.max()
        assert votes[0] == round(teachers * consensus) or votes[0] == -(-teachers // classes)
        assert votes[1:].max() - votes[1:].min() <= 1


def test_a_pilots_votes_forecast_labels_and_whether_a_test_pays(pate: Pate, tmp_path: Path) -> None:
    """Unanimous public votes: nearly all answered, all right, and a tested release costs less."""
    file = tmp_path / "pilot.npy"
    np.save(file, np.tile([250] + [0] * 9, (600, 1)))
    options = ("--sigma", 40, "--mechanism", "confident-gnmax", "--threshold-sigma", 10, "--pilot", file, "--json")
    code, found, _ = pate(*SMALL, *options)
    assert code == 0
    assert found["expected_answered"] == pytest.approx(300)
    assert found["label_agreement"] == pytest.approx(1, abs=1e-4)
    assert found["tested"]["pays"]
    assert found["tested"]["epsilon"] < found["epsilon"]
    # A pilot of fewer queries than the cap says nothing of the whole run's cost.
    np.save(file, np.tile([250] + [0] * 9, (599, 1)))
    assert pate(*SMALL, *options)[1]["tested"] is None


def test_real_votes_of_a_pilot(pate: Pate, test_data: Path) -> None:
    """MNIST's teachers: some 96.7% of the labels are the plurality's, 279.6 of 283 answers are expected."""
    code, found, _ = pate(
        "plan", "--teachers", 250, "--classes", 10, "--answers", 283, "--queries", 640, "--sigma", 40,
        "--mechanism", "confident-gnmax", "--threshold", 200, "--threshold-sigma", 150,
        "--pilot", test_data / "votes" / "mnist_250_teachers.npy", "--json",
    )  # fmt: skip
    assert code == 0
    assert found["epsilon"] < 2.15
    assert found["expected_answered"] == pytest.approx(279.6, abs=0.1)
    assert found["label_agreement"] == pytest.approx(0.967, abs=1e-3)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_plot_is_a_file_that_stands_alone(pate: Pate, tmp_path: Path, ending: str) -> None:
    """A chart is written whole, and named in the result."""
    file = tmp_path / f"plan.{ending}"
    code, found, _ = pate(*SMALL, "--sigma", 80, "--plot", file, "--json")
    assert code == 0
    assert found["plot"] == str(file)
    begins = b"\x89PNG" if ending == "png" else b"<?xml"
    assert file.read_bytes().startswith(begins)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--sigma", 0), "--sigma = 0"),
        (("--sigma", "nan"), "--sigma = nan"),
        (("--sigma", "inf"), "--sigma = inf"),
        (("--epsilon", "nan"), "epsilon = nan"),
        (("--epsilon", -1), "epsilon = -1"),
        ((), "--epsilon, --sigma"),
        (("--epsilon", 1, "--sigma", 40), "--epsilon, --sigma"),
        (("--sigma", 40, "--delta", 0), "delta = 0"),
        (("--sigma", 40, "--delta", 1), "delta = 1"),
        (("--sigma", 40, "--delta", "nan"), "delta = nan"),
        (("--sigma", 40, "--teachers", 0), "--teachers = 0"),
        (("--sigma", 40, "--classes", 1), "--classes = 1"),
        (("--sigma", 40, "--answers", 0), "--answers = 0"),
        (("--sigma", 40, "--answers", 2.5), "--answers"),
        (("--scale", 40), "--scale"),
        (("--sigma", 40, "--mechanism", "lnmax"), "--sigma"),
        (("--sigma", 40, "--mechanism", "x"), "--mechanism = 'x'"),
        (("--sigma", 40, "--threshold", 5), "--threshold"),
        (("--sigma", 40, "--queries", 7), "--queries = 7"),
        (("--sigma", 40, "--queries", 7, "--mechanism", "confident-gnmax"), "--queries = 7"),
        (("--sigma", 40, "--threshold", "nan", "--mechanism", "confident-gnmax"), "--threshold = nan"),
        (("--sigma", 40, "--threshold-sigma", 0, "--mechanism", "confident-gnmax"), "--threshold-sigma = 0"),
        (("--sigma", 40, "--consensus", 0.1), "--consensus = 0.1"),
        (("--sigma", 40, "--consensus", "nan"), "--consensus = nan"),
        (("--sigma", 40, "--pilot", "nowhere.npy"), "--pilot = 'nowhere.npy'"),
        (("--sigma", 40, "--plot", "x.pdf"), "--plot = 'x.pdf'"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(pate: Pate, options: tuple[Any, ...], named: str) -> None:
    """Exit code 2, one line on standard error, and it names the option."""
    code, found, said = pate(*SMALL, *options, "--json")
    assert code == 2
    assert found["exit_code"] == 2
    assert len(said.strip().splitlines()) == 1
    assert named in said


def test_a_pilot_of_another_plan_is_refused(pate: Pate, tmp_path: Path) -> None:
    """Its rows are of as many teachers and classes as are planned."""
    file = tmp_path / "pilot.npy"
    np.save(file, np.full((4, 10), 25))
    assert pate("plan", "--teachers", 249, "--classes", 10, "--answers", 3, "--sigma", 9, "--pilot", file)[0] == 2
    assert pate("plan", "--teachers", 250, "--classes", 9, "--answers", 3, "--sigma", 9, "--pilot", file)[0] == 2
    with pytest.raises(UserError, match="too small"):
        noise_for(lambda noise: ConfidentGNMax(noise, 1.0, 1.0, 10_000, 10), 0.1, 1e-5)
