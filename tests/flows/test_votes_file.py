"""Votes of any file: every format gives the same table, and whatever is wrong is one line without a value."""

import contextlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data.artifacts import write_votes
from data.errors import UserError
from flows import votes_file

VOTES = np.random.default_rng(0).multinomial(250, [0.5, 0.3, 0.2], size=120_000)


def _table() -> pa.Table:
    return pa.table({f"class {c}": VOTES[:, c] for c in range(3)})


def _written(folder: Path, kind: str) -> Path:
    path = folder / f"votes{kind.removesuffix(' headless').removesuffix(' counts')}"
    if kind == ".npy":
        np.save(path, VOTES)
    elif kind == ".npz":
        np.savez_compressed(path, anything=VOTES.astype(np.float32))
    elif kind == ".parquet":
        pq.write_table(_table(), path)
    elif kind == ".parquet counts":
        write_votes(path, VOTES)
    else:
        pyarrow.csv.write_csv(_table(), path, pyarrow.csv.WriteOptions(include_header=kind == ".csv"))
    return path


@pytest.mark.parametrize("kind", [".npy", ".npz", ".parquet", ".parquet counts", ".csv", ".csv headless"])
def test_every_format_gives_the_same_table_in_blocks(kind: str, tmp_path: Path) -> None:
    found = list(votes_file.blocks(_written(tmp_path, kind)))
    assert len(found) > 1
    assert np.array_equal(np.concatenate(found), VOTES)


def test_a_limit_takes_the_first_rows(tmp_path: Path) -> None:
    path = _written(tmp_path, ".parquet")
    for limit in (1, votes_file.BLOCK, votes_file.BLOCK + 1):
        assert np.array_equal(np.concatenate(list(votes_file.blocks(path, limit))), VOTES[:limit])


def test_labels_are_counted_per_query() -> None:
    labels = np.random.default_rng(1).integers(0, 4, (30, 7))
    expected = [[int((row == c).sum()) for c in range(4)] for row in labels]
    assert votes_file.counts_of(labels, 4).tolist() == expected


@pytest.mark.parametrize("bad", [[[0, 4]], [[-1, 0]], [[0.5, 1]], [[np.nan, 1]], [[np.inf, 1]]])
def test_labels_that_name_no_class_are_refused(bad: list[list[float]]) -> None:
    with pytest.raises(UserError, match="every teacher's label"):
        votes_file.counts_of(np.array(bad), 4)


def _bad_files(folder: Path) -> dict[str, str]:
    np.save(folder / "three.npy", np.zeros((2, 2, 2)))
    np.save(folder / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save(folder / "none.npy", np.zeros((0, 3)))
    np.save(folder / "text.npy", np.array([["7731", "b"]]))
    np.savez(folder / "two.npz", a=VOTES[:2], b=VOTES[:2])
    pq.write_table(pa.table({"a": ["7731"]}), folder / "text.parquet")
    (folder / "ragged.csv").write_text("a,b\n1,2\n7731\n")
    (folder / "words.csv").write_text("a,b\n1,2\n7731,x\n")
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("a,b\n")
    for name in ("garbage.npy", "garbage.npz", "garbage.parquet", "garbage.csv"):
        (folder / name).write_bytes(bytes(range(256)) * 3)
    (folder / "folder.npy").mkdir()
    must = "must hold a table of numbers, queries by classes"
    return {
        **dict.fromkeys(["three.npy", "objects.npy", "text.npy", "text.parquet", "ragged.csv", "words.csv"], must),
        **dict.fromkeys(["garbage.npy", "garbage.npz", "garbage.parquet", "garbage.csv", "empty.csv"], must),
        **dict.fromkeys(["none.npy", "header.csv"], "holds no row"),
        **dict.fromkeys(["absent.npy", "folder.npy"], "no such file"),
        "two.npz": "must hold one array, not 2",
        "votes.xlsx": "must end in .npy, .npz, .parquet, .csv",
    }


def test_what_is_not_votes_is_one_line_without_a_value(tmp_path: Path) -> None:
    for name, message in _bad_files(tmp_path).items():
        with pytest.raises(UserError, match=message) as caught:
            list(votes_file.blocks(tmp_path / name))
        assert "7731" not in str(caught.value)
        assert "\n" not in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=200), suffix=st.sampled_from(votes_file.SUFFIXES))
@example(content=b"PK\x03\x04", suffix=".npy")
def test_any_bytes_give_a_table_or_a_user_error(
    content: bytes, suffix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / f"votes{suffix}"
    path.write_bytes(content)
    with contextlib.suppress(UserError):
        assert all(block.ndim == 2 for block in votes_file.blocks(path))
