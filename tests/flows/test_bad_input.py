"""Bad input: one line, the right exit code, no value of a private row, nothing released, nothing left charged."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from accounting.ledger import open_ledger

Pate = Callable[..., tuple[int, dict[str, Any], str]]
CANARY = "CANARY-7f3a"


def _table(rows: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=rows)
    return {
        "age": x.tolist(),
        "ward": rng.choice(["a", "b"], rows).tolist(),
        "who": [f"p{n}" for n in range(rows)],
        "outcome": np.where(x + rng.normal(size=rows) / 4 > 0, "yes", "no").tolist(),
    }


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A config over private, public and test Parquet files in the test's own folder."""
    for name, rows, seed in (("private", 300, 1), ("public", 60, 2), ("test", 50, 3)):
        columns = _table(rows, seed)
        if name == "public":
            del columns["outcome"]
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    config = {
        "run_root": str(tmp_path / "runs"),
        "data": {
            "name": "ward",
            "source": "parquet",
            "label": "outcome",
            "unit": "who",
            "classes": ["no", "yes"],
            **{part: str(tmp_path / f"{part}.parquet") for part in ("private", "public", "test")},
        },
        "ledger": {"epsilon": 100},
        "teachers": {"count": 10, "model": "logistic", "epochs": 5},
        "queries": {"strategy": "random", "count": 20},
        "aggregation": {"mechanism": "gnmax", "sigma": 4.0, "delta": 1.0e-5},
        "student": {"method": "supervised", "model": "logistic", "epochs": 5},
        "baseline": {"enabled": False},
    }
    path = tmp_path / "table.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def _edit(table: Path, part: str, change: Callable[[dict[str, Any]], None]) -> None:
    path = table.parent / f"{part}.parquet"
    columns = pq.read_table(path).to_pydict()
    change(columns)
    pq.write_table(pa.table(columns), path)


def _run(pate: Pate, table: Path, *options: str) -> tuple[int, str]:
    sets = [word for option in options for word in ("--set", option)]
    code, result, err = pate("run", table, "--no-prefect", "--json", *sets)
    if code:
        assert len([line for line in err.splitlines() if line.startswith("error:")]) == 1, err
        assert "Traceback" not in err
        assert result["exit_code"] == code
        assert CANARY not in err + json.dumps(result)
    return code, result.get("error", "")


def _nothing_happened(table: Path) -> None:
    root = table.parent / "runs"
    release = root / "table" / "release"
    assert not release.exists() or not [
        p for p in release.iterdir() if p.name not in ("queries.parquet", "manifest.json")
    ]
    if (root / "ledger.sqlite").exists():
        ledger = open_ledger(f"sqlite:///{root}/ledger.sqlite")
        assert all(ledger.spent(account.name) == 0 for account in ledger.accounts())


def _set(column: str, row: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(columns: dict[str, Any]) -> None:
        columns[column] = [*columns[column]]
        columns[column][row] = value

    return change


@pytest.mark.parametrize(
    ("part", "change", "expected"),
    [
        ("private", _set("outcome", 5, CANARY), "must hold only the labels of data.classes"),
        ("private", _set("outcome", 5, None), "must hold only the labels of data.classes"),
        ("private", _set("age", 5, float("inf")), "column 'age' must hold finite numbers only"),
        ("private", _set("who", 5, None), "column 'who' must name a unit"),
        ("private", lambda c: c.pop("age"), "has no column 'age'"),
        ("private", lambda c: c.pop("who"), "data.unit = 'who'"),
        ("private", lambda c: c.update(age=[CANARY] * 300), "column 'age' must hold double values only"),
        ("public", lambda c: [c.update({name: values[:0]}) for name, values in list(c.items())], "holds no row"),
        ("public", lambda c: [c.update({name: values[:9]}) for name, values in list(c.items())], "queries.count = 20"),
        ("public", _set("age", 1, float("inf")), "column 'age' must hold finite numbers only"),
        ("test", lambda c: c.pop("outcome"), "has no column 'outcome'"),
        ("test", _set("outcome", 1, "perhaps"), "must hold only the labels of data.classes"),
    ],
)
def test_bad_rows(pate: Pate, table: Path, part: str, change: Callable[..., Any], expected: str) -> None:
    """Whatever is wrong with a file is found before anything is released, and its charge is given back."""
    good = (table.parent / f"{part}.parquet").read_bytes()
    _edit(table, part, change)
    code, error = _run(pate, table)
    assert code == 2
    assert expected in error
    _nothing_happened(table)
    # Mended, the same run goes on: nothing had been made from the bad file.
    (table.parent / f"{part}.parquet").write_bytes(good)
    assert _run(pate, table)[0] == 0


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("data.private=nowhere.parquet", "no such file"),
        ("data.private=/tmp", "must be a file"),
        ("data.unit=nobody", "data.unit = 'nobody'"),
        ("data.id=nobody", "data.id = 'nobody'"),
        ("teachers.count=301", "must be at most the number of private units"),
        ("teachers.device=cuda", "no CUDA device"),
        ("teachers.model=cnn", "is for images"),
        ("student.model=cnn", "is for images"),
        ("teachers.model=sklearn:sklearn.nothing.Here", "sklearn.nothing.Here"),
        ("aggregation.sigma=1e300", "less than or equal to"),
        ("aggregation.delta=0.1", "aggregation.delta = 0.1: must be below 1/teachers.count"),
        ("data=null", "data"),
        ("a.b.c=1", "a: is not a setting"),
        (".=1", "must be key.sub=value"),
        ("ledger.url=mysql://user:s3cret@host/db", "ledger.url"),
        ("run_root=/dev/null/x", "run_root"),
    ],
)
def test_bad_settings(pate: Pate, table: Path, option: str, expected: str) -> None:
    """Found before anything is released or charged; passwords are not shown."""
    code, error = _run(pate, table, option)
    assert code == 2
    assert expected in error
    assert "s3cret" not in error
    _nothing_happened(table)


@pytest.mark.parametrize("spelling", ["link", "dots", "copy"])
def test_private_rows_cannot_pass_for_public_ones(pate: Pate, table: Path, spelling: str) -> None:
    """Another spelling of the private file, a link to it and a copy of it are all refused."""
    private = table.parent / "private.parquet"
    other = table.parent / "other.parquet"
    if spelling == "link":
        other.symlink_to(private)
    elif spelling == "copy":
        other.write_bytes(private.read_bytes())
    else:
        (table.parent / "x").mkdir()
        other = table.parent / "x" / ".." / "private.parquet"
    code, error = _run(pate, table, f"data.public={other}")
    assert code == 2
    assert "overlaps data.private" in error or "is a copy of data.private" in error
    _nothing_happened(table)


@pytest.mark.parametrize(
    "text",
    ["a: &x {b: *x}", "a: 2020-99-99", "[" * 3000, "ledger: {epsilon: 1, epsilon: 2}", "a: !!python/object:os.x {}"],
)
def test_hostile_yaml(pate: Pate, tmp_path: Path, text: str) -> None:
    """References to itself, impossible dates, deep nesting, repeated keys, foreign tags: one line each."""
    path = tmp_path / "x.yaml"
    path.write_text(text)
    code, _, err = pate("run", path)
    assert code == 2
    assert len(err.strip().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"data": {"classes": ["yes", "no"]}},
        {"data": {"label": "ward", "classes": ["a", "b"]}},
        {"data": {"private": "[:200]"}},
        {"data": {"unit": None}},
    ],
)
def test_teachers_of_other_data_are_never_reused(pate: Pate, table: Path, change: dict[str, Any]) -> None:
    """Another label, order of classes, slice or unit: the votes are those of a run from scratch."""
    assert _run(pate, table)[0] == 0
    config = yaml.safe_load(table.read_text())
    changed = copy.deepcopy(config)
    for name, value in change["data"].items():
        changed["data"][name] = config["data"]["private"] + value if name == "private" else value
    for root in ("runs", "scratch"):
        path = table.parent / "changed.yaml"
        # Another unit is another kind of account: it needs a ledger of its own.
        url = f"sqlite:///{table.parent}/{root}-changed.sqlite"
        changed["ledger"]["url"] = url if change["data"].get("unit", "") is None else None
        path.write_text(yaml.safe_dump(changed | {"run_root": str(table.parent / root)}))
        for stage in ("partition", "teach", "queries", "vote"):
            code, result, _ = pate(stage, path, "--run", "table", "--json")
            assert code == 0, result
            if root == "runs" and stage in ("partition", "teach", "vote"):
                assert not result["reused"]
    one, other = (table.parent / root / "table" / "private" / "votes.parquet" for root in ("runs", "scratch"))
    assert pq.read_table(one).equals(pq.read_table(other))
