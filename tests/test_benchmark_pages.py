"""The pages that benchmarks write from their lines: intervals against scipy, and nothing left out."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import stats

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (BENCHMARKS / f"{name}.jsonl").read_text().splitlines()]


def _half_width(values: list[float]) -> float:
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    return float(high - low) / 2


def test_an_interval_is_students_from_three_runs_on() -> None:
    interval = _script("results").interval
    values = [0.989, 0.987, 0.988, 0.981]
    assert interval(values) == f"{100 * np.mean(values):.2f} ± {100 * _half_width(values):.2f}"
    assert interval([0.98, 0.99]) == "98.50"
    assert interval([0.98, None, 0.99]) == "–"


def test_a_difference_is_paired_by_seed() -> None:
    script = _script("student")
    less = [-0.001, 0.002, -0.004]
    assert script.difference(less) == f"{100 * np.mean(less):+.2f} ± {100 * _half_width(less):.2f}"
    part = {"config": "c", "options": [], "changed": [], "seconds": 1}
    lines = [
        part | {"variant": variant, "seed": seed, "test": test, "public": public}
        for variant, seed, test, public in [
            (script.WHOLE, 0, 0.9, 0.8),
            ("other", 1, 0.5, 0.6),
            ("other", 0, 0.7, 0.9),
            (script.WHOLE, 1, 0.6, 0.4),
        ]
    ]
    assert "| other |  | 60.00 | 75.00 | -15.00 | +15.00 | 1 |" in script.page(lines)


@pytest.mark.parametrize(("name", "page"), [("results", "RESULTS.md"), ("student", "STUDENT.md")])
def test_a_page_is_made_of_all_its_lines(name: str, page: str) -> None:
    assert _script(name).page(_lines(name)) == (BENCHMARKS / page).read_text()
