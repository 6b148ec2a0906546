"""The whole pipeline on digits: artifacts, reuse, charges, refusals, crashes."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from accounting.cost import guarantee
from accounting.events import ConfidentGNMax
from accounting.ledger import open_ledger
from aggregation import journal
from data.store import digest
from flows.config import load
from flows.console import console
from flows.stages import NAMES, stale_stages

Pate = Callable[..., tuple[int, dict[str, Any], str]]
KEYS = {
    "run",
    "teachers",
    "classes",
    "asked",
    "answered",
    "kept",
    "epsilon",
    "delta",
    "student_accuracy",
    "baseline_accuracy",
    "nonprivate_accuracy",
    "labels",
    "student",
    "report",
    "privacy",
    "ledger_spent",
    "ledger_limit",
    "reused",
}
pytestmark = pytest.mark.slow


@pytest.fixture
def root(small_root: Path, tmp_path: Path) -> Path:
    """A copy of the whole run that the test may change."""
    return Path(shutil.copytree(small_root, tmp_path / "runs"))


@pytest.fixture
def arguments(small_config: Path, root: Path) -> list[object]:
    """The arguments that name the copied run."""
    return [small_config, "--set", f"run_root={root}", "--run", "whole", "--json"]


def _committed(root: Path) -> list[str]:
    ledger = open_ledger(f"sqlite:///{root}/ledger.sqlite")
    return [event.stage for event in ledger.events("digits") if event.state == "committed"]


def test_a_second_run_reuses_everything_and_spends_nothing(pate: Pate, arguments: list[object], root: Path) -> None:
    """One JSON object with every promised key; the ledger is unchanged byte for byte."""
    before = digest(root / "ledger.sqlite")
    started = time.monotonic()
    code, result, err = pate("run", *arguments)
    assert code == 0
    assert time.monotonic() - started < 10
    assert set(result) == KEYS
    assert len(result["reused"]) == 8
    assert "reused" in err
    assert digest(root / "ledger.sqlite") == before
    assert result["asked"] <= 40
    assert 0 < result["answered"] <= 25
    for path in ("labels", "student", "report", "privacy"):
        assert Path(result[path]).is_absolute()
        assert Path(result[path]).is_file()
    assert result["nonprivate_accuracy"] > result["student_accuracy"] > 0.3


def test_the_published_epsilon_is_the_data_independent_one_at_the_caps(root: Path) -> None:
    """privacy.json and the labels' metadata hold what the mechanism costs at 40 queries and 25 answers."""
    expected = guarantee(ConfidentGNMax(3.0, 8.0, 4.0, 40, 25), 1e-4).epsilon
    release = root / "whole" / "release"
    assert json.loads((release / "privacy.json").read_text())["epsilon"] == pytest.approx(expected, rel=1e-9)
    metadata = pq.read_schema(release / "labels.parquet").metadata
    assert float(metadata[b"pate.epsilon"]) == pytest.approx(expected, rel=1e-9)
    assert metadata[b"pate.adjacency"] == b"add-remove"
    assert {key for key in metadata if key.startswith(b"pate.")} == {
        b"pate." + key for key in (b"epsilon", b"delta", b"unit", b"adjacency", b"mechanism", b"run", b"classes")
    }


def test_the_baseline_has_the_labels_epsilon_and_both_are_charged(root: Path) -> None:
    """One committed event each; the baseline's own ε is at most that of the labels and nearly as large."""
    assert sorted(_committed(root)) == ["aggregate", "baseline"]
    privacy = json.loads((root / "whole" / "release" / "privacy.json").read_text())
    assert 0.97 * privacy["epsilon"] < privacy["baseline"]["epsilon"] <= privacy["epsilon"]
    assert privacy["baseline"]["delta"] == privacy["delta"]


def test_private_zone_is_closed_and_release_holds_nothing_else(root: Path) -> None:
    """0700/0600 under private/, and the promised files under release/."""
    run = root / "whole"
    for path in (run / "private").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert {path.name for path in (run / "release").iterdir()} == {
        "queries.parquet",
        "labels.parquet",
        "student.safetensors",
        "student.json",
        "baseline.safetensors",
        "baseline.json",
        "evaluation.parquet",
        "privacy.json",
        "report.html",
        "manifest.json",
    }
    listed = json.loads((run / "release" / "manifest.json").read_text())["files"]
    assert listed == {path.name: digest(path) for path in (run / "release").iterdir() if path.name != "manifest.json"}


def test_deleting_the_labels_makes_a_new_charged_event_and_says_so(
    pate: Pate, arguments: list[object], root: Path
) -> None:
    """New noise is never free, and the user hears of the charge before it is drawn."""
    (root / "whole" / "release" / "labels.parquet").unlink()
    code, result, err = pate("aggregate", *arguments)
    assert code == 0
    assert not result["reused"]
    assert "again, for a new event" in err
    assert sorted(_committed(root)) == ["aggregate", "aggregate", "baseline"]
    # What was made from the old labels is out of date, whether or not the new ones happen to be the same.
    code, result, _ = pate("run", *arguments, "--no-prefect")
    assert code == 0
    student = json.loads((root / "whole" / "private" / "manifest.json").read_text())["stages"]["student"]
    assert student["inputs"]["release/labels.parquet"]
    assert result["ledger_spent"] == json.loads(Path(result["privacy"]).read_text())["ledger"]["spent"]


def test_changed_mechanism_reruns_its_dependants_only(pate: Pate, arguments: list[object], root: Path) -> None:
    """Teachers and votes are reused; the labels are a new event, and so is the baseline at the new ε."""
    code, result, _ = pate("run", *arguments, "--no-prefect", "--set", "aggregation.sigma=3.5")
    assert code == 0
    assert set(result["reused"]) == {"partition", "teach", "queries", "vote"}
    assert sorted(_committed(root)) == ["aggregate", "aggregate", "baseline", "baseline"]


def test_changed_student_spends_nothing(pate: Pate, arguments: list[object], root: Path) -> None:
    """Post-processing is free."""
    code, result, _ = pate("run", *arguments, "--no-prefect", "--set", "student.epochs=5")
    assert code == 0
    assert set(result["reused"]) == {"partition", "teach", "queries", "vote", "aggregate", "baseline"}
    assert sorted(_committed(root)) == ["aggregate", "baseline"]


def test_another_student_alone_takes_the_report_back(pate: Pate, arguments: list[object], root: Path) -> None:
    """No report or statement lies beside files that it is not of; the report alone makes it anew, free of charge."""
    release, changed = root / "whole" / "release", ["--set", "student.epochs=5"]
    described = {"report.html", "privacy.json", "evaluation.parquet"}
    before = {file.name for file in release.iterdir()}
    assert described < before
    code, _, err = pate("student", *arguments, *changed)
    assert code == 0
    assert "report: taken back" in err
    assert {file.name for file in release.iterdir()} == before - described
    assert not described & set(json.loads((release / "manifest.json").read_text()))
    code, result, _ = pate("report", *arguments)
    assert code == 2
    assert result["error"].startswith("report: needs student, not run yet, or not with these settings")
    assert pate("report", *arguments, *changed)[0] == 0
    assert {file.name for file in release.iterdir()} == before
    assert digest(release / "student.safetensors") in (release / "report.html").read_text()
    assert sorted(_committed(root)) == ["aggregate", "baseline"]


def test_a_student_alone_is_refused_as_in_a_run(pate: Pate, arguments: list[object], root: Path) -> None:
    """A model that its method does not take: one line, and the old student stays."""
    before = digest(root / "whole" / "release" / "student.safetensors")
    code, result, _ = pate("student", *arguments, "--set", "student.method=consistency")
    assert code == 2
    assert "is for images and student.model cnn or convnet or mlp, not for 'logistic'" in result["error"]
    assert digest(root / "whole" / "release" / "student.safetensors") == before


def test_a_full_budget_refuses_before_training(pate: Pate, small_config: Path, tmp_path: Path) -> None:
    """Exit code 3, nothing trained, nothing released, nothing spent."""
    code, result, err = pate(
        "run", small_config, "--no-prefect", "--json", "--set", f"run_root={tmp_path}", "--set", "ledger.epsilon=1"
    )
    assert code == 3
    assert result["exit_code"] == 3
    assert "limit 1.0000" in result["error"]
    assert len(err.strip().splitlines()) == 1
    assert not list((tmp_path / "small" / "release").iterdir())
    assert not (tmp_path / "small" / "private" / "partition.parquet").exists()
    assert open_ledger(f"sqlite:///{tmp_path}/ledger.sqlite").spent("digits") == 0


def test_a_new_account_is_announced_once(pate: Pate, small_config: Path, tmp_path: Path) -> None:
    """A budget that starts at 0 is said, so that a ledger in another folder surprises nobody."""
    common = [small_config, "--no-prefect", "--set", f"run_root={tmp_path}", "--set", "baseline.enabled=false"]
    code, _, err = pate("run", *common)
    assert code == 0
    assert err.count("opened an account for dataset 'digits'") == 1
    code, _, err = pate("run", *common, "--run", "second")
    assert code == 0
    assert "opened an account" not in err


def test_labels_and_baseline_are_charged_together_or_not_at_all(pate: Pate, small_config: Path, tmp_path: Path) -> None:
    """A budget that holds the labels alone is refused when the baseline is enabled."""
    alone = guarantee(ConfidentGNMax(3.0, 8.0, 4.0, 40, 25), 1e-4).epsilon
    limit = f"ledger.epsilon={1.05 * alone}"
    common = [small_config, "--no-prefect", "--json", "--set", f"run_root={tmp_path}", "--set", limit]
    code, _, _ = pate("run", *common)
    assert code == 3
    code, _, _ = pate("run", *common, "--set", "baseline.enabled=false")
    assert code == 0


def test_another_dataset_in_the_run_directory_is_refused(pate: Pate, arguments: list[object]) -> None:
    """Exit code 2, naming both datasets."""
    code, result, _ = pate("run", *arguments, "--set", "data.name=other")
    assert code == 2
    assert "belongs to dataset 'digits'" in result["error"]


@pytest.mark.parametrize(
    ("file", "stage"), [("private/votes.parquet", "aggregate"), ("release/labels.parquet", "student")]
)
def test_a_corrupt_artifact_is_one_line(pate: Pate, arguments: list[object], root: Path, file: str, stage: str) -> None:
    """Named, with what to do; nothing is overwritten."""
    path = root / "whole" / file
    path.write_bytes(path.read_bytes()[:-9] + b"XXXXXXXXX")
    code, result, _ = pate(stage, *arguments)
    assert code == 2
    assert f"{file}: is corrupt" in result["error"]


def test_a_stage_says_which_stage_it_needs(pate: Pate, small_config: Path, tmp_path: Path) -> None:
    """Stages alone run in their order."""
    code, result, _ = pate("vote", small_config, "--json", "--set", f"run_root={tmp_path}")
    assert code == 2
    assert result["error"] == (
        "vote: needs partition, teach, queries, not run yet, or not with these settings (each --set counts); run "
        "them in this order, or everything by `pate run`"
    )


@pytest.mark.parametrize(
    ("option", "rerun"),
    [
        ("teachers.chunk=5", set()),
        ("teachers.workers=1", set()),
        ("ledger.epsilon=99", set()),
        ("report.title=Other", {"report"}),
        ("data.test=150", set(NAMES) - {"pretrain"}),
        ("student.weight_decay=0.01", {"student", "report"}),
        ("baseline.clip=0.2", {"baseline", "report"}),
        ("queries.count=39", {"queries", "vote", "aggregate", "student", "baseline", "report"}),
        ("teachers.epochs=14", {"teach", "vote", "aggregate", "student", "report"}),
        ("seed=1", set(NAMES) - {"pretrain"}),
    ],
)
def test_a_setting_makes_stale_what_depends_on_it_and_nothing_else(
    small_config: Path, root: Path, option: str, rerun: set[str]
) -> None:
    """No stage is reused that must not be, none is rerun, or charged, for nothing."""
    settings = load(small_config, [f"run_root={root}", option], "whole")
    assert set(stale_stages(settings, console(quiet=True))) == rerun


def test_another_test_part_evaluates_the_same_releases_at_no_charge(
    pate: Pate, small_config: Path, tmp_path: Path
) -> None:
    """The test part is public: a new one gives new accuracies of the same labels and the same DP-SGD model."""
    parts = ["data.private=all[:1197]", "data.public=all[1197:1597]", "baseline.steps=5"]
    options = [word for part in [*parts, f"run_root={tmp_path}"] for word in ("--set", part)]
    common = [small_config, "--no-prefect", "--json", *options]
    assert pate("run", *common, "--set", "data.test=all[1597:1700]")[0] == 0
    model = (tmp_path / "small" / "release" / "baseline.safetensors").read_bytes()
    code, result, err = pate("run", *common, "--set", "data.test=all[1700:]")
    assert code == 0
    assert set(result["reused"]) == {"partition", "teach", "queries", "vote", "aggregate"}
    assert "charges" not in err
    assert (tmp_path / "small" / "release" / "baseline.safetensors").read_bytes() == model
    counted = json.loads((tmp_path / "small" / "release" / "baseline.json").read_text())["extra"]["evaluation"]["count"]
    assert counted == 97
    assert sorted(_committed(tmp_path)) == ["aggregate", "baseline"]


def test_a_lost_or_exchanged_ledger_is_refused(pate: Pate, arguments: list[object], root: Path, tmp_path: Path) -> None:
    """A release that the ledger does not hold must not pass for an unspent budget."""
    code, result, _ = pate("run", *arguments, "--set", f"ledger.url=sqlite:///{tmp_path}/other.sqlite")
    assert code == 2
    assert "does not hold the charge of aggregate" in result["error"]
    (root / "ledger.sqlite").unlink()
    code, result, _ = pate("run", *arguments)
    assert code == 2
    assert not (root / "ledger.sqlite").exists()


def _forget(root: Path, stage: str) -> None:
    """As a crash between a stage's release and the manifest would leave it."""
    path = root / "whole" / "private" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["stages"][stage]
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(("stage", "released"), [("aggregate", "labels.parquet"), ("baseline", "baseline.safetensors")])
def test_a_crash_between_commit_and_manifest_releases_what_was_drawn(
    pate: Pate, arguments: list[object], root: Path, stage: str, released: str
) -> None:
    """The committed outcome is released again, the same, with no new event: whether its file was written or not."""
    path = root / "whole" / "release" / released
    before = path.read_bytes()
    for written in (True, False):
        _forget(root, stage)
        if not written:
            path.unlink()
        code, _, err = pate(stage, *arguments)
        assert code == 0
        assert "charges" not in err
        assert path.read_bytes() == before
    assert sorted(_committed(root)) == ["aggregate", "baseline"]


def test_reuse_does_not_depend_on_the_votes(pate: Pate, arguments: list[object], root: Path) -> None:
    """A change of the teachers' settings that leaves every vote as it was draws and charges like any other.

    Else a reused release would say that no vote had changed, and one record that makes a shard trainable would show.
    """
    votes = (root / "whole" / "private" / "votes.parquet").read_bytes()
    code, result, _ = pate("run", *arguments, "--no-prefect", "--set", "teachers.empty_vote=1")
    assert code == 0
    assert (root / "whole" / "private" / "votes.parquet").read_bytes() == votes
    assert not {"teach", "vote", "aggregate", "student"} & set(result["reused"])
    assert _committed(root).count("aggregate") == 2


def test_a_copied_run_directory_cannot_release_other_labels_on_the_same_charge(
    pate: Pate, small_config: Path, root: Path, tmp_path: Path
) -> None:
    """A copy made while drawing: once the original has committed its labels, the copy must pay for its own."""
    url = f"ledger.url=sqlite:///{root}/ledger.sqlite"
    common = ["--run", "whole", "--set", url, "--set", "aggregation.sigma=4", "--json"]
    _kill_while_answering([small_config, "--set", f"run_root={root}", *common])
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    code, _, _ = pate("aggregate", small_config, "--set", f"run_root={root}", *common)
    assert code == 0
    code, _, err = pate("aggregate", small_config, "--set", f"run_root={copy}", *common)
    assert code == 0
    assert "again, for a new event" in err
    assert _committed(root).count("aggregate") == 3


def test_a_journal_from_a_backup_is_not_continued_under_a_committed_charge(
    pate: Pate, arguments: list[object], root: Path
) -> None:
    """An older state of the journal, put back after the commit, is no outcome that was paid for."""
    path = root / "whole" / "private" / "outcomes.journal"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    _forget(root, "aggregate")
    code, _, err = pate("aggregate", *arguments)
    assert code == 0
    assert "again, for a new event" in err
    assert _committed(root).count("aggregate") == 2


def _kill_while_answering(arguments: list[object]) -> list[int]:
    """kill -9 after 14 journalled outcomes; gives them."""
    script = (
        "import os, signal, sys\n"
        "from aggregation import answering\n"
        "answering.BATCH = 7\n"
        "real = answering.journal.append\n"
        "def append(path, first, outcomes):\n"
        "    real(path, first, outcomes)\n"
        "    if first >= 7:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "answering.journal.append = append\n"
        "from flows.cli import run_command\n"
        "run_command(sys.argv[1:])\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script, "aggregate", *map(str, arguments)], check=False, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    root = next(str(a).removeprefix("run_root=") for a in arguments if str(a).startswith("run_root="))
    state = journal.read(Path(root) / "whole" / "private" / "outcomes.journal")
    assert state is not None
    return state[1].tolist()


def test_kill_in_the_middle_of_the_answers_resumes_without_a_new_charge(
    pate: Pate, small_config: Path, root: Path
) -> None:
    """kill -9 after some outcomes were journalled: they stay, the rest is drawn under the same reservation."""
    arguments = [small_config, "--set", f"run_root={root}", "--run", "whole", "--set", "aggregation.sigma=4"]
    drawn = _kill_while_answering(arguments)
    assert len(drawn) == 14
    code, _, _ = pate("aggregate", *arguments)
    assert code == 0
    labels = pq.read_table(root / "whole" / "release" / "labels.parquet")["label"].to_pylist()
    assert [-1 if label is None else label for label in labels[:14]] == drawn
    assert _committed(root).count("aggregate") == 2


def test_interrupting_a_stage_leaves_no_half_written_release(small_config: Path, tmp_path: Path) -> None:
    """Ctrl-C while teaching: exit code 1, one line, an empty release folder, the reservation still counted."""
    command = [sys.executable, "-m", "flows", "run", str(small_config), "--no-prefect", "--set", f"run_root={tmp_path}"]
    # Many short chunks: all together take long, and an interrupt waits for those that are being trained.
    slow = [f"--set=teachers.{option}" for option in ("epochs=1000", "strategy=loop", "chunk=1")]
    process = subprocess.Popen(
        [*command, *slow],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell makes its background jobs ignore Ctrl-C, and a child inherits that.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    teachers = tmp_path / "small" / "private" / "teachers"
    deadline = time.monotonic() + 60
    while not teachers.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    os.kill(process.pid, signal.SIGINT)
    try:
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1, err
    assert "interrupted" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert not list((tmp_path / "small" / "release").iterdir())
    events = open_ledger(f"sqlite:///{tmp_path}/ledger.sqlite").events("digits")
    assert {event.state for event in events} == {"reserved"}


def test_exceptions_of_the_private_zone_are_scrubbed(
    pate: Pate, arguments: list[object], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error shows its kind and where to look; its text goes to private/errors.log, 0600."""
    from flows import work

    def leak(context: object) -> None:
        raise ValueError("CANARY 17 votes")

    monkeypatch.setattr(work, "vote", leak)
    (root / "whole" / "private" / "votes.parquet").unlink()
    code, result, err = pate("vote", *arguments)
    log = root / "whole" / "private" / "errors.log"
    assert code == 1
    assert "CANARY" not in err + json.dumps(result)
    assert str(log) in result["error"]
    assert "CANARY" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(
    pate: Pate, arguments: list[object], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC while the labels are written: nothing released, the charge kept, and a rerun finishes under it."""
    from data import artifacts

    (root / "whole" / "release" / "labels.parquet").unlink()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(artifacts.pq, "write_table", full)
        code, result, _ = pate("aggregate", *arguments)
    assert code == 1
    assert "no space left on the disk" in result["error"]
    assert not (root / "whole" / "release" / "labels.parquet").exists()
    assert not [path for path in (root / "whole" / "release").iterdir() if path.name.endswith(".tmp")]
    drawn = journal.read(root / "whole" / "private" / "outcomes.journal")
    code, _, _ = pate("aggregate", *arguments)
    assert code == 0
    assert drawn is not None
    assert _committed(root).count("aggregate") == 2


def test_check_forecasts_from_counts(pate: Pate, small_config: Path, tmp_path: Path) -> None:
    """Shard sizes, the published ε and the ledger's state before anything is trained."""
    code, result, _ = pate("check", small_config, "--json", "--set", f"run_root={tmp_path}")
    assert code == 0
    assert result["shards"]["units"] == 1197
    assert result["shards"]["low"] < 1197 / 20 < result["shards"]["high"]
    assert result["ledger_spent"] == 0
    code, result, _ = pate(
        "check", small_config, "--json", "--set", f"run_root={tmp_path}/b", "--set", "aggregation.delta=0.01"
    )
    assert any("delta" in warning for warning in result["warnings"])


def test_more_teachers_than_units(pate: Pate, small_config: Path, tmp_path: Path) -> None:
    """Exit code 2."""
    code, result, _ = pate(
        "partition", small_config, "--json", "--set", f"run_root={tmp_path}", "--set", "teachers.count=1198"
    )
    assert code == 2
    assert result["error"] == "teachers.count = 1198: must be at most the number of private units"


def test_predict_labels_new_inputs(pate: Pate, root: Path, tmp_path: Path) -> None:
    """The student of a run labels files of images; wrong files are one line."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    np.save(tmp_path / "x.npy", np.rint(digits.images * (255 / 16)).astype(np.uint8))
    out = tmp_path / "out.parquet"
    code, result, _ = pate("predict", root / "whole", tmp_path / "x.npy", "--out", out, "--json")
    assert code == 0
    assert result["rows"] == len(digits.target)
    table = pq.read_table(out)
    assert table.column_names == ["row", "label", "probability"]
    right = np.mean(
        [int(label) == truth for label, truth in zip(table["label"].to_pylist(), digits.target, strict=True)]
    )
    assert right > 0.5
    code, _, err = pate("predict", root / "nope", tmp_path / "x.npy")
    assert code == 2
    assert len(err.strip().splitlines()) == 1


def test_labels_are_read_and_joined_without_our_code(root: Path) -> None:
    """Parquet, its metadata and a join to the public rows, with pandas and DuckDB, nothing of ours imported."""
    script = f"""
import sys
import duckdb, pandas as pd, pyarrow.parquet as pq
from sklearn.datasets import load_digits
path = {str(root / "whole" / "release" / "labels.parquet")!r}
facts = pq.read_schema(path).metadata
assert float(facts[b"pate.epsilon"]) > 0 and float(facts[b"pate.delta"]) == 1e-4
labels = pd.read_parquet(path)
rows = pd.DataFrame({{"public_id": range(1797), "truth": load_digits().target}})
joined = labels.merge(rows, on="public_id").dropna(subset="label")
assert len(joined) == labels.label.notna().sum()
print((joined.label == joined.truth).mean())
query = f"select avg((label = truth)::int) from '{{path}}' join rows using (public_id) where label is not null"
print(duckdb.sql(query).fetchall()[0][0])
ours = ("data", "accounting", "teachers", "aggregation", "student", "baseline", "flows")
assert not [name for name in sys.modules if name.split(".")[0] in ours]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    right, again = (float(line) for line in done.stdout.split())
    assert right == pytest.approx(again)
    assert right > 0.6
