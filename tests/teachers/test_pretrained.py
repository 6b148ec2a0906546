"""Teachers that see an encoder's features, or start from its weights: isolation holds for them too."""

from pathlib import Path

import numpy as np
import pytest
import torch

from data.examples import PrivateRecords
from teachers import encoders
from teachers.backbones import backbone
from teachers.chunks import manifest, read, read_index
from teachers.encoders import Encoder
from teachers.ensemble import train_ensemble
from teachers.settings import TeacherSettings
from teachers.votes import collect
from tests.teachers.conftest import CLASSES, SEED, rows, split

FEATURES = TeacherSettings(count=6, model="logistic", epochs=3, batch_size=16, learning_rate=0.1, chunk=3, device="cpu")
WAYS = {
    "features": FEATURES,
    "features of an estimator": FEATURES.model_copy(update={"model": "sklearn:sklearn.naive_bayes.GaussianNB"}),
    "weights": FEATURES.model_copy(update={"pretrained": "weights", "epochs": 1, "learning_rate": 0.01}),
    "weights vectorised": FEATURES.model_copy(
        update={"pretrained": "weights", "epochs": 1, "strategy": "vectorised", "group": 3}
    ),
}
every_way = pytest.mark.parametrize("base", WAYS.values(), ids=WAYS.keys())


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved encoder with weights and moments that nobody learned."""
    network = backbone((1, 8, 8), 4, 16, 0)
    generator = torch.Generator().manual_seed(1)
    network.train()(torch.rand(50, 1, 8, 8, generator=generator))
    axes = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    path = tmp_path_factory.mktemp("encoder") / "encoder"
    made = Encoder("contrastive", (1, 8, 8), network.eval(), np.full(16, 0.1, np.float32), axes, width=4)
    encoders.save(path, made)
    return path


def _train(folder: Path, records: PrivateRecords, base: TeacherSettings, encoder: Path) -> list[object]:
    """What is kept of each teacher, as bytes."""
    train_ensemble(folder, records, split(records, base), base, SEED, CLASSES, "0" * 64, encoder=encoder)
    index = read_index(folder)
    assert index is not None
    kept: list[object] = []
    for first, last in index.chunks:
        found = manifest(folder, first, last, index.key)
        assert found is not None
        kept += [t and {n: x.numpy().tobytes() for n, x in t.items()} for _, t in read(folder, found)]
    return kept


@every_way
def test_a_record_less_changes_one_teacher_and_one_vote(
    records: PrivateRecords, queries: np.ndarray, base: TeacherSettings, encoder: Path, tmp_path: Path
) -> None:
    """Bit for bit, though all the records behind it move up."""
    whole = _train(tmp_path / "whole", records, base, encoder)
    fewer = rows(records, np.delete(np.arange(len(records.labels)), 3))
    less = _train(tmp_path / "less", fewer, base, encoder)
    assert sum(one != other for one, other in zip(whole, less, strict=True)) == 1
    features, start = encoders.load(encoder, SEED).features(queries), None
    if base.pretrained == "weights":
        features, start = queries, encoder
    votes = [collect(tmp_path / each, features, CLASSES, base, encoder=start) for each in ("whole", "less")]
    assert np.abs(votes[0] - votes[1]).sum(1).max() <= 2
    assert (votes[0].sum(1) == base.count).all()


def test_what_starts_from_weights_trains_them(records: PrivateRecords, encoder: Path, tmp_path: Path) -> None:
    """And has a layer more for the classes."""
    base = WAYS["weights"]
    kept = _train(tmp_path / "teachers", records, base, encoder)[0]
    assert isinstance(kept, dict)
    start = torch.nn.Sequential(*encoders.load(encoder, SEED).trainable()).state_dict()
    assert set(start) < set(kept)
    assert all(kept[name] != tensor.numpy().tobytes() for name, tensor in start.items())
