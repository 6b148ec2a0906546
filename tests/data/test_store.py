"""The run store: whole files or none, private modes, keyed digests, one process a run."""

from pathlib import Path

import numpy as np
import pytest

from data.artifacts import (
    read_labels,
    read_queries,
    read_sources,
    read_votes,
    write_labels,
    write_queries,
    write_votes,
)
from data.errors import PateError, UserError
from data.store import Run, atomic, dataset_key, digest, locked, read_json, stage_key, write_json


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    """Readers see the old content; no temporary file stays behind."""
    path = tmp_path / "release" / "x.json"
    write_json(path, {"a": 1})

    def fail() -> None:
        with atomic(path) as temporary:
            temporary.write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        fail()
    assert read_json(path) == {"a": 1}
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]


def test_private_files_and_keys_are_closed_to_others(tmp_path: Path) -> None:
    """0700 folders and 0600 files under private/ and .keys/."""
    run = Run(tmp_path / "r")
    run.create()
    write_json(run.private / "sub" / "x.json", {})
    key = dataset_key(tmp_path, "d")
    assert len(key) == 32
    assert dataset_key(tmp_path, "d") == key
    for path, mode in (
        (run.private, 0o700),
        (run.private / "sub", 0o700),
        (run.private / "sub" / "x.json", 0o600),
        (tmp_path / ".keys", 0o700),
        (tmp_path / ".keys" / "d.key", 0o600),
    ):
        assert path.stat().st_mode & 0o777 == mode, path


def test_strict_json(tmp_path: Path) -> None:
    """NaN is no JSON, and a corrupt file is a one-line error that names it."""
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "x.json", {"a": float("nan")})
    (tmp_path / "y.json").write_text("{")
    with pytest.raises(UserError, match=r"y\.json: is corrupt"):
        read_json(tmp_path / "y.json")


def test_digests_see_names_and_content_and_keys(tmp_path: Path) -> None:
    """A folder's digest changes with any file; a keyed digest is not the plain one."""
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "a").write_bytes(b"1")
    first = digest(folder)
    (folder / "a").rename(folder / "b")
    assert digest(folder) != first
    assert digest(folder / "b", b"k") != digest(folder / "b")
    assert digest(folder / "b", b"k") != digest(folder / "b", b"l")


def test_stage_keys_depend_on_everything() -> None:
    """Inputs, settings and code version each change the key; order of keys does not."""
    base = stage_key({"a": "1", "b": "2"}, {"x": 1, "y": 2}, 1)
    assert base == stage_key({"b": "2", "a": "1"}, {"y": 2, "x": 1}, 1)
    assert (
        len({base, stage_key({"a": "2", "b": "2"}, {"x": 1, "y": 2}, 1), stage_key({"a": "1", "b": "2"}, {}, 1)}) == 3
    )
    assert base != stage_key({"a": "1", "b": "2"}, {"x": 1, "y": 2}, 2)


def test_a_second_process_is_told_that_the_run_is_taken(tmp_path: Path) -> None:
    """One writer a run directory."""
    run = Run(tmp_path / "r")
    with locked(run), pytest.raises(PateError, match="another process"), locked(run):
        pass
    with locked(run):
        pass


@pytest.mark.parametrize("ids", [np.array([5, 3, 8]), np.array(["u", "v", "w"])])
def test_artifacts_round_trip(tmp_path: Path, ids: np.ndarray) -> None:
    """Queries, votes and labels are read back as they were written; an abstention is a null label."""
    import pyarrow.parquet as pq

    write_queries(tmp_path / "q.parquet", ids)
    assert read_queries(tmp_path / "q.parquet").tolist() == ids.tolist()
    votes = np.array([[3, 0], [1, 2], [2, 1]])
    write_votes(tmp_path / "v.parquet", votes)
    assert read_votes(tmp_path / "v.parquet").tolist() == votes.tolist()
    write_labels(tmp_path / "l.parquet", ids, np.array([1, -1]), {"pate.epsilon": "1.5"})
    table = pq.read_table(tmp_path / "l.parquet")
    assert table["label"].to_pylist() == [1, None]
    assert table["source"].to_pylist() == ["teachers", "abstained"]
    assert table["public_id"].to_pylist() == ids[:2].tolist()
    assert table.schema.metadata[b"pate.epsilon"] == b"1.5"
    assert str(table.schema.field("label").type) == "int32"
    assert str(pq.read_schema(tmp_path / "v.parquet").field("counts").type) == "fixed_size_list<element: int32>[2]"
    assert read_labels(tmp_path / "l.parquet")[1].tolist() == [1, -1]
    assert [part.tolist() for part in read_sources(tmp_path / "l.parquet")] == [["teachers", "abstained"], [0, 0]]
    write_queries(tmp_path / "q.parquet", ids, np.array([0, 1, 1]))
    assert pq.read_table(tmp_path / "q.parquet")["round"].to_pylist() == [0, 1, 1]
    sources = np.array(["teachers", "student", "abstained"])
    write_labels(tmp_path / "l.parquet", ids, np.array([1, 0, -1]), {}, sources=sources, rounds=np.array([0, 1, 1]))
    assert [part.tolist() for part in read_sources(tmp_path / "l.parquet")] == [sources.tolist(), [0, 1, 1]]


def test_a_corrupt_artifact_is_named(tmp_path: Path) -> None:
    """One line that names the file and what to do."""
    (tmp_path / "votes.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(UserError, match=r"votes\.parquet: is corrupt .* rerun its stage"):
        read_votes(tmp_path / "votes.parquet")
