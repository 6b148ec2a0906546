"""`pate check` finds what a run would stumble over, and foresees shards without a class as partitions make them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from data.identity import teachers_of, unit_ids

Pate = Callable[..., tuple[int, dict[str, Any], str]]
TEACHERS = 25


def _config(folder: Path, private: pd.DataFrame) -> Path:
    private.to_csv(folder / "private.csv", index=False)
    generator = np.random.default_rng(1)
    pd.DataFrame({"x": generator.normal(size=80)}).to_csv(folder / "public.csv", index=False)
    config = {
        "run_root": str(folder / "runs"),
        "data": {
            "name": "clinic",
            "source": "csv",
            "private": str(folder / "private.csv"),
            "public": str(folder / "public.csv"),
            "label": "y",
            "unit": "who",
            "classes": ["a", "b", "rare"],
        },
        "ledger": {"epsilon": 50},
        "teachers": {"count": TEACHERS, "model": "logistic"},
        "queries": {"strategy": "random", "count": 20},
        "aggregation": {"mechanism": "gnmax", "sigma": 7, "delta": 1e-4},
        "student": {"method": "supervised", "model": "logistic"},
        "baseline": {"enabled": False},
    }
    path = folder / "clinic.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def _people(rare: int) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    who = np.repeat(np.arange(500), 2)
    y = generator.choice(["a", "b"], len(who)).astype(object)
    y[: 2 * rare : 2] = "rare"
    return pd.DataFrame({"who": who, "x": generator.normal(size=len(who)), "y": y})


def test_a_class_that_shards_will_lack_is_foreseen(tmp_path: Path, pate: Pate) -> None:
    people = _people(rare=30)
    code, found, error = pate("check", _config(tmp_path, people), "--json")
    assert (code, error) == (0, "")
    assert found["units_by_class"] == {
        name: people.loc[people.y == name, "who"].nunique() for name in ("a", "b", "rare")
    }
    # The shares of shards that the hash itself leaves without the class, over 200 seeds.
    holders = [str(who).encode() for who in people.loc[people.y == "rare", "who"].unique()]
    lacking = [TEACHERS - len(set(teachers_of(unit_ids(holders, seed), TEACHERS, seed))) for seed in range(200)]
    assert found["shards_without_class"]["rare"] == pytest.approx(np.mean(lacking), abs=0.6)
    assert [w for w in found["warnings"] if w.startswith("shards without a class") and "'rare'" in w]


def test_no_warning_where_every_shard_holds_every_class(tmp_path: Path, pate: Pate) -> None:
    code, found, _ = pate("check", _config(tmp_path, _people(rare=250)), "--json")
    assert code == 0
    assert not [w for w in found["warnings"] if w.startswith("shards without a class")]


@pytest.mark.parametrize(
    ("column", "bad", "message"),
    [
        ("y", "zebra", "column 'y' must hold only the labels of data.classes: a, b, rare"),
        ("x", "1.2.3", "column 'x' must hold numbers only"),
        ("who", "", "column 'who' must name a unit or id in every row"),
    ],
)
def test_a_malformed_private_row_is_found_before_anything_is_spent(
    column: str, bad: str, message: str, tmp_path: Path, pate: Pate
) -> None:
    people = _people(rare=30).astype(str)
    people.loc[777, column] = bad
    code, _, error = pate("check", _config(tmp_path, people))
    assert code == 2
    assert message in error
    assert "777" not in error
    assert not bad or bad not in error
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".check")] == []
    assert not (tmp_path / "runs").exists()


def test_a_public_part_that_was_drawn_from_private_records_is_noticed(tmp_path: Path, pate: Pate) -> None:
    """The private file without its labels, in another order and beside rows of its own, is still that file."""
    people = _people(rare=250)
    config = _config(tmp_path, people)
    assert [w for w in pate("check", config, "--json")[1]["warnings"] if w.startswith("data.public")] == []
    own = pd.DataFrame({"x": np.random.default_rng(2).normal(size=3000)})
    pd.concat([own, people[["x"]]]).sample(frac=1, random_state=0).to_csv(tmp_path / "public.csv", index=False)
    code, found, _ = pate("check", config, "--json")
    assert code == 0
    assert [w for w in found["warnings"] if w.startswith("data.public: 25% of its inputs equal a private record")]


def test_the_smaller_limit_is_named(tmp_path: Path, pate: Pate) -> None:
    """Of the ledger's limit and the settings' the smaller holds, and the user is told which to change."""
    config = _config(tmp_path, _people(rare=250))
    url = f"sqlite:///{tmp_path / 'runs' / 'ledger.sqlite'}"
    given = ("--epsilon", "1", "--delta", "1e-4", "--unit", "who", "--reason", "board", "--ledger", url)
    (tmp_path / "runs").mkdir()
    assert pate("ledger", "limit", "clinic", *given)[0] == 0
    for limit, hint in (
        ("50", "`pate ledger limit` raises the stored limit"),
        ("0.5", "ledger.epsilon is the smaller"),
    ):
        found = pate("check", config, "--set", f"ledger.epsilon={limit}", "--json")[1]
        assert [w for w in found["warnings"] if w.startswith("the ledger would refuse") and hint in w]


def test_a_run_root_that_cannot_be_written_is_one_line(tmp_path: Path, pate: Pate) -> None:
    code, _, error = pate("check", _config(tmp_path, _people(rare=250)), "--set", "run_root=/proc/runs")
    assert code == 2
    assert error.startswith("error: run_root = '/proc/runs': cannot be written")


def test_too_little_disk_is_foreseen(tmp_path: Path, pate: Pate, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    total = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr("flows.check.shutil.disk_usage", lambda _: total)
    code, found, _ = pate("check", _config(tmp_path, _people(rare=250)), "--json")
    assert code == 0
    assert [w for w in found["warnings"] if "10.0 bytes are free" in w]
