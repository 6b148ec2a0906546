"""Pre-training in whole runs: from public inputs alone, and what is made of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from torch import nn

from data.store import read_json
from flows.config import build
from tests.flows.small import SMALL

PRETRAINING = {"method": "contrastive", "epochs": 2, "batch_size": 100, "width": 4, "dimensions": 16, "components": 8}
Pate = Callable[..., tuple[int, dict[str, Any], str]]


def _config(path: Path, **changes: dict[str, Any]) -> Path:
    record = {name: SMALL.get(name, {}) | changes.get(name, {}) for name in {*SMALL, *changes}}
    path.write_text(yaml.safe_dump(record))
    return path


@pytest.mark.slow
def test_a_whole_run_with_features(tmp_path: Path, pate: Pate) -> None:
    """The encoder is released, stated, listed and reused; without it again, it is taken back."""
    config = _config(tmp_path / "features.yaml", pretraining=PRETRAINING, queries={"strategy": "prototypes"})
    said = ("--no-prefect", "--json", "--set", f"run_root={tmp_path / 'runs'}")
    code, result, err = pate("run", config, *said)
    assert code == 0, err
    assert result["reused"] == []
    release = tmp_path / "runs" / "features" / "release"
    assert read_json(release / "encoder.json")["components"] == 8
    assert "encoder that was made from public inputs" in read_json(release / "privacy.json")["statement"]
    assert "the encoder of inputs" in (release / "report.html").read_text(encoding="utf-8")
    assert read_json(release / "baseline.json")["shape"] == [8]
    assert read_json(release / "student.json")["shape"] == [1, 8, 8]
    assert pate("run", config, *said)[1]["reused"][0] == "pretrain"
    assert pate("pretrain", config, *said[1:], "--set", "pretraining.method=none")[0] == 0
    assert not list(release.glob("encoder.*"))


@pytest.mark.slow
def test_an_encoder_is_the_same_whatever_the_private_records_are(tmp_path: Path, pate: Pate) -> None:
    """Bit for bit: with a private record more, and with other teachers."""
    from sklearn.datasets import load_digits

    images = np.round(load_digits().images * 255 / 16).astype(np.uint8)
    labels = load_digits().target.astype(np.int64)
    for name, count in (("fewer", 300), ("more", 301)):
        np.savez(tmp_path / f"{name}.npz", x=images[:count], y=labels[:count])
    np.savez(tmp_path / "public.npz", x=images[400:600], y=labels[400:600])
    found = []
    for name in ("fewer", "more"):
        data = {
            "name": name,
            "source": "npz",
            "label": "y",
            "private": str(tmp_path / f"{name}.npz"),
            "public": str(tmp_path / "public.npz"),
            "classes": [str(c) for c in range(10)],
        }
        record = dict(SMALL) | {"data": data, "pretraining": PRETRAINING}
        config = tmp_path / f"{name}.yaml"
        config.write_text(yaml.safe_dump(record))
        code, _, err = pate("pretrain", config, "--set", f"run_root={tmp_path / name}")
        assert code == 0, err
        release = tmp_path / name / name / "release"
        found.append([(release / f"encoder.{end}").read_bytes() for end in ("safetensors", "json")])
    assert found[0] == found[1]


def opposite(shape: tuple[int, ...]) -> nn.Module:
    """A user's module whose features are as many as the inputs, and not the inputs."""
    layer = nn.Linear(shape[0], shape[0], bias=False)
    with torch.no_grad():
        layer.weight.copy_(-torch.eye(shape[0]).flip(0))
    return layer


@pytest.mark.slow
def test_a_baseline_on_as_many_features_as_inputs_is_measured_on_features(tmp_path: Path, pate: Pate) -> None:
    """Its page and the table of the evaluation agree; the statement does not vouch for a module that was given."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 900)
    vectors = (rng.normal(size=(900, 4)) + 3 * labels[:, None] * [1, 0, -1, 0]).astype(np.float32)
    parts = {"private": slice(0, 500), "public": slice(500, 700), "test": slice(700, 900)}
    for name, rows in parts.items():
        np.savez(tmp_path / f"{name}.npz", x=vectors[rows], y=labels[rows])
    files = {name: str(tmp_path / f"{name}.npz") for name in parts}
    data = {"name": "vectors", "source": "npz", "label": "y", "classes": ["no", "yes"], **files}
    method = "module:tests.flows.test_pretraining.opposite"
    config = tmp_path / "vectors.yaml"
    config.write_text(yaml.safe_dump(dict(SMALL) | {"data": data, "pretraining": {"method": method, "components": 4}}))
    code, _, err = pate("run", config, "--no-prefect", "--set", f"run_root={tmp_path / 'runs'}")
    assert code == 0, err
    release = tmp_path / "runs" / "vectors" / "release"
    page = read_json(release / "baseline.json")
    assert page["shape"] == [4]
    rows = pq.read_table(release / "evaluation.parquet").to_pylist()
    key = ("baseline", "accuracy", "overall")
    (accuracy,) = (r["estimate"] for r in rows if (r["model"], r["measure"], r["scope"]) == key)
    assert page["extra"]["evaluation"]["accuracy"] == accuracy
    statement = read_json(release / "privacy.json")["statement"]
    assert "made elsewhere and taken as it was given" in statement
    assert "made from public inputs" not in statement


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"teachers": {"pretrained": "weights"}}, "pretraining.method = 'none': must be contrastive"),
        ({"pretraining": PRETRAINING, "teachers": {"model": "cnn"}}, "teachers.model = 'cnn': is for images"),
        ({"pretraining": PRETRAINING, "baseline": {"model": "scattering"}}, "baseline.model = 'scattering'"),
        (
            {"pretraining": PRETRAINING, "teachers": {"model": "cnn", "pretrained": "weights"}},
            "teachers.model = 'cnn': must be logistic or mlp",
        ),
    ],
)
def test_settings_that_do_not_go_together(changes: dict[str, dict[str, Any]], problem: str) -> None:
    record = {name: SMALL.get(name, {}) | changes.get(name, {}) for name in {*SMALL, *changes}}
    with pytest.raises(Exception, match=problem):
        build(record)
