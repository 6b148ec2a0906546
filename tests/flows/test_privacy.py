"""`pate privacy`: the specification's numbers, every kind of file, charged draws, one line for each mistake."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from accounting import exact, numbers, sanitized
from accounting.events import ConfidentGNMax, GNMax, InteractiveGNMax
from accounting.ledger import open_ledger
from aggregation import journal
from flows import privacy_account, privacy_draw, votes_file
from flows.privacy import Options, vote_blocks
from flows.privacy_figure import ORDERS, curves_of

Pate = Callable[..., tuple[int, dict[str, Any], str]]

# σ, T, σ_T of a mechanism that is quick to certify.
MECHANISM = ("--sigma", 40, "--threshold", 80, "--threshold-sigma", 40)
EVENT = ConfidentGNMax(40.0, 80.0, 40.0, 30, 30)
DRAW = ("--draw", "--dataset", "clinic", "--order", 16)
OPEN = ("--unit", "patient", "--limit", 3)


def _votes(rows: int = 30) -> np.ndarray:
    return np.random.default_rng(2).multinomial(200, [0.98, 0.01, 0.01], size=rows)


@pytest.fixture
def votes(tmp_path: Path) -> Path:
    """30 queries of 200 teachers, 3 classes."""
    np.save(tmp_path / "votes.npy", _votes())
    return tmp_path / "votes.npy"


@pytest.mark.slow
def test_the_specifications_numbers(pate: Pate, test_data: Path) -> None:
    """MNIST of the literature: every key, and each number within its bounds; the classic conversion beside it."""
    command = (
        "privacy", test_data / "votes" / "mnist_250_teachers.npy", "--mechanism", "confident-gnmax", "--sigma", 40,
        "--threshold", 200, "--threshold-sigma", 150, "--queries", 640, "--max-answers", 283, "--delta", 1e-5,
    )  # fmt: skip
    code, found, _ = pate(*command, "--sanitize", "--order", 10, "--json")
    assert code == 0
    facts = {key: found[key] for key in ("queries", "teachers", "classes", "delta", "mechanism")}
    assert facts == {
        "queries": 640, "teachers": 250, "classes": 10, "delta": 1e-5, "mechanism": "confident-gnmax",
    }  # fmt: skip
    assert found["expected_answered"] == pytest.approx(282.72, abs=0.005)
    epsilon = found["epsilon"]
    assert epsilon["data_dependent_exact"]["epsilon"] <= 0.924
    assert epsilon["data_dependent"]["epsilon"] <= 1.18
    assert epsilon["data_independent"]["epsilon"] <= 2.03
    assert epsilon["data_dependent_p18"]["epsilon"] == pytest.approx(1.712, abs=5e-4)
    assert epsilon["sanitized"]["epsilon"] <= 1.62
    assert epsilon["sanitized"]["noise_std"] <= 0.25
    assert epsilon["sanitized"]["order"] == 10
    for name, number in epsilon.items():
        assert {"epsilon", "order", "publishable"} <= set(number)
        assert number["publishable"] == (name in ("textbook", "data_independent"))
    for name in ("data_dependent", "data_dependent_exact"):
        assert 0 < epsilon[name]["forward"] <= epsilon[name]["epsilon"]
    code, classic, _ = pate(*command, "--conversion", "classic", "--json")
    assert classic["epsilon"]["data_dependent_p18"]["epsilon"] == pytest.approx(1.999, abs=5e-4)
    assert set(classic["epsilon"]) == set(epsilon) - {"sanitized"}


def test_people_read_names_and_whether_each_may_be_published(
    pate: Pate, votes: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from flows.cli import run_command

    assert run_command(["privacy", str(votes), "--mechanism", "lnmax", "--scale", "20"]) == 0
    shown = capfd.readouterr().out
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    for name, answer in (("textbook", "yes"), ("data_independent", "yes"), ("data_dependent_exact", "no")):
        assert answer in lines[name].split()[3]
    assert "may be published?" in shown


def _file(folder: Path, kind: str) -> Path:
    path, table = folder / f"v{kind}", _votes()
    columns = pa.table({f"class {c}": table[:, c] for c in range(3)})
    if kind == ".npz":
        np.savez(path, votes=table)
    elif kind == ".parquet":
        pq.write_table(columns, path)
    elif kind == ".csv":
        pyarrow.csv.write_csv(columns, path)
    else:
        np.save(path, table)
    return path


def test_every_format_and_labels_give_the_same_numbers(
    pate: Pate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts in every format, one label a teacher, and blocks of 7 rows."""
    found = [pate("privacy", _file(tmp_path, kind), *MECHANISM, "--json")[1] for kind in votes_file.SUFFIXES]
    labels = np.stack([np.repeat(np.arange(3), row) for row in _votes()])
    np.save(tmp_path / "labels.npy", np.random.default_rng(0).permuted(labels, axis=1))
    by_label = ("privacy", tmp_path / "labels.npy", *MECHANISM, "--labels", "--classes", 3, "--json")
    found.append(pate(*by_label)[1])
    monkeypatch.setattr(votes_file, "BLOCK", 7)
    found.append(pate(*by_label)[1])
    assert found[0]["queries"] == 30
    for other in found[1:]:
        assert other["epsilon"].keys() == found[0]["epsilon"].keys()
        for name, number in found[0]["epsilon"].items():
            assert other["epsilon"][name]["epsilon"] == pytest.approx(number["epsilon"], rel=1e-9)


def test_a_students_predictions_stand_beside_the_votes(pate: Pate, votes: Path, tmp_path: Path) -> None:
    """interactive-gnmax: the exact number is that of votes and predictions row by row, in blocks that do not match."""
    student = np.random.default_rng(1).dirichlet([2, 1, 1], 30)
    np.save(tmp_path / "student.npy", student)
    given = (*MECHANISM, "--mechanism", "interactive-gnmax", "--student", tmp_path / "student.npy", "--json")
    code, found, _ = pate("privacy", votes, *given)
    assert code == 0
    event = InteractiveGNMax(40.0, 80.0, 40.0, 30, 30)
    number = found["epsilon"]["data_dependent_exact"]
    expected = exact.query_cost(_votes(), event, [number["order"]], student)[0].sum()
    order = number["order"]
    converted = expected + np.log1p(-1 / order) - (np.log(1e-5) + np.log(order)) / (order - 1)
    assert number["epsilon"] == pytest.approx(converted, rel=1e-9)
    pyarrow.csv.write_csv(pa.table({str(c): student[:, c] for c in range(3)}), tmp_path / "student.csv")
    options = Options(votes, "interactive-gnmax", 40.0, threshold=80.0, threshold_sigma=40.0)

    def cut(path: Path, limit: int | None, option: str = "VOTES") -> Iterator[np.ndarray]:
        rows = _votes() if option == "VOTES" else student
        yield from np.array_split(rows, 4 if option == "VOTES" else 7)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("flows.privacy.blocks", cut)
        pairs = list(vote_blocks(Options(**{**vars(options), "student": tmp_path / "student.npy"})))
    assert np.array_equal(np.concatenate([pair[0] for pair in pairs]), _votes())
    assert np.array_equal(np.concatenate([pair[1] for pair in pairs]), student)
    np.save(tmp_path / "short.npy", student[:20])
    given = (*MECHANISM, "--mechanism", "interactive-gnmax", "--student", tmp_path / "short.npy", "--json")
    code, _, said = pate("privacy", votes, *given)
    assert code == 2
    assert "--student" in said


def test_charts_follow_the_file(pate: Pate, votes: Path, tmp_path: Path) -> None:
    """ε after m queries is that of the first m; both formats are written, private."""
    event, table = GNMax(40.0, 30), _votes()
    found = curves_of(lambda: iter(np.array_split(table.astype(float), 4)), event, 30, 200, 1e-5, "improved")
    assert found.asked.tolist() == list(range(1, 31))
    costs = exact.query_cost(table, event, ORDERS)[0]
    penalty = np.log1p(-1 / ORDERS) - (np.log(1e-5) + np.log(ORDERS)) / (ORDERS - 1)
    for m in (1, 7, 8, 30):
        expected = max((costs[:m].sum(axis=0) + penalty).min(), 0)
        assert found.epsilon["data_dependent_exact"][m - 1] == pytest.approx(expected, rel=1e-9)
    for suffix, magic in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        path = tmp_path / f"chart{suffix}"
        code, result, _ = pate("privacy", votes, *MECHANISM, "--plot", path, "--json")
        assert code == 0
        assert result["plot"] == str(path)
        assert path.read_bytes().startswith(magic)
        assert path.stat().st_mode & 0o777 == 0o600


# Draws ---------------------------------------------------------------------------------------------------------------


def _ledger(folder: Path) -> str:
    return f"sqlite:///{folder / 'ledger.sqlite'}"


def test_a_sanitised_figure_is_charged_once_and_replayed(pate: Pate, votes: Path, tmp_path: Path) -> None:
    """One charge pays for one draw; the same command replays it, also where the votes changed; --again pays anew."""
    command = ("privacy", votes, *MECHANISM, "--sanitize", *DRAW, "--ledger", _ledger(tmp_path), "--json")
    code, first, said = pate(*command, *OPEN)
    assert code == 0
    assert "sanitized: charges ε = " in said
    number = first["epsilon"]["sanitized"]
    assert number["publishable"] is True
    assert number["noise_std"] is None
    assert [draw["replayed"] for draw in first["draws"]] == [False]
    (event,) = open_ledger(_ledger(tmp_path)).events("clinic")
    assert event.state == "committed"
    assert event.event == sanitized.event(16.0)
    np.save(votes, _votes()[::-1])
    code, second, said = pate(*command)
    assert code == 0
    assert "replays" in said
    assert second["epsilon"]["sanitized"] == number
    assert second["ledger"] == first["ledger"]
    _, third, said = pate(*command, "--again")
    assert "again, for a new draw" in said
    assert third["ledger"]["spent"] > first["ledger"]["spent"]
    (file,) = (tmp_path / ".draws").glob("*.journal")
    state, events = journal.read(file), open_ledger(_ledger(tmp_path)).events("clinic")
    assert state is not None
    assert [each.id == state[0].reservation for each in events] == [False, True]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / ".draws").iterdir())


def test_beside_a_draw_nothing_private_is_shown(
    pate: Pate, votes: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is printed may be published: worst cases and what was paid for. Nothing else is looked at."""
    from flows.cli import run_command

    def looked(*_: Any) -> None:
        raise AssertionError("computed from votes, and not charged")

    monkeypatch.setattr(numbers, "of_votes", looked)
    monkeypatch.setattr(numbers, "expected_answered", looked)
    command = ("privacy", votes, *MECHANISM, "--sanitize", *DRAW, "--ledger", _ledger(tmp_path))
    code, found, _ = pate(*command, *OPEN, "--json")
    assert code == 0
    assert list(found["epsilon"]) == ["textbook", "data_independent", "sanitized"]
    assert all(number["publishable"] for number in found["epsilon"].values())
    assert found["expected_answered"] is None
    assert run_command([str(part) for part in command]) == 0
    shown = capfd.readouterr().out
    assert "expected" not in shown
    assert "private" not in shown


def test_what_cannot_be_drawn_is_not_charged(pate: Pate, votes: Path, tmp_path: Path) -> None:
    """A cost that takes too large a table to publish is refused before anything is charged."""
    command = ("privacy", votes, "--sigma", 1e6, *MECHANISM[2:], "--sanitize", *DRAW, "--ledger", _ledger(tmp_path))
    code, _, said = pate(*command, *OPEN, "--json")
    assert code == 2
    assert "too large a table" in said
    assert not (tmp_path / "ledger.sqlite").exists()


def test_a_lost_or_foreign_journal_is_a_new_charge(pate: Pate, votes: Path, tmp_path: Path) -> None:
    """A committed charge releases only the outcome that it was committed for."""
    command = ("privacy", votes, *MECHANISM, "--sanitize", *DRAW, "--ledger", _ledger(tmp_path), "--json")
    pate(*command, *OPEN)
    (file,) = (tmp_path / ".draws").glob("*.journal")
    state = journal.read(file)
    assert state is not None
    journal.start(file, state[0])
    journal.append(file, 0, state[1] + 1)
    _, forged, said = pate(*command)
    assert "charges ε" in said
    assert forged["draws"][0]["replayed"] is False
    file.unlink()
    _, _, said = pate(*command)
    assert "charges ε" in said
    assert len(open_ledger(_ledger(tmp_path)).events("clinic")) == 3


def test_the_noises_scale_is_told_where_it_was_paid_for(pate: Pate, votes: Path, tmp_path: Path) -> None:
    command = ("privacy", votes, *MECHANISM, "--sanitize", *DRAW, "--ledger", _ledger(tmp_path), "--json")
    _, found, _ = pate(*command, *OPEN, "--sigma-log-scale", 20)
    plan = sanitized.plan(_votes(), EVENT, 1e-5, 16.0)
    # ln S + β 20 N(0, 1), β = 1/64: within seven standard deviations.
    assert abs(np.log(found["epsilon"]["sanitized"]["noise_std"] / plan.noise_std)) < 7 * 20 / 64
    (event,) = open_ledger(_ledger(tmp_path)).events("clinic")
    assert event.event == sanitized.event(16.0, sigma_log_scale=20.0)


def test_any_noise_on_the_scale_gives_a_number(
    pate: Pate, votes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A logarithm beyond what exponentials hold is shown as a large number, not as an error after the charge."""
    monkeypatch.setattr(privacy_draw.testing, "rounded", lambda *_: 2**30)
    command = ("privacy", votes, *MECHANISM, "--sanitize", *DRAW, "--ledger", _ledger(tmp_path), "--json")
    code, found, _ = pate(*command, *OPEN, "--sigma-log-scale", 1e6)
    assert code == 0
    assert 1e100 < found["epsilon"]["sanitized"]["noise_std"] < np.inf


# These votes are 43 changes away from a cost above 0.12, and none from one above 0.005; nineteen are asked for.
PASSES, FAILS = 0.12, 0.005


def _tested(votes: Path, folder: Path, rho: float = PASSES, sigma_d: float = 4) -> tuple[Any, ...]:
    return (
        "privacy", votes, *MECHANISM, "--tested", *DRAW, "--rho", rho, "--sigma-d", sigma_d,
        "--ledger", _ledger(folder), "--tested-delta", 2.5e-6, "--json",
    )  # fmt: skip


def test_a_passed_test_releases_labels_and_a_refusal_only_itself(pate: Pate, votes: Path, tmp_path: Path) -> None:
    """With enough ρ the labels come with their guarantee; with a tiny one nothing does, charged alike."""
    code, found, _ = pate(*_tested(votes, tmp_path), *OPEN, "--out", tmp_path / "labels.parquet")
    assert code == 0
    number = found["epsilon"]["tested"]
    assert (number["passed"], number["publishable"], number["labels"]) == (True, True, str(tmp_path / "labels.parquet"))
    released = pq.read_table(tmp_path / "labels.parquet")
    assert released.num_rows == 30
    metadata = {key.decode(): value.decode() for key, value in released.schema.metadata.items()}
    assert float(metadata["pate.epsilon"]) == number["epsilon"]
    assert (metadata["pate.number"], metadata["pate.unit"]) == ("tested", "patient")
    # The same labels again, not others.
    (tmp_path / "labels.parquet").rename(tmp_path / "before.parquet")
    pate(*_tested(votes, tmp_path), "--out", tmp_path / "labels.parquet")
    assert pq.read_table(tmp_path / "before.parquet").equals(released)
    code, refused, _ = pate(*_tested(votes, tmp_path, FAILS), "--out", tmp_path / "none.parquet")
    assert code == 0
    assert refused["epsilon"]["tested"]["passed"] is False
    assert refused["epsilon"]["tested"]["labels"] is None
    assert not (tmp_path / "none.parquet").exists()
    assert [event.state for event in open_ledger(_ledger(tmp_path)).events("clinic")] == ["committed"] * 2


def test_labels_are_never_of_other_votes_than_the_test(
    pate: Pate, votes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between test and labels, with the votes changed before the rerun: the test is drawn again, not kept."""
    tested_votes: list[np.ndarray] = []

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(privacy_draw, "answer_all", killed)
        assert pate(*_tested(votes, tmp_path), *OPEN)[0] == 1
    (event,) = open_ledger(_ledger(tmp_path)).events("clinic")
    assert event.state == "drawing"
    real = privacy_draw.testing.passes

    def watched(distance: int, *rest: Any) -> bool:
        state = journal.read(rest[1])
        assert state is not None
        tested_votes.append(state[1])
        return real(distance, *rest)

    monkeypatch.setattr(privacy_draw.testing, "passes", watched)
    # Unchanged votes: what was drawn is kept.
    with monkeypatch.context() as patched:
        patched.setattr(privacy_draw, "answer_all", killed)
        pate(*_tested(votes, tmp_path))
    np.save(votes, np.tile([67, 67, 66], (30, 1)))
    code, found, _ = pate(*_tested(votes, tmp_path))
    assert code == 0
    assert [len(held) for held in tested_votes] == [1, 0]
    # Even votes are as expensive as any: their test fails, as it should.
    assert found["epsilon"]["tested"]["passed"] is False
    assert [each.state for each in open_ledger(_ledger(tmp_path)).events("clinic")] == ["committed"]


def test_what_the_budget_does_not_allow_is_refused(pate: Pate, votes: Path, tmp_path: Path) -> None:
    """Over the limit, or over the δ set aside for tests: exit 3, nothing charged, nothing drawn; both or none."""
    both = (*_tested(votes, tmp_path, sigma_d=2), "--sanitize")
    code, _, said = pate(*both, "--unit", "patient", "--limit", 1.3)
    assert code == 3
    assert "nothing was spent" in said
    assert open_ledger(_ledger(tmp_path)).events("clinic") == []
    assert list((tmp_path / ".draws").glob("*.journal")) == []
    other = tmp_path / "other"
    other.mkdir()
    assert pate(*_tested(votes, other), *OPEN)[0] == 0
    assert pate(*_tested(votes, other), "--again")[0] == 0
    code, _, said = pate(*_tested(votes, other), "--again")
    assert code == 3
    assert "set aside for tests" in said


@pytest.mark.parametrize(
    ("left_out", "named"),
    [("--dataset", "--dataset"), ("--ledger", "--ledger"), ("--order", "--order"), ("--rho", "--rho"),
     ("--sigma-d", "--sigma-d"), ("--tested", "--draw")],
)  # fmt: skip
def test_a_draw_needs_what_must_be_fixed_beforehand(
    pate: Pate, votes: Path, tmp_path: Path, left_out: str, named: str
) -> None:
    command = [str(part) for part in _tested(votes, tmp_path)] + ["--unit", "patient", "--limit", "3"]
    at = command.index(left_out)
    del command[at : at + (1 if left_out == "--tested" else 2)]
    if left_out == "--tested":
        for option in ("--rho", "--sigma-d", "--tested-delta"):
            at = command.index(option)
            del command[at : at + 2]
    code, _, said = pate(*command)
    assert code == 2
    assert said.startswith(f"error: {named}") or (left_out == "--tested" and "--order" in said)
    assert not (tmp_path / "ledger.sqlite").exists()


def test_an_accounts_own_terms_are_kept(pate: Pate, votes: Path, tmp_path: Path) -> None:
    """No account without unit and limit; a lower order than its own, another δ or another unit: exit 2, one line."""
    command = ("privacy", votes, *MECHANISM, "--sanitize", *DRAW, "--ledger", _ledger(tmp_path), "--json")
    assert "--unit, --limit" in pate(*command)[2]
    assert pate(*_tested(votes, tmp_path)[:-3], "--json", *OPEN)[2].startswith("error: --tested-delta")
    assert pate(*command, *OPEN)[0] == 0
    for more, named in (
        (("--delta", 1e-6), "ledger.delta"),
        (("--unit", "visit"), "data.unit"),
        (("--order", 2), "--order"),
    ):
        code, _, said = pate(*command, *more)
        assert code == 2
        assert said.startswith(f"error: {named} = ")
    assert len(open_ledger(_ledger(tmp_path)).events("clinic")) == 1


def test_two_draws_at_once_wait_for_each_other(tmp_path: Path) -> None:
    """The folder of journals is held while a draw is under way."""
    said: list[str] = []
    from flows import exclusive

    def given_up(_: float) -> None:
        raise TimeoutError

    lock = tmp_path / ".lock"
    with exclusive.file_held(lock, said.append, "another draw"), pytest.MonkeyPatch.context() as patched:
        patched.setattr(exclusive.time, "sleep", given_up)
        with pytest.raises(TimeoutError), exclusive.file_held(lock, said.append, "another draw"):
            raise AssertionError("held twice")
    assert said == ["waiting: another draw"]
    assert privacy_account.file_held is exclusive.file_held


# Mistakes ------------------------------------------------------------------------------------------------------------

_BAD_VOTES = {
    "NaN": ([[7731, np.nan]], "every count must be a finite number"),
    "infinite": ([[7731, np.inf]], "every count must be a finite number"),
    "negative": ([[7731, -1]], "every count must be at least 0"),
    "fractional": ([[7731, 0.5]], "every count must be a whole number"),
    "huge": ([[1e308, 1e308]], "every count must be at most 2^53"),
    "uneven": ([[7731, 0], [7730, 0]], "every row must sum to the number of teachers"),
    "one class": ([[7731]], "at least 2 classes"),
    "no teacher": ([[0, 0]], "every row must sum to the number of teachers"),
}


@pytest.mark.parametrize("case", _BAD_VOTES)
def test_bad_votes_are_one_line_without_a_value(pate: Pate, tmp_path: Path, case: str) -> None:
    rows, rule = _BAD_VOTES[case]
    np.save(tmp_path / "v.npy", np.array(rows, dtype=float))
    code, found, said = pate("privacy", tmp_path / "v.npy", *MECHANISM, "--json")
    assert code == 2
    assert said.count("\n") == 1
    assert said.startswith(f"error: VOTES = '{tmp_path / 'v.npy'}': ")
    assert rule in said
    assert "77" not in said.replace(str(tmp_path), "")
    assert found == {"error": said.removeprefix("error: ").strip(), "exit_code": 2}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--sigma", 0), "--sigma = 0.0"),
        (("--sigma", "nan"), "--sigma = nan"),
        (("--sigma", -3), "--sigma = -3.0"),
        (("--threshold", "inf"), "--threshold = inf"),
        (("--threshold-sigma", 0), "--threshold-sigma = 0.0"),
        (("--delta", 0), "--delta = 0.0"),
        (("--delta", 1), "--delta = 1.0"),
        (("--delta", "nan"), "--delta = nan"),
        (("--mechanism", "exponential"), "--mechanism = 'exponential'"),
        (("--mechanism", "gnmax"), "--threshold: is not a parameter of gnmax"),
        (("--mechanism", "lnmax"), "--scale: lnmax needs it"),
        (("--mechanism", "interactive-gnmax"), "--student: interactive-gnmax needs it"),
        (("--scale", 3), "--scale: is not a parameter of confident-gnmax"),
        (("--student", "p.npy"), "--student: is not a parameter of confident-gnmax"),
        (("--queries", 0), "--queries = 0"),
        (("--queries", 31), "--queries = 31"),
        (("--max-answers", 0), "--max-answers = 0"),
        (("--max-answers", 31), "--max-answers = 31"),
        (("--queries", 10, "--max-answers", 11), "--max-answers = 11"),
        (("--sanitize", "--order", 1), "--order = 1.0"),
        (("--tested", "--order", "nan"), "--order = nan"),
        (("--order", 5), "--order: binds --sanitize and --tested"),
        (("--conversion", "best"), "--conversion = 'best'"),
        (("--sigma-d", 3), "--sigma-d: is a parameter of --tested"),
        (("--tested", "--sigma-d", 0), "--sigma-d = 0.0"),
        (("--tested", "--test-delta", 1e-5), "--test-delta = 1e-05"),
        (("--labels",), "--labels, --classes"),
        (("--classes", 3), "--labels, --classes"),
        (("--labels", "--classes", 1), "--classes = 1"),
        (("--labels", "--classes", 3), "VOTES = "),
        (("--plot", "chart.pdf"), "--plot = 'chart.pdf'"),
        (
            ("--sanitize", *DRAW, "--ledger", "sqlite:///l", "--plot", "chart.png"),
            "--plot: is private; not with --draw",
        ),
        (("--sanitize", *DRAW, "--ledger", "sqlite:///l", "--unsound-p18"), "--unsound-p18: is private"),
        (("--dataset", "clinic"), "--dataset: is for --draw alone"),
        (("--again",), "--again: is for --draw alone"),
        (("--rho", 0.1), "--rho: is for --draw alone"),
        (("--sanitize", *DRAW, "--ledger", "sqlite:///l", "--dataset", "../x"), "--dataset = '../x'"),
        (("--sanitize", *DRAW, "--ledger", "sqlite:///l", "--conversion", "classic"), "--conversion = 'classic'"),
        (("--sanitize", *DRAW, "--ledger", "sqlite:///l", "--out", "x.parquet"), "--out: is for --draw with --tested"),
    ],
)
def test_mistakes_are_one_line(pate: Pate, votes: Path, options: tuple[Any, ...], named: str) -> None:
    """Options out of range, missing, or of another mechanism: exit 2 and a line that names them."""
    code, found, said = pate("privacy", votes, *MECHANISM, *options, "--json")
    assert code == 2
    assert said.startswith(f"error: {named}")
    assert said.count("\n") == 1
    assert json.dumps(found["exit_code"]) == "2"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ((), "--sigma: confident-gnmax needs it"),
        (("--sigma", 40), "--threshold: confident-gnmax needs it"),
        (("--mechanism", "gnmax"), "--sigma: gnmax needs it"),
        (("--mechanism", "gnmax", "--sigma", 40, "--max-answers", 5), "--max-answers = 5"),
        (("--mechanism", "lnmax", "--scale", 20, "--sanitize"), "--sanitize: is for gnmax and confident-gnmax"),
        (("--mechanism", "lnmax", "--scale", 20, "--unsound-p18"), "--unsound-p18: is for gnmax and confident-gnmax"),
    ],
)
def test_missing_options_are_named(pate: Pate, votes: Path, options: tuple[Any, ...], named: str) -> None:
    code, _, said = pate("privacy", votes, *options, "--json")
    assert code == 2
    assert said.startswith(f"error: {named}")


def test_files_that_are_not_there_or_no_votes(pate: Pate, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("1,2\n")
    (tmp_path / "v.csv").write_text("a,b\n1,7731x\n")
    for name, rule in (("none.npy", "no such file"), ("v.txt", "must end in"), ("v.csv", "a table of numbers")):
        code, _, said = pate("privacy", tmp_path / name, *MECHANISM)
        assert code == 2
        assert rule in said
        assert "7731" not in said
