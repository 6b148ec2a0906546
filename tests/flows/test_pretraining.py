"""Pre-training in whole runs: from public inputs alone, and what is made of it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

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
    import numpy as np
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
    shutil.rmtree(tmp_path / "fewer")


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
