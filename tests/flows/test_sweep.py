"""`pate sweep`: what a simulation leaves, what real points charge and share, resuming, and one line a mistake."""

import copy
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from scipy.stats import t as student_t

from accounting.cost import guarantee
from accounting.events import ConfidentGNMax, GNMax, LNMax
from accounting.ledger import open_ledger
from aggregation.settings import AggregationSettings
from data.errors import UserError
from data.store import digest, read_manifest
from flows import config
from flows.console import Console, console
from flows.context import run_of
from flows.settings import Settings
from flows.sharing import SHARED, take_over
from flows.sweep import NOT_FOR_RELEASE, Options, sweep
from flows.sweep_points import parse_epsilons, points, scaled_noise, score
from flows.sweep_simulation import answered
from tests.flows.small import SMALL

Pate = Callable[..., tuple[int, dict[str, Any], str]]

# Laplace noise is calibrated in a moment: its guarantee needs no search for a certificate.
TINY: dict[str, Any] = SMALL | {
    "name": "tiny",
    "teachers": {"count": 10, "model": "logistic", "epochs": 3, "batch_size": 32, "learning_rate": 0.05, "chunk": 5},
    "queries": {"strategy": "random", "count": 12},
    "aggregation": {"mechanism": "lnmax", "scale": 3.0, "delta": 1.0e-4},
    "student": {"method": "supervised", "model": "logistic", "epochs": 2},
    "baseline": {"model": "logistic", "steps": 2},
}
QUIET = console(quiet=True)


def tiny(root: Path, **data: Any) -> Settings:
    """The tiny settings with a run root of their own; ``data``: changed fields of the data part."""
    record = copy.deepcopy(TINY) | {"run_root": str(root)}
    record["data"] |= data
    return config.build(record)


def mode(path: Path) -> int:
    """The permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    "text", ["", ",", "1,,2", "x", "1;2", "0", "-1", "nan", "inf", "1,0.5,1", "0.5,0.50", "1,1.0000001"]
)
def test_a_list_that_is_no_list_of_epsilons_is_refused(text: str) -> None:
    """Malformed, not above 0, not finite, or twice the same: the message names option, value and rule."""
    with pytest.raises(UserError, match=r"--epsilon = .*(must be a finite number above 0|more than once)"):
        parse_epsilons(text)


@pytest.mark.parametrize(
    ("options", "data", "expected"),
    [
        (Options("1", simulate=True), {"public_benchmark": False}, "data.public_benchmark = false: --simulate"),
        (Options(), {}, "--epsilon: must be given without --simulate: every point is a release"),
        (Options("1", seeds=3), {}, "--seeds = 3: is for --simulate"),
        (Options("1", simulate=True, seeds=0), {}, "--seeds = 0: must be at least 1"),
        (Options("1", simulate=True), {"test": None}, "data.test: must name a labelled part"),
        (Options("1"), {"test": None}, "data.test: must name a labelled part"),
        (Options("1e-300", simulate=True), {}, "--epsilon: 1e-300 cannot be reached with these caps"),
        (Options("1", simulate=True, out=Path("runs/tiny/release/x")), {}, "lies in a release folder"),
        (Options("1", out=Path(__file__)), {}, "cannot be made"),
    ],
    ids=["not-public", "no-epsilon", "seeds", "no-seeds", "no-test", "no-test-released", "small", "release", "file"],
)  # fmt: skip
def test_a_sweep_that_cannot_be_leaves_nothing(
    tmp_path: Path, options: Options, data: dict[str, Any], expected: str
) -> None:
    """One line, before anything is trained: no run, no ledger, no result."""
    with pytest.raises(UserError) as refused:
        sweep(tiny(tmp_path / "runs", **data), options, QUIET)
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]


def test_the_command_line_says_it_in_one_line(pate: Pate, tmp_path: Path) -> None:
    """Exit code 2, one line on standard error, and the same in JSON."""
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(TINY))
    code, result, err = pate("sweep", file, "--epsilon", "1,x", "--simulate", "--json")
    assert (code, result["exit_code"]) == (2, 2)
    assert result["error"].startswith("--epsilon = '1,x': 'x' must be a finite number above 0")
    assert len(err.strip().splitlines()) == 1


def test_a_point_costs_its_epsilon_and_its_baseline_the_same(tmp_path: Path) -> None:
    """Noise alone changes: caps, teachers and queries are the config's; what is published is at most the target."""
    settings = tiny(tmp_path)
    for point in points(settings, (0.5, 3.0)):
        assert isinstance(point.event, LNMax)
        assert point.event.answers == 12
        assert guarantee(point.event, 1e-4).epsilon == point.epsilon
        assert 0.995 * point.target < point.epsilon <= point.target
        assert point.baseline_epsilon is not None
        assert 0.99 * point.epsilon < point.baseline_epsilon <= point.epsilon
        assert point.settings.name == f"tiny-eps-{point.target:g}"
        for part in ("seed", "data", "teachers", "queries", "student"):
            assert getattr(point.settings, part) == getattr(settings, part)


def test_a_threshold_stays_and_its_noise_grows_with_sigma() -> None:
    """As `pate plan` has it: T in teachers who agree, σ_T in proportion to σ, here as the config has them."""
    given = AggregationSettings(
        mechanism="confident-gnmax", sigma=40, threshold=200, threshold_sigma=150, max_answers=9
    )
    found = scaled_noise(given)(20.0)
    assert (found.sigma, found.threshold, found.threshold_sigma, found.max_answers) == (20.0, 200, 75.0, 9)
    assert scaled_noise(AggregationSettings(mechanism="gnmax", sigma=40))(7.0).sigma == 7.0


def test_intervals_of_one_and_of_several() -> None:
    """One model keeps its own interval; of several, Student's interval of the mean, within [0, 1]; a gap stays one."""
    records = [{"accuracy": a, "low": a - 0.1, "high": a + 0.05, "count": 50} for a in (0.90, 0.92, 0.97)]
    one = score(records[:1])
    assert one is not None
    assert (one.low, one.high, one.interval) == (pytest.approx(0.8), pytest.approx(0.95), "clopper-pearson")
    several = score(records)
    assert several is not None
    accuracies = [0.90, 0.92, 0.97]
    expected = student_t.interval(0.95, 2, np.mean(accuracies), np.std(accuracies, ddof=1) / np.sqrt(3))
    assert (several.low, several.high) == (pytest.approx(expected[0]), pytest.approx(min(expected[1], 1.0)))
    assert (several.repetitions, several.interval) == (3, "student-t")
    assert score([]) is None
    assert score([*records, {"accuracy": None}]) is None


def test_a_simulated_drawing_is_noisy_and_capped() -> None:
    """On even votes two drawings differ; no more is asked than the caps allow, nothing after the last answer."""
    votes = np.full((300, 5), 10, np.int64)
    first, second = (answered(votes, GNMax(20.0, 200)) for _ in range(2))
    assert len(first) == len(second) == 200
    assert (first != second).any()
    tested = answered(votes, ConfidentGNMax(5.0, 0.0, 5.0, 250, 40))
    assert (tested >= 0).sum() <= 40
    assert len(tested) <= 250
    assert tested[-1] >= 0


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The run root and the result of a simulated sweep of two points, drawn twice. Tests must not change it."""
    root = tmp_path_factory.mktemp("simulated")
    return root, sweep(tiny(root), Options("20,2", simulate=True, seeds=2), QUIET)


@pytest.mark.slow
def test_a_simulation_is_marked_and_leaves_no_release_and_no_charge(simulated: tuple[Path, dict[str, Any]]) -> None:
    """Picture, Parquet and JSON say what they are; files are for the owner alone; there is no ledger, no release."""
    root, result = simulated
    assert result["note"] == NOT_FOR_RELEASE
    assert NOT_FOR_RELEASE in Path(result["svg"]).read_text()
    table = pq.read_table(result["parquet"])
    assert table.schema.metadata[b"pate.note"].decode() == NOT_FOR_RELEASE
    assert set(table["simulated"].to_pylist()) == {True}
    assert table["model"].to_pylist() == ["student", "baseline", "student", "baseline", "nonprivate"]
    assert table["target"].to_pylist() == [2, 2, 20, 20, None]
    assert not list(root.rglob("*.sqlite"))
    assert not list(root.rglob("release"))
    folder = Path(result["parquet"]).parent
    assert mode(folder) == 0o700
    assert all(mode(path) == 0o600 for path in folder.rglob("*") if path.is_file())
    assert Path(result["png"]).stat().st_size > 10_000
    for row in table.to_pylist():
        assert 0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1
    assert table["answered"].to_pylist() == [12, None, 12, None, None]


@pytest.mark.slow
def test_a_simulation_goes_on_where_it_was(simulated: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Of finished trials none is drawn again, after an interruption either; other ε are added to them."""
    root = Path(shutil.copytree(simulated[0], tmp_path / "runs"))
    trials = root / "tiny-sweep" / "private" / "trials"
    kept = {path: digest(path) for path in trials.iterdir()}
    assert len(kept) == 9
    lost = next(path for path in sorted(kept) if path.name.startswith("student"))
    lost.unlink()
    out = tmp_path / "figures"
    result = sweep(tiny(root), Options("2,20,50", simulate=True, seeds=2, out=out), QUIET)
    assert len(list(trials.iterdir())) == 13
    assert all(digest(path) == before for path, before in kept.items() if path != lost)
    assert lost.exists()
    assert [point["target"] for point in result["points"]] == [2, 20, 50]
    assert {path.name for path in out.iterdir()} == {"sweep.parquet", "sweep.png", "sweep.svg"}
    assert mode(out) == 0o700
    assert mode(out / "sweep.png") == 0o600


def charges(root: Path) -> list[tuple[str, str, str]]:
    """(run without its id, stage, state) of every event."""
    events = open_ledger(f"sqlite:///{root}/ledger.sqlite").events("digits")
    return [(event.run.rpartition("-")[0], event.stage, event.state) for event in events]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    """A real sweep of two points of data that are no public benchmark, interrupted once in the second point.

    Gives the run root, the result, and what was said. Tests must not change it.
    """
    root = tmp_path_factory.mktemp("released")
    settings, options = tiny(root, public_benchmark=False), Options("2,20")
    said: list[str] = []

    def bar(title: str) -> Callable[[int, int], None]:
        if title == "baseline" and any("tiny-eps-20" in line for line in said):
            raise KeyboardInterrupt
        return lambda done, total: None

    with pytest.raises(KeyboardInterrupt):
        sweep(settings, options, Console(said.append, bar))
    assert not (root / "tiny-sweep" / "sweep.parquet").exists()
    states = [state for _, _, state in charges(root)]
    assert states == ["committed", "committed", "committed", "drawing"]
    return root, sweep(settings, options, Console(said.append, lambda title: lambda done, total: None)), said


@pytest.mark.slow
def test_each_released_point_is_charged_once_for_itself(released: tuple[Path, dict[str, Any], list[str]]) -> None:
    """Labels and baseline of both points, reserved together and said before; the interruption cost nothing."""
    root, result, said = released
    assert charges(root) == [
        (f"tiny-eps-{target}", stage, "committed") for target in (2, 20) for stage in ("aggregate", "baseline")
    ]
    told = next(line for line in said if line.startswith("sweep: 4 releases"))
    assert "goes from ε = 0 to" in told
    assert said.index(told) < next(at for at, line in enumerate(said) if line.startswith("teach: "))
    assert result["ledger_spent"] == open_ledger(f"sqlite:///{root}/ledger.sqlite").spent("digits")
    for point in result["points"]:
        release = Path(point["release"])
        assert pq.read_schema(release / "labels.parquet").metadata[b"pate.epsilon"]
        assert (release / "report.html").exists()
    table = pq.read_table(result["parquet"])
    # Nothing without privacy is shown of data that are not declared public.
    assert table["model"].to_pylist() == ["student", "baseline", "student", "baseline"]
    assert result["note"] is None
    assert result["nonprivate"] is None
    assert NOT_FOR_RELEASE not in Path(result["svg"]).read_text()


@pytest.mark.slow
def test_teachers_are_trained_once_and_each_point_is_a_run(
    released: tuple[Path, dict[str, Any], list[str]], tmp_path: Path, pate: Pate
) -> None:
    """The same files behind two runs with ids of their own; `pate run` on one of them finds nothing to do."""
    root, _, said = released
    assert sum(line.startswith("teach: 10 teachers") for line in said) == 1
    runs = [run_of(config.build(TINY | {"run_root": str(root), "name": f"tiny-eps-{e}"})) for e in (2, 20)]
    first, second = (read_manifest(run) for run in runs)
    assert first.run_id != second.run_id
    assert all(first.stages[name].outputs == second.stages[name].outputs for name in SHARED[1:])
    assert (runs[0].private / "votes.parquet").samefile(runs[1].private / "votes.parquet")
    assert not (runs[0].release / "queries.parquet").samefile(runs[1].release / "queries.parquet")
    assert (runs[0].private / "outcomes.journal").read_text() != (runs[1].private / "outcomes.journal").read_text()
    copied = Path(shutil.copytree(root, tmp_path / "runs"))
    before = digest(copied / "ledger.sqlite")
    file = tmp_path / "point.yaml"
    file.write_text((copied / "tiny-eps-20" / "settings.yaml").read_text().replace(str(root), str(copied)))
    code, result, _ = pate("run", file, "--no-prefect", "--json")
    assert code == 0
    assert len(result["reused"]) == 8
    # Nor has the sweep: everything is read again, nothing drawn.
    again = sweep(tiny(copied, public_benchmark=False), Options("20,2"), QUIET)
    assert [point["student"] for point in again["points"]] == [point["student"] for point in released[1]["points"]]
    assert digest(copied / "ledger.sqlite") == before


@pytest.mark.slow
def test_what_is_damaged_is_not_taken_over(released: tuple[Path, dict[str, Any], list[str]], tmp_path: Path) -> None:
    """A run takes partition, teachers and votes from one that holds them whole; and nothing drawn."""
    root = Path(shutil.copytree(released[0], tmp_path / "runs"))
    settings = tiny(root, public_benchmark=False)
    source = run_of(config.build(settings.model_dump() | {"name": "tiny-eps-2"}))
    other = config.build(settings.model_dump() | {"name": "other"})
    votes = source.private / "votes.parquet"
    whole = votes.read_bytes()
    votes.unlink()
    votes.write_bytes(whole + b"x")
    take_over(other, [source], QUIET)
    assert not (run_of(other).private / "votes.parquet").exists()
    votes.write_bytes(whole)
    take_over(other, [source], QUIET)
    assert set(read_manifest(run_of(other)).stages) == set(SHARED) - {"pretrain"}
    taken = {path.name for path in run_of(other).private.iterdir()}
    assert taken == {"partition.parquet", "teachers", "votes.parquet", "manifest.json", ".lock"}
    assert mode(run_of(other).private / "teachers") == 0o700


@pytest.mark.slow
def test_a_limit_below_the_total_refuses_the_whole_sweep(pate: Pate, tmp_path: Path) -> None:
    """Exit code 3: though the first point alone would fit, nothing is charged, trained or released."""
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(TINY | {"ledger": {"epsilon": 8}}))
    code, result, err = pate("sweep", file, "--epsilon", "0.1,5", "--set", f"run_root={tmp_path}/runs", "--json")
    assert code == 3
    assert "nothing was spent, nothing released" in result["error"]
    assert "and 1 more" in result["error"]
    assert "sweep: 4 releases" in err
    assert charges(tmp_path / "runs") == []
    assert not list(tmp_path.rglob("labels.parquet"))
    assert not list(tmp_path.rglob("teachers"))
