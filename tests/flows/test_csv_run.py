"""A whole run on CSV files with missing values, dates and persons: labels, a student, predictions; bad files exit 2."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

Pate = Callable[..., tuple[int, dict[str, Any], str]]


def _frame(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=rows)
    return pd.DataFrame(
        {
            "age": np.where(rng.random(rows) < 0.1, np.nan, x),
            "ward": rng.choice(["a", "b"], rows),
            "seen": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), unit="D"),
            "person": [f"p{n}" for n in rng.integers(0, rows // 2, rows)],
            "key": np.arange(rows) + 1_000,
            "outcome": np.where(x + rng.normal(size=rows) / 4 > 0, "yes", "no"),
        }
    )


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config over three CSV files, semicolons between cells and commas in numbers."""
    for part, rows, seed in (("private", 300, 1), ("public", 60, 2), ("test", 50, 3)):
        frame = _frame(rows, seed)
        if part == "public":
            frame = frame.drop(columns=["outcome", "person"])
        frame.to_csv(tmp_path / f"{part}.csv", index=False, sep=";", decimal=",")
    settings = {
        "run_root": str(tmp_path / "runs"),
        "data": {
            "name": "ward",
            "source": "csv",
            "label": "outcome",
            "unit": "person",
            "id": "key",
            "decimal": ",",
            "subgroup": ["ward"],
            "classes": ["no", "yes"],
            **{part: str(tmp_path / f"{part}.csv") for part in ("private", "public", "test")},
        },
        "ledger": {"epsilon": 100},
        "teachers": {"count": 10, "model": "logistic", "epochs": 5},
        "queries": {"strategy": "random", "count": 20},
        "aggregation": {"mechanism": "gnmax", "sigma": 4.0, "delta": 1.0e-5},
        "student": {"method": "supervised", "model": "logistic", "epochs": 20},
        "baseline": {"enabled": False},
    }
    path = tmp_path / "csv.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.mark.slow
def test_labels_join_and_predictions_agree(pate: Pate, config: Path) -> None:
    """public_id is the user's own key, a number; CSV, another delimiter and Parquet give the same predictions."""
    assert pate("run", config, "--no-prefect")[0] == 0
    folder = config.parent
    labels = pd.read_parquet(folder / "runs/csv/release/labels.parquet")
    public = pd.read_csv(folder / "public.csv", sep=";", decimal=",", parse_dates=["seen"])
    assert len(labels.merge(public, left_on="public_id", right_on="key")) == 20
    public.to_csv(folder / "commas.csv", index=False, quoting=1, decimal=",")
    public.to_parquet(folder / "typed.parquet")
    found = []
    for name in ("public.csv", "commas.csv", "typed.parquet"):
        assert pate("predict", "csv", folder / name, "--run-root", folder / "runs", "--out", folder / "out.csv")[0] == 0
        found.append((folder / "out.csv").read_text())
    assert found[0] == found[1] == found[2]
    assert len(found[0].splitlines()) == 61


@pytest.mark.parametrize(
    ("part", "change", "expected"),
    [
        ("private", lambda text: text.replace(";yes", ";CANARY", 1), "must hold only the labels of data.classes"),
        ("private", lambda text: text.replace("2020-", "2020-99-", 1), "column 'seen' must hold ISO dates only"),
        (
            "private",
            lambda text: re.sub(r";p\d+;", ";;", text, count=1),
            "column 'person' must name a unit or id in every row",
        ),
        ("public", lambda text: text.replace("key", "kay", 1), "data.id = 'key'"),
        ("test", lambda text: text.replace("ward", "wing", 1), "data.subgroup = 'ward'"),
    ],
)
def test_bad_files_are_one_line(
    pate: Pate, config: Path, part: str, change: Callable[[str], str], expected: str
) -> None:
    """Exit code 2, the file, the column and the rule, no cell; nothing is released or charged."""
    path = config.parent / f"{part}.csv"
    path.write_text(change(path.read_text()))
    code, result, err = pate("run", config, "--no-prefect", "--json")
    assert (code, result["exit_code"]) == (2, 2)
    assert expected in result["error"]
    assert len([line for line in err.splitlines() if line.startswith("error:")]) == 1
    assert "CANARY" not in err + result["error"]
    assert "Traceback" not in err
    assert not (config.parent / "runs/csv/release/labels.parquet").exists()
