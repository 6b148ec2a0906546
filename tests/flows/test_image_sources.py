"""Folders of images and npz files end to end: a whole run, predictions, and one line for whatever is wrong."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image
from sklearn.datasets import load_digits

from accounting.ledger import open_ledger
from tests.flows.small import SMALL

Pate = Callable[..., tuple[int, dict[str, Any], str]]
CANARY = "CANARY-7f3a"
PARTS = {"private": slice(0, 300), "public": slice(300, 400), "test": slice(400, 500)}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as PNGs, a folder a class (the public part flat), and as npz files. Tests must not change it."""
    folder = tmp_path_factory.mktemp("digits")
    whole = load_digits()
    pixels = np.rint(whole.images * (255 / 16)).astype(np.uint8)
    for part, rows in PARTS.items():
        for row, image, label in zip(range(*rows.indices(500)), pixels[rows], whole.target[rows], strict=True):
            inside = folder / part / ("" if part == "public" else str(label))
            inside.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(inside / f"p{row // 2}_{row}.png")
        labels = {} if part == "public" else {"labels": whole.target[rows]}
        np.savez(
            folder / f"{part}.npz", x=pixels[rows], who=np.arange(500)[rows] // 2, row=np.arange(500)[rows], **labels
        )
    return folder


def _config(folder: Path, data: Path, source: str, **more: Any) -> Path:
    suffix = ".npz" if source == "npz" else ""
    parts = {part: str(data / f"{part}{suffix}") for part in PARTS}
    settings: dict[str, Any] = {"name": source, "source": source, "classes": [str(n) for n in range(10)], **parts}
    record = SMALL | {"run_root": str(folder / "runs"), "data": settings | more, "baseline": {"enabled": False}}
    path = folder / f"{source}.yaml"
    path.write_text(yaml.safe_dump(record))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("source", ["imagefolder", "npz"])
def test_a_whole_run(pate: Pate, digits: Path, tmp_path: Path, source: str) -> None:
    """Checked, run, reused; a folder and arrays labelled by the student; units and public ids as declared."""
    named = {"unit": r"^p(\d+)_", "id": "path"} if source == "imagefolder" else {"unit": "who", "id": "row"}
    config = _config(tmp_path, digits, source, **named)
    code, forecast, err = pate("check", config, "--json")
    assert code == 0, err
    assert forecast["shards"]["units"] == 150
    assert [forecast[name] for name in ("records", "public", "test")] == [300, 100, 100]
    code, result, err = pate("run", config, "--no-prefect", "--json")
    assert code == 0, err
    assert result["asked"] > 0
    assert pate("run", config, "--no-prefect", "--json")[1]["reused"]
    ids = pq.read_table(tmp_path / "runs" / source / "release" / "labels.parquet")["public_id"].to_pylist()
    public = [f"p{row // 2}_{row}.png" for row in range(300, 400)] if source == "imagefolder" else range(300, 400)
    assert set(ids) <= set(public)
    accuracy = json.loads((tmp_path / "runs" / source / "release" / "student.json").read_text())["extra"]["evaluation"]
    found = {}
    for name in ("test", "test.npz", "test/3"):
        out = tmp_path / "out.parquet"
        code, _, err = pate("predict", source, digits / name, "--out", out, "--run-root", tmp_path / "runs")
        assert code == 0, err
        found[name] = pq.read_table(out)
    truth = [path.split("/")[0] for path in found["test"]["path"].to_pylist()]
    correct = np.mean([a == b for a, b in zip(found["test"]["label"].to_pylist(), truth, strict=True)])
    assert correct == pytest.approx(accuracy["accuracy"])
    assert sorted(found["test"]["probability"].to_pylist()) == sorted(found["test.npz"]["probability"].to_pylist())
    assert found["test/3"].num_rows == truth.count("3")


def test_a_new_image_size_is_new_data(pate: Pate, digits: Path, tmp_path: Path) -> None:
    """The same folders in another size give another partition stage; the same size again reuses it."""
    config = _config(tmp_path, digits, "imagefolder", unit=r"^p(\d+)_")
    assert not pate("partition", config, "--json")[1]["reused"]
    assert pate("partition", config, "--json")[1]["reused"]
    assert not pate("partition", config, "--json", "--set", "data.image_size=6")[1]["reused"]


@pytest.mark.parametrize("change", ["rename", "relabel", "edit"])
def test_a_changed_private_folder_is_refused(pate: Pate, digits: Path, tmp_path: Path, change: str) -> None:
    """Another file name, another class folder, another byte: the run directory belongs to other content."""
    shutil.copytree(digits, tmp_path / "data")
    config = _config(tmp_path, tmp_path / "data", "imagefolder")
    assert pate("partition", config, "--json")[0] == 0
    file = next((tmp_path / "data" / "private" / "3").iterdir())
    if change == "rename":
        file.rename(file.with_name("new.png"))
    elif change == "relabel":
        file.rename(tmp_path / "data" / "private" / "4" / file.name)
    else:
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(file)
    code, result, _ = pate("partition", config, "--json")
    assert code == 2
    assert "has changed since" in result["error"]


def _image(folder: Path, name: str, content: bytes | None = None) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is not None:
        path.write_bytes(content)
    else:
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(path)


def _arrays(folder: Path, part: str, **changed: Any) -> None:
    with np.load(folder / f"{part}.npz") as held:
        arrays = {name: values for name, values in (dict(held) | changed).items() if values is not None}
    np.savez(folder / f"{part}.npz", **arrays)


def _empty(folder: Path, part: str) -> None:
    shutil.rmtree(folder / part)
    (folder / part).mkdir()


def _cut(folder: Path, part: str) -> None:
    whole = (folder / f"{part}.npz").read_bytes()
    (folder / f"{part}.npz").write_bytes(whole[: len(whole) // 2])


@pytest.mark.parametrize(
    ("source", "break_", "expected"),
    [
        ("imagefolder", lambda f: _empty(f, "public"), "data.public = .* holds no row"),
        ("imagefolder", lambda f: _empty(f, "private"), "data.private = .* holds no row"),
        ("imagefolder", lambda f: _image(f, f"private/3/{CANARY}.png", b"\x89PNG"), "every image of .*private"),
        ("imagefolder", lambda f: _image(f, "public/x.png", b"\x89PNG"), "public/x.png.*: must be a whole, readable"),
        ("imagefolder", lambda f: _image(f, "test/3/x.png", b"\x89PNG"), "test/3/x.png.*: must be a whole, readable"),
        ("imagefolder", lambda f: _image(f, f"private/{CANARY}/x.png"), "a folder named as one of data.classes: 0, 1"),
        ("imagefolder", lambda f: _image(f, f"private/{CANARY}.png"), "a folder named as one of data.classes: 0, 1"),
        ("imagefolder", lambda f: _image(f, "test/ten/x.png"), "a folder named as one of data.classes: 0, 1"),
        ("npz", lambda f: _cut(f, "private"), "private.npz.*: is not a readable .npz"),
        ("npz", lambda f: _arrays(f, "private", labels=np.full(300, 10)), "'labels' must hold only"),
        ("npz", lambda f: _arrays(f, "private", labels=np.full(300, 0.5)), "'labels' must hold integers"),
        ("npz", lambda f: _arrays(f, "private", labels=np.zeros(299, int)), "'labels' must hold one value for each"),
        ("npz", lambda f: _arrays(f, "private", labels=np.full(300, CANARY)), "'labels' must hold only the labels"),
        ("npz", lambda f: _arrays(f, "private", x=np.full((300, 8, 8), {}, object)), "no objects"),
        ("npz", lambda f: _arrays(f, "private", x=np.zeros((300, 8, 9), np.uint8)), r"rows of shape \(8, 8\)"),
        ("npz", lambda f: _arrays(f, "private", y=np.zeros(300)), "and holds 'x', 'y'"),
        ("npz", lambda f: _arrays(f, "public", x=np.zeros((0, 8, 8), np.uint8), who=None, row=None), "holds no row"),
        ("npz", lambda f: _arrays(f, "test", labels=None), "data.label = 'labels'"),
    ],
)  # fmt: skip
def test_whatever_is_wrong_is_one_line(
    pate: Pate, digits: Path, tmp_path: Path, source: str, break_: Callable[[Path], None], expected: str
) -> None:
    """Exit 2, no traceback, no name or value of a private record, nothing charged."""
    shutil.copytree(digits, tmp_path / "data")
    break_(tmp_path / "data")
    named = {} if source == "imagefolder" else {"unit": "who", "id": "row"}
    config = _config(tmp_path, tmp_path / "data", source, **named)
    code, result, err = pate("run", config, "--no-prefect", "--json")
    assert code == 2
    assert len([line for line in err.splitlines() if line.startswith("error:")]) == 1
    assert "Traceback" not in err
    assert CANARY not in err + json.dumps(result)
    assert re.search(expected, result["error"]), result["error"]
    if (tmp_path / "runs" / "ledger.sqlite").exists():
        ledger = open_ledger(f"sqlite:///{tmp_path}/runs/ledger.sqlite")
        assert all(ledger.spent(account.name) == 0 for account in ledger.accounts())


def test_one_class_is_no_task(pate: Pate, digits: Path, tmp_path: Path) -> None:
    """Fewer than two classes are refused with the settings."""
    config = _config(tmp_path, digits, "imagefolder", classes=["0"])
    code, result, _ = pate("check", config, "--json")
    assert code == 2
    assert "at least 2 classes" in result["error"]
