"""The report's balance of classes and its subgroups: the counts add up, and what is rare is said to be."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from data.store import read_json
from flows.balance import class_rows, warnings

Pate = Callable[..., tuple[int, dict[str, Any], str]]
NAMES = ("a", "b", "c")


@given(st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 2)), min_size=1))
def test_every_query_is_counted_once(queries: list[tuple[int, int]]) -> None:
    """Released labels add up to the answers, asked queries to all, abstentions to the rest."""
    labels, predicted = np.array(queries).T
    rows = class_rows(NAMES, labels, predicted, (None, None, None))
    assert sum(row.released for row in rows) == (labels >= 0).sum()
    assert sum(row.asked for row in rows) == len(labels)
    assert sum(row.abstained for row in rows) == (labels < 0).sum()
    for row in rows:
        assert row.answered is None if row.asked == 0 else row.answered == 1 - row.abstained / row.asked


def test_rare_classes_are_named() -> None:
    """A class below half of an even share, and one whose queries went unanswered; a balanced release has neither."""
    labels = np.array([0] * 20 + [1] * 20 + [2] * 3 + [-1] * 12)
    predicted = np.array([0] * 20 + [1] * 20 + [2] * 15)
    few, unanswered = warnings(class_rows(NAMES, labels, predicted, (None, None, None)))
    assert "less than half of an even share: c (3)." in few
    assert unanswered.endswith("by the student's prediction: c (20.0%).")
    even = np.repeat([0, 1, 2], 10)
    assert warnings(class_rows(NAMES, even, even, (None, None, None))) == []


@pytest.mark.slow
def test_subgroups_of_a_table_reach_model_pages_and_report(pate: Pate, tmp_path: Path) -> None:
    """Student and baseline by ward with intervals; another column of subgroups evaluates anew at no charge."""
    for part, rows, seed in (("private", 600, 1), ("public", 60, 2), ("test", 120, 3)):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=rows)
        ward = rng.choice(["north", "<b>south"], rows)
        columns = {"x": x, "ward": ward, "age": rng.integers(0, 3, rows), "y": np.where(x > 0, "yes", "no")}
        pq.write_table(pa.table(columns), tmp_path / f"{part}.parquet")
    config = {
        "run_root": str(tmp_path / "runs"),
        "data": {
            "name": "ward",
            "source": "parquet",
            "label": "y",
            "subgroup": ["ward"],
            "classes": ["no", "yes"],
            **{part: str(tmp_path / f"{part}.parquet") for part in ("private", "public", "test")},
        },
        "ledger": {"epsilon": 100},
        "teachers": {"count": 10, "model": "logistic", "epochs": 5},
        "queries": {"strategy": "random", "count": 20},
        "aggregation": {"mechanism": "gnmax", "sigma": 4.0, "delta": 1.0e-5},
        "student": {"method": "supervised", "model": "logistic", "epochs": 5},
        "baseline": {"model": "logistic", "sampling_rate": 0.1, "batch_size": 60, "steps": 5},
    }
    path = tmp_path / "ward.yaml"
    path.write_text(yaml.safe_dump(config))
    assert pate("run", path, "--no-prefect", "--quiet")[0] == 0
    release = tmp_path / "runs" / "ward" / "release"
    truth = pq.read_table(tmp_path / "test.parquet")["ward"].to_pylist()
    for model in ("student", "baseline"):
        (group,) = read_json(release / f"{model}.json")["extra"]["evaluation"]["subgroups"]
        assert group["column"] == "ward"
        assert {each["value"]: each["count"] for each in group["values"]} == {w: truth.count(w) for w in set(truth)}
        assert all(0 <= each["low"] <= each["accuracy"] <= each["high"] <= 1 for each in group["values"])
    html = (release / "report.html").read_text()
    assert "<b>south" not in html
    # In the figure and in the tables of accuracy, of rates and of calibration.
    assert html.count("&lt;b&gt;south") == 4
    assert len(re.findall(r"[\d.]+ points<br>", html[html.index("Gap between") : html.index("Accuracy of the")])) == 2
    weights = (release / "baseline.safetensors").read_bytes()
    code, _, err = pate("run", path, "--no-prefect", "--json", "--set", "data.subgroup=[ward, age]")
    assert code == 0
    assert "charges" not in err
    assert (release / "baseline.safetensors").read_bytes() == weights
    assert [g["column"] for g in read_json(release / "student.json")["extra"]["evaluation"]["subgroups"]] == [
        "ward",
        "age",
    ]
    shutil.rmtree(tmp_path / "runs")
