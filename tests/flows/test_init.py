"""`pate init` on a user's own table and images: edit nothing, check, run; and every wrong wish in one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

from data.artifacts import read_labels
from data.partition import read_partition
from flows.config import load
from flows.onboarding import Wishes, start
from flows.recommend import delta_for, recommend

Pate = Callable[..., tuple[int, dict[str, Any], str]]
QUICK = ["--set", "teachers.runner=thread", "--set", "teachers.params={n_estimators: 5}"]


def _people(folder: Path, separator: str = ",", encoding: str = "utf-8") -> None:
    """A table of made-up people with 1 to 5 rows each, and public and test rows of the same columns."""
    generator = np.random.default_rng(5)
    rows = 1600
    ids = np.repeat(np.arange(rows), generator.integers(1, 6, rows))[:rows]
    weight = generator.normal(70, 12, rows)
    town = generator.choice(["Zürich", "Genève", "Bern"], rows)
    ill = np.where(weight + generator.normal(0, 8, rows) + 6 * (town == "Bern") > 74, "yes", "no")
    frame = pd.DataFrame(
        {
            "person_id": [f"P{n:04d}" for n in ids],
            "Weight in kg": weight.round(1),
            "Town": town,
            "seen": pd.Timestamp("2024-01-01") + pd.to_timedelta(generator.integers(0, 400, rows), "D"),
            "smokes": generator.choice([True, False], rows),
            "outcome": ill,
        }
    )
    frame.loc[generator.random(rows) < 0.05, "Weight in kg"] = np.nan
    decimal = "," if separator == ";" else "."
    parts = {
        "people": frame[ids < ids[1200]],
        "public": frame[ids >= ids[1200]].head(250).drop(columns="outcome"),
        "test": frame[ids >= ids[1200]].tail(100),
    }
    for name, part in parts.items():
        part.to_csv(folder / f"{name}.csv", index=False, sep=separator, decimal=decimal, encoding=encoding)


@pytest.mark.parametrize(("separator", "encoding"), [(",", "utf-8"), (";", "cp1252")])
def test_a_config_for_a_users_table_runs_unedited(
    separator: str, encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pate: Pate
) -> None:
    _people(tmp_path, separator, encoding)
    monkeypatch.chdir(tmp_path)
    code, made, _ = pate("init", "people.csv", "--public", "public.csv", "--test", "test.csv", "--json")
    assert code == 0
    settings = load(Path("people.yaml"))
    assert (settings.data.source, settings.data.unit, settings.data.label) == ("csv", "person_id", "outcome")
    assert settings.data.classes == ["no", "yes"]
    assert settings.data.encoding == encoding
    assert settings.data.delimiter == separator
    assert settings.data.decimal == ("," if separator == ";" else ".")
    people = pd.read_csv("people.csv", sep=separator, encoding=encoding)
    assert made["units"] == people["person_id"].nunique()

    code, checked, _ = pate("check", "people.yaml", "--json")
    assert code == 0
    assert checked["epsilon"] == pytest.approx(made["epsilon"])
    assert checked["epsilon"] <= 1.0
    assert checked["ledger_after"] <= made["ledger_limit"]
    if separator == ";":
        return
    code, result, error = pate("run", "people.yaml", "--no-prefect", "--quiet", "--json", *QUICK)
    assert (code, error) == (0, "")
    statement = (tmp_path / "runs/people/release/privacy.json").read_text()
    assert "Unit of privacy: one person_id." in statement
    assert len(read_labels(Path(result["labels"]))[1]) == made["max_answers"]

    _remove_one_person(people, pate)


def _remove_one_person(people: pd.DataFrame, pate: Pate) -> None:
    """Without one person, with all her rows, one teacher's shard changes and no other."""
    before = read_partition(Path("runs/people/private/partition.parquet"))
    gone = people["person_id"].value_counts().index[0]
    people[people["person_id"] != gone].to_csv("fewer.csv", index=False)
    code, _, _ = pate("partition", "people.yaml", "--run", "fewer", "--set", "data.private=fewer.csv", "--quiet")
    assert code == 0
    after = read_partition(Path("runs/fewer/private/partition.parquet"))
    here, there = (dict(zip(p.units.tolist(), p.teachers.tolist(), strict=True)) for p in (before, after))
    assert len(here) - len(there) == 1
    assert here.items() - there.items() == {(unit, here[unit]) for unit in here.keys() - there.keys()}
    assert there.items() <= here.items()


def _digit_folders(folder: Path) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = (digits.images * 255 / 16).astype(np.uint8)
    for part, rows in (("private", slice(0, 900)), ("public", slice(900, 1300)), ("test", slice(1300, 1400))):
        for number, (image, label) in enumerate(zip(pixels[rows], digits.target[rows], strict=True)):
            place = folder / part / ("" if part == "public" else str(label))
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"{number}.png")


def test_a_config_for_a_folder_of_images_runs_unedited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pate: Pate
) -> None:
    _digit_folders(tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    code, made, _ = pate("init", "digits", "--epsilon", "5", "--json")
    assert code == 0
    assert made["units"] == 900
    assert load(Path("digits.yaml")).data.class_names == tuple("0123456789")
    quick = ["--set", "teachers.epochs=3", "--set", "student.epochs=2", "--set", "baseline.enabled=false"]
    code, _, error = pate("run", "digits.yaml", "--no-prefect", "--quiet", "--json", *quick)
    assert (code, error) == (0, "")
    assert (tmp_path / "runs/digits/release/report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.csv"], "FILE = 'absent.csv': no such file or folder"),
        (["notes.doc"], "must be a folder of images, or end in"),
        (["people.csv", "--label", "x"], "--label = 'x': must be a column: person_id"),
        (["people.csv", "--unit", "x"], "--unit = 'x': must be a column: person_id"),
        (["people.csv"], "--classes: must name the classes"),
        (["people.csv", "--classes", "yes"], "--classes = 'yes': must name at least 2 classes"),
        (["public.csv", "--classes", "no,yes"], "--label: must name the column to be predicted"),
        (["people.csv", "--classes", "no,yes", "--epsilon", "0"], "--epsilon = 0.0: must be above 0"),
        (["people.csv", "--classes", "no,yes", "--epsilon", "nan"], "--epsilon = nan: must be above 0"),
        (["people.csv", "--classes", "no,yes", "--epsilon", "1e-7"], "--epsilon = 1e-07: is so small that δ = "),
        (["people.csv", "--classes", "no,yes", "--public", "x.csv"], "--public = 'x.csv': no such file or folder"),
        (["people.csv", "--classes", "no,yes", "--out", "people.csv"], "--out = 'people.csv': is there already"),
        (["people.csv", "--classes", "no,yes", "--encoding", "klingon"], "klingon"),
        (["few.csv", "--classes", "no,yes"], "holds too few units"),
        (["people.npz", "--classes", "no,yes"], "--label = 'labels': must be an array: x"),
    ],
)
def test_wrong_wishes_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pate: Pate
) -> None:
    _people(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("notes.doc").write_text("x")
    Path("few.csv").write_text("x,outcome\n1,no\n2,yes\n")
    np.savez("people.npz", x=np.zeros((3, 2)))
    code, _, error = pate("init", *arguments)
    assert code == 2
    assert message in error
    assert error.count("\n") == 1
    assert not [path for path in Path.cwd().iterdir() if path.suffix in (".yaml", ".tmp")]


def test_a_file_that_names_no_dataset_is_named_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / "ward 7").mkdir()
    _people(tmp_path / "ward 7")
    (tmp_path / "ward 7" / "people.csv").rename(tmp_path / "ward 7" / "private.csv")
    start(Wishes(tmp_path / "ward 7" / "private.csv", classes=("no", "yes")), tmp_path / "out.yaml")
    assert load(tmp_path / "out.yaml").data.name == "ward-7-private"


def test_classes_are_never_read_from_private_rows(tmp_path: Path) -> None:
    _people(tmp_path)
    wishes = Wishes(tmp_path / "people.csv", classes=("0", "1"))
    start(wishes, tmp_path / "out.yaml")
    text = (tmp_path / "out.yaml").read_text()
    record = yaml.safe_load(text)
    assert record["data"]["classes"] == ["0", "1"]
    private = pd.read_csv(tmp_path / "people.csv")
    for column in ("Town", "person_id"):
        assert not any(value in text for value in private[column].unique().tolist())


@pytest.mark.parametrize(("units", "public", "classes"), [(300, 50, 2), (7_000, 3_000, 2), (60_000, 10_000, 10)])
def test_recommendations_meet_their_target(units: int, public: int, classes: int) -> None:
    found = recommend(units, public, classes, 1.0)
    assert found.epsilon <= 1.0
    assert found.delta == delta_for(units)
    assert found.delta <= 0.1 / units
    assert found.answers <= public
    assert found.teachers * 3 * classes <= units
    if not found.doubts:
        assert found.sigma <= found.teachers / 4
