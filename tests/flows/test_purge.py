"""``pate purge``: only what is finished is erased, nothing is charged again, and the release goes on working."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accounting.ledger import open_ledger
from data.store import digest
from flows import purge

Pate = Callable[..., tuple[int, dict[str, Any], str]]
pytestmark = pytest.mark.slow


@pytest.fixture
def root(small_root: Path, tmp_path: Path) -> Path:
    """A copy of the whole run that the test may change."""
    return Path(shutil.copytree(small_root, tmp_path / "runs"))


@pytest.fixture
def arguments(small_config: Path, root: Path) -> list[object]:
    """The arguments that name the copied run."""
    return [small_config, "--set", f"run_root={root}", "--run", "whole", "--json"]


def _tree(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): digest(file) for file in folder.rglob("*") if file.is_file()}


def test_the_private_part_goes_and_all_else_stays(pate: Pate, root: Path, arguments: list[object]) -> None:
    """Release, key and ledger are the same bytes; no later command draws, charges or makes private/ anew."""
    before, private = _tree(root), root / "whole" / "private"
    code, result, _ = pate("purge", root / "whole", "--yes", "--json")
    assert code == 0
    assert not private.exists()
    assert result["erased"] == str(private)
    # settings.yaml says where the copied run lies now.
    after = _tree(root)
    assert set(after) == {name for name in before if not name.startswith("whole/private/")} | {"whole/purged.json"}
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"whole/purged.json", "whole/settings.yaml"}
    for command in ("run", "teach", "aggregate", "baseline"):
        code, result, err = pate(command, *arguments)
        assert code == 2
        assert "purged: its private part was erased; use another --run" in result["error"]
        assert len(err.strip().splitlines()) == 1
    assert not private.exists()
    events = open_ledger(f"sqlite:///{root}/ledger.sqlite").events("digits")
    assert sorted(event.stage for event in events) == ["aggregate", "baseline"]
    code, result, _ = pate("purge", "whole", "--run-root", root, "--yes", "--json")
    assert (code, result["already"]) == (0, True)


def test_report_and_predict_work_on_a_purged_run(
    pate: Pate, root: Path, arguments: list[object], tmp_path: Path
) -> None:
    """The same labels are reported and predicted; settings that these were not made by are refused."""
    assert pate("purge", root / "whole", "--yes")[0] == 0
    privacy = (root / "whole" / "release" / "privacy.json").read_bytes()
    code, _, _ = pate("report", *arguments, "--set", "report.title=Afterwards")
    assert code == 0
    release = root / "whole" / "release"
    assert "<h1>Afterwards</h1>" in (release / "report.html").read_text()
    assert (release / "privacy.json").read_bytes() == privacy
    listed = json.loads((release / "manifest.json").read_text())["files"]
    assert listed == {path.name: digest(path) for path in release.iterdir() if path.name != "manifest.json"}
    np.save(tmp_path / "x.npy", np.zeros((2, 8, 8), np.uint8))
    assert pate("predict", root / "whole", tmp_path / "x.npy", "--out", tmp_path / "out.csv")[0] == 0
    code, result, _ = pate("report", *arguments, "--set", "aggregation.sigma=30")
    assert code == 2
    assert result["error"].startswith("aggregation: differs from")
    assert not (root / "whole" / "private").exists()


def _unfinished(root: Path) -> None:
    path = root / "whole" / "private" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["stages"]["report"]
    path.write_text(json.dumps(manifest))


def _damaged(root: Path) -> None:
    path = root / "whole" / "release" / "student.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"X")


def _foreign_manifest(root: Path) -> None:
    path = root / "whole" / "release" / "manifest.json"
    path.write_text(json.dumps({"files": {}}))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_unfinished, "stage report is not up to date"),
        (_damaged, "student.safetensors: is corrupt"),
        (lambda root: (root / "whole" / "release" / "labels.parquet").unlink(), "stage aggregate is not up to date"),
        (_foreign_manifest, "does not list the released files"),
        (lambda root: (root / "ledger.sqlite").unlink(), "does not hold the charge of aggregate"),
        (lambda root: (root / "whole" / "settings.yaml").write_text("name: 3"), "settings.yaml: is corrupt"),
        (lambda root: (root / "whole" / "settings.yaml").unlink(), "no run directory"),
    ],
)
def test_what_is_not_finished_is_not_erased(
    pate: Pate, root: Path, change: Callable[[Path], object], expected: str
) -> None:
    """A stage to do, a released file that changed, a lost ledger: exit code 2, every private file still there."""
    change(root)
    before = _tree(root / "whole" / "private")
    code, result, err = pate("purge", root / "whole", "--yes", "--json")
    assert code == 2
    assert expected in result["error"]
    assert len(err.strip().splitlines()) == 1
    assert _tree(root / "whole" / "private") == before
    assert not (root / "whole" / "purged.json").exists()


def test_nobody_to_ask_means_no(pate: Pate, root: Path) -> None:
    """Without a terminal and without --yes nothing is erased."""
    code, result, _ = pate("purge", root / "whole", "--json")
    assert code == 2
    assert result["error"].startswith("--yes: must be given")
    assert (root / "whole" / "private" / "votes.parquet").is_file()


@pytest.mark.parametrize("files", [0, 1, 7])
def test_a_crash_in_the_middle_is_finished_by_the_same_command(
    pate: Pate, root: Path, arguments: list[object], monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    """Killed after some files: no other command works on what is left, and the next purge erases it."""
    left = [files]

    def overwrite(path: Path) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        real(path)

    real = purge._overwrite
    with monkeypatch.context() as patch:
        patch.setattr(purge, "_overwrite", overwrite)
        assert pate("purge", root / "whole", "--yes")[0] == 1
    assert any((root / "whole" / "private").iterdir())
    assert pate("run", *arguments)[0] == 2
    code, result, _ = pate("purge", root / "whole", "--yes", "--json")
    assert (code, result["already"]) == (0, False)
    assert not (root / "whole" / "private").exists()


def test_content_is_overwritten_and_other_names_are_spared(pate: Pate, root: Path, tmp_path: Path) -> None:
    """What an open file still shows is zeros; a backup by hard link, and what a symbolic link names, keep theirs."""
    private = root / "whole" / "private"
    outside, backup = tmp_path / "outside", tmp_path / "backup"
    outside.write_text("not ours")
    (private / "link").symlink_to(outside)
    os.link(private / "partition.parquet", backup)
    content = backup.read_bytes()
    with (private / "votes.parquet").open("rb") as votes:
        size = len(votes.read())
        assert pate("purge", root / "whole", "--yes")[0] == 0
        votes.seek(0)
        assert votes.read() == bytes(size)
    assert outside.read_text() == "not ours"
    assert backup.read_bytes() == content
