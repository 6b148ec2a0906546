"""torchvision's datasets from files in their real formats: pixels, labels, parts, what a digest reads, failures."""

import gzip
import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from torchvision import datasets

from data import images
from data.errors import UserError
from data.private import load_private, source_files
from data.public import load_public, load_test
from data.settings import DataSettings
from teachers import fitting, networks
from teachers.augmentation import Augmentation

RNG = np.random.default_rng(3)
Written = dict[str, tuple[np.ndarray, np.ndarray]]


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def _idx(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def _write_idx(root: Path, patch: pytest.MonkeyPatch, source: str, *, packed: bool) -> Written:
    """FashionMNIST's and MNIST's raw idx files, or the gzip files as downloaded."""
    raw, out, sums = root / source / "raw", {}, []
    raw.mkdir(parents=True)
    for part, prefix, rows in (("train", "train", 30), ("test", "t10k", 12)):
        pixels, labels = RNG.integers(0, 256, (rows, 28, 28), dtype=np.uint8), np.arange(rows, dtype=np.uint8) % 10
        for name, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            path = raw / f"{prefix}-{name}-ubyte"
            if packed:
                path = path.with_name(path.name + ".gz")
            path.write_bytes(gzip.compress(_idx(array)) if packed else _idx(array))
            sums.append((path.name if packed else f"{path.name}.gz", _md5(path)))
        out[part] = (pixels[:, None], labels)
    # The checksums of these files in the place of the published ones.
    patch.setattr(getattr(datasets, source), "resources", sums)
    return out


def _write_svhn(root: Path, patch: pytest.MonkeyPatch) -> Written:
    """SVHN's MATLAB files: X of (32, 32, 3, N), y of (N, 1) with 10 for the digit 0."""
    out, known = {}, {}
    for part, rows in (("train", 20), ("test", 12), ("extra", 15)):
        pixels, labels = RNG.integers(0, 256, (32, 32, 3, rows), dtype=np.uint8), np.arange(rows) % 10
        path = root / f"{part}_32x32.mat"
        scipy.io.savemat(path, {"X": pixels, "y": np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]})
        known[part] = ["http://localhost/none", path.name, _md5(path)]
        out[part] = (pixels.transpose(3, 2, 0, 1), labels)
    patch.setattr(datasets.SVHN, "split_list", known)
    return out


def _write_cifar(root: Path, patch: pytest.MonkeyPatch) -> Written:
    """CIFAR10's pickled batches: data (N, 3072), planes red, green, blue; a list of labels."""
    folder, out, sums = root / "cifar-10-batches-py", {}, {}
    folder.mkdir()
    for part, names in (("train", [f"data_batch_{n}" for n in range(1, 6)]), ("test", ["test_batch"])):
        pixels, labels = RNG.integers(0, 256, (12 * len(names), 3072), dtype=np.uint8), np.arange(12 * len(names)) % 10
        for n, name in enumerate(names):
            rows = slice(12 * n, 12 * n + 12)
            (folder / name).write_bytes(pickle.dumps({"data": pixels[rows], "labels": labels[rows].tolist()}))
        sums[part] = [[name, _md5(folder / name)] for name in names]
        out[part] = (pixels.reshape(-1, 3, 32, 32), labels)
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(n) for n in range(10)]}))
    patch.setattr(datasets.CIFAR10, "train_list", sums["train"])
    patch.setattr(datasets.CIFAR10, "test_list", sums["test"])
    meta = {"filename": "batches.meta", "key": "label_names", "md5": _md5(folder / "batches.meta")}
    patch.setattr(datasets.CIFAR10, "meta", meta)
    return out


WRITERS: dict[str, Callable[[Path, pytest.MonkeyPatch], Written]] = {
    "MNIST": lambda root, patch: _write_idx(root, patch, "MNIST", packed=False),
    "FashionMNIST": lambda root, patch: _write_idx(root, patch, "FashionMNIST", packed=True),
    "SVHN": _write_svhn,
    "CIFAR10": _write_cifar,
}


def _settings(root: Path, source: str, **more: object) -> DataSettings:
    record = {"name": "t", "source": source, "root": str(root), "public": "test[:8]", "test": "test[8:]"}
    return DataSettings.model_validate(record | more)


@pytest.mark.parametrize("source", list(WRITERS))
def test_torchvision_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Pixels channels first, labels 0 to 9, of every part, from the files as they are published."""
    written = WRITERS[source](tmp_path, monkeypatch)
    for part, (pixels, labels) in written.items():
        config = _settings(tmp_path, source, private=part if part != "test" else "train")
        rows = np.arange(len(labels))
        assert np.array_equal(images.read(config, part, rows, images.Form(pixels.shape[1:])), pixels)
        assert np.array_equal(images.labels(config, part, rows), labels)
        files = images.files(config, part)
        assert all(file.is_file() and file.is_relative_to(tmp_path) for file in files)
        assert len(files) == {"SVHN": 1, "CIFAR10": 5 if part == "train" else 1}.get(source, 2)
    config = _settings(tmp_path, source)
    records, public, test = load_private(config, 0, None), load_public(config, 0), load_test(config, 0)
    assert np.array_equal(records.features, written["train"][0])
    assert len(set(records.units)) == len(written["train"][1])
    assert np.array_equal(public.features, written["test"][0][:8])
    assert test is not None
    assert test.labels is not None
    assert test.labels.tolist() == written["test"][1][8:].tolist()
    assert not set(source_files(config, "private")) & set(source_files(config, "public"))


@pytest.mark.parametrize("source", list(WRITERS))
def test_what_is_missing_or_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """No files and no network, then a damaged file: one line that names data.root and the dataset."""

    def no_network(*_: object, **__: object) -> None:
        raise OSError("no network")

    for module in (datasets.mnist, datasets.svhn, datasets.cifar):
        for name in ("download_and_extract_archive", "download_url"):
            monkeypatch.setattr(module, name, no_network, raising=False)
    config = _settings(tmp_path / "empty", source)
    with pytest.raises(UserError, match=f"data.root = .*holds no {source} in torchvision's layout") as caught:
        load_private(config, 0, None)
    assert "\n" not in str(caught.value)
    if source == "FashionMNIST":
        return
    WRITERS[source](tmp_path, monkeypatch)
    config = _settings(tmp_path, source)
    file = images.files(config, "train")[0]
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match=f"data.root = .*{source}") as caught:
        load_private(config, 0, None)
    assert "\n" not in str(caught.value)


def test_svhn_alone_has_a_third_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """extra is SVHN's; elsewhere it is one line that names the parts."""
    _write_svhn(tmp_path, monkeypatch)
    assert len(load_private(_settings(tmp_path, "SVHN", private="extra"), 0, None).labels) == 15
    with pytest.raises(UserError, match="must be a slice of train, test"):
        load_private(_settings(tmp_path, "CIFAR10", private="extra"), 0, None)


def test_equal_images_are_one_unit_only_with_equal_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record, pixels and label, is the unit; another label is another record."""
    written = _write_cifar(tmp_path, monkeypatch)
    folder = tmp_path / "cifar-10-batches-py"
    pixels = written["train"][0][:4].reshape(4, -1)
    pixels[1], pixels[2] = pixels[0], pixels[0]
    (folder / "data_batch_1").write_bytes(pickle.dumps({"data": pixels, "labels": [7, 7, 8, 9]}))
    lists = [[name, _md5(folder / name)] for name, _ in datasets.CIFAR10.train_list]
    monkeypatch.setattr(datasets.CIFAR10, "train_list", lists)
    records = load_private(_settings(tmp_path, "CIFAR10"), 0, None)
    assert records.units[0] == records.units[1] != records.units[2]
    assert np.array_equal(records.units, records.content)


@pytest.mark.parametrize("model", ["logistic", "mlp", "cnn", "tanh-mlp", "tanh-cnn", "gn-cnn", "scattering"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 8, 8), (3, 32, 32), (3, 48, 40)])
def test_every_network_takes_colour_and_other_sizes(model: str, shape: tuple[int, ...]) -> None:
    """Built from the inputs' shape, trained and asked: every channel counts."""
    features = RNG.integers(0, 256, (6, *shape), dtype=np.uint8)
    network = networks.build(model, shape, 4, 0)
    trained = fitting.fit(
        network,
        features,
        np.arange(6) % 4,
        epochs=1,
        batch_size=3,
        learning_rate=1e-3,
        weight_decay=0.0,
        seed=0,
        augmentation=Augmentation(shift=1),
    )
    assert trained
    before = fitting.logits(network, features)
    assert before.shape == (6, 4)
    for channel in range(shape[0]):
        changed = features.copy()
        changed[:, channel] = 255 - changed[:, channel, ::-1]
        assert not np.allclose(fitting.logits(network, changed), before, atol=1e-6)
