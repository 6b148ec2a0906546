"""npz: arrays by name, in the form of the public part, in blocks; whatever is wrong is one line without values."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data import arrays, npz
from data.errors import UserError
from data.private import load_private
from data.public import load_public, load_test
from data.settings import DataSettings

RNG = np.random.default_rng(5)
CANARY = "CANARY-7f3a"


def _settings(folder: Path, private: dict[str, Any], public: dict[str, Any], **more: Any) -> DataSettings:
    for part, held in (("private", private), ("public", public)):
        np.savez(folder / f"{part}.npz", **held)
    record = {
        "name": "t",
        "source": "npz",
        "classes": ["no", "yes"],
        "private": str(folder / "private.npz"),
        "public": str(folder / "public.npz"),
    }
    return DataSettings.model_validate(record | more)


def _vectors(rows: int, width: int = 3) -> np.ndarray:
    return RNG.normal(size=(rows, width)) * [1, 10, 0.1] + [0, 1e6, 5]


def _load(config: DataSettings) -> None:
    load_public(config, 0)
    load_private(config, 0, None)


@pytest.mark.parametrize("shape", [(5, 6), (5, 6, 1), (1, 5, 6), (5, 6, 3), (3, 5, 6), (3, 5, 3)])
def test_images_come_out_channels_first(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Grey, one or three channels, first or last (last where both could be): each pixel where it belongs."""
    images = RNG.integers(0, 256, (4, *shape), dtype=np.uint8)
    config = _settings(tmp_path, {"x": images, "labels": [0, 1, 0, 1]}, {"x": images})
    found = load_public(config, 0).features
    if len(shape) == 2:
        expected = images[:, None]
    else:
        expected = np.moveaxis(images, 3, 1) if shape[2] in (1, 3) else images
    assert found.dtype == np.uint8
    assert np.array_equal(found, expected)
    assert np.array_equal(load_private(config, 0, None).features, expected)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int32, np.bool_])
def test_vectors_are_scaled_by_public_moments_alone(tmp_path: Path, kind: type) -> None:
    """Public columns have mean 0 and variance 1 whatever the private ones are; outliers are clipped; float16 stays."""
    public = np.rint(RNG.normal(size=(500, 3))).astype(kind)
    private = np.array([[0, 0, 0], [60000, 0, 1]]).astype(kind)
    config = _settings(tmp_path, {"x": private, "labels": [0, 1]}, {"x": public})
    found = load_public(config, 0).features
    assert found.dtype == (np.float16 if kind is np.float16 else np.float32)
    np.testing.assert_allclose(found.mean(0, dtype=float), 0, atol=1e-2)
    np.testing.assert_allclose(found.std(0, dtype=float), 1, atol=1e-2)
    records = load_private(config, 0, None)
    expected = np.clip((private.astype(float) - public.astype(float).mean(0)) / public.astype(float).std(0), -10, 10)
    np.testing.assert_allclose(records.features, expected, atol=2e-2)


def test_columns_far_from_zero_keep_their_scale(tmp_path: Path) -> None:
    """A variance of 1 beside a mean of 1e8 does not cancel; a constant column becomes 0."""
    public = np.column_stack([1e8 + RNG.normal(size=5000), np.full(5000, 0.1)])
    config = _settings(tmp_path, {"x": public[:2], "labels": [0, 1]}, {"x": public})
    found = load_public(config, 0).features
    np.testing.assert_allclose(found[:, 0].std(), 1, atol=1e-3)
    assert np.abs(found[:, 1]).max() < 1e-3


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_are_the_same_however_they_lie(
    tmp_path: Path, save: Any, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compressed or not, C or Fortran order, big-endian too, in many blocks: the same rows, and the same slice."""
    monkeypatch.setattr(npz, "_BLOCK_BYTES", 100)
    x = np.asarray(_vectors(57), order=order, dtype=">f8" if order == "C" else "<f8")
    config = _settings(tmp_path, {"x": x, "labels": [0] * 57}, {"x": x})
    save(tmp_path / "private.npz", x=x, labels=np.arange(57) % 2)
    sliced = config.model_copy(update={"private": f"{tmp_path}/private.npz[11:40]"})
    whole, part = load_private(config, 0, None), load_private(sliced, 0, None)
    reference = (x - x.mean(0)) / x.std(0)
    np.testing.assert_allclose(whole.features, reference, atol=1e-4)
    assert np.array_equal(part.features, whole.features[11:40])
    assert np.array_equal(part.labels, (np.arange(57) % 2)[11:40])
    assert np.array_equal(part.units, whole.units[11:40])


def test_large_private_features_lie_in_a_nameless_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the array is memory-mapped; its file has no name, so that none is left behind."""
    monkeypatch.setattr(arrays, "IN_MEMORY_BYTES", 10)
    x = _vectors(30)
    config = _settings(tmp_path, {"x": x, "labels": [0, 1] * 15}, {"x": x})
    records = load_private(config, 0, None, scratch=tmp_path / "scratch")
    assert isinstance(records.features, np.memmap)
    assert list((tmp_path / "scratch").iterdir()) == []
    np.testing.assert_allclose(records.features, (x - x.mean(0)) / x.std(0), atol=1e-4)


def test_units_ids_and_content(tmp_path: Path) -> None:
    """The unit array, else the id array, else the record's content with its label names the unit."""
    x = np.array([[1.0, 0.0], [1.0, -0.0], [1.0, 0.0], [2.0, 0.0]])
    held = {"x": x, "labels": [0, 0, 1, 0], "who": np.array(["a", "b", "b", "a"]), "row": [7, 8, 9, 10]}
    public = {"x": x, "row": [1, 2, 3, 4]}
    config = _settings(tmp_path, held, public, unit="who", id="row")
    by_who = load_private(config, 0, None)
    assert by_who.units[0] == by_who.units[3] != by_who.units[1] == by_who.units[2]
    # -0.0 is 0.0: records 0 and 1 are equal.
    assert by_who.content[0] == by_who.content[1]
    assert len(set(by_who.content)) == 3
    assert load_public(config, 0).ids.tolist() == [1, 2, 3, 4]
    by_id = load_private(config.model_copy(update={"unit": None, "subgroup": ["who"]}), 0, None)
    assert len(set(by_id.units)) == 4
    by_content = _settings(tmp_path, {"x": x, "labels": [0, 0, 1, 0]}, {"x": x})
    assert np.array_equal(load_private(by_content, 0, None).units, by_who.content)


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        (np.array(["yes", "no"]), ["no", "yes"], [1, 0]),
        (np.array([b"yes", b"no"]), ["no", "yes"], [1, 0]),
        (np.array([1, 0]), ["no", "yes"], [1, 0]),
        (np.array([True, False]), ["no", "yes"], [1, 0]),
        (np.array([1, 2], np.uint8), ["2", "1"], [1, 0]),
        (np.array([1, 0]), ["1", "0"], [0, 1]),
    ],
)
def test_labels_by_name_or_number(tmp_path: Path, labels: np.ndarray, classes: list[str], expected: list[int]) -> None:
    """Text names classes; integers number them, unless all are named by integers."""
    config = _settings(tmp_path, {"x": _vectors(2), "labels": labels}, {"x": _vectors(4)}, classes=classes)
    assert load_private(config, 0, None).labels.tolist() == expected


def test_subgroups_of_the_test_part(tmp_path: Path) -> None:
    """Arrays that data.subgroup names come as text, apart from the features."""
    x = _vectors(3)
    held = {"x": x, "labels": [0, 1, 0], "age": [30, 40, 30], "site": np.array(["a", "b", "c"])}
    config = _settings(tmp_path, held, {"x": x}, subgroup=["age", "site"], test=str(tmp_path / "test.npz"))
    np.savez(tmp_path / "test.npz", **held)
    test = load_test(config, 0)
    assert test is not None
    assert {name: values.tolist() for name, values in test.groups.items()} == {
        "age": ["30", "40", "30"],
        "site": ["a", "b", "c"],
    }


X = _vectors(4)
GREY = RNG.integers(0, 256, (4, 5, 6), dtype=np.uint8)


@pytest.mark.parametrize(
    ("private", "public", "rule"),
    [
        ({"x": X}, {"x": X}, "data.label = 'labels': .* has no such array"),
        ({"x": X, "labels": [0, 1]}, {"x": X}, "'labels' must hold one value for each record"),
        ({"x": X, "labels": [0, 1, 2, 0]}, {"x": X}, "class numbers 0 to 1"),
        ({"x": X, "labels": [0, 1, -1, 0]}, {"x": X}, "class numbers 0 to 1"),
        ({"x": X, "labels": [0.0, 1.0, 1.0, 0.0]}, {"x": X}, "must hold integers, true/false or text"),
        ({"x": X, "labels": np.array([CANARY] * 4)}, {"x": X}, "labels of data.classes: no, yes"),
        ({"x": X, "labels": [[0], [1], [1], [0]]}, {"x": X}, "one value for each record"),
        ({"x": X, "labels": np.array([{}, 1, 0, 1], object)}, {"x": X}, "no objects"),
        ({"x": np.array([[CANARY], [{}]], object), "labels": [0, 1]}, {"x": X}, "no objects"),
        ({"x": np.array([[CANARY]] * 4), "labels": [0] * 4}, {"x": X}, "'x' must hold numbers"),
        ({"x": X.astype(complex), "labels": [0] * 4}, {"x": X}, "must hold numbers, true/false or text"),
        ({"x": X, "y": X, "z": X, "labels": [0] * 4}, {"x": X}, "and holds 'x', 'y', 'z'"),
        ({"labels": [0] * 4}, {"x": X}, "and holds none"),
        ({"x": X[:, :2], "labels": [0] * 4}, {"x": X}, r"rows of shape \(3,\), as in data.public"),
        ({"x": np.where(X[1, 1] == X, np.nan, X), "labels": [0] * 4}, {"x": X}, "finite numbers only"),
        ({"x": np.where(X[1, 1] == X, np.inf, X), "labels": [0] * 4}, {"x": X}, "finite numbers only"),
        ({"x": X, "labels": [0] * 4}, {"x": np.where(X[1, 1] == X, np.nan, X)}, "finite numbers only"),
        ({"x": X, "labels": [0] * 4}, {"x": X * 1e300}, "too large to be scaled"),
        ({"x": X[:0], "labels": np.zeros(0, int)}, {"x": X}, "holds no row"),
        ({"x": X, "labels": [0] * 4}, {"x": X[:0]}, "holds no row"),
        ({"x": np.zeros((4, 0)), "labels": [0] * 4}, {"x": X}, "must be vectors"),
        ({"x": np.float64(3), "labels": [0] * 4}, {"x": X}, "is a single value"),
        ({"x": GREY / 255, "labels": [0] * 4}, {"x": GREY}, "pixels must be whole numbers from 0 to 255"),
        ({"x": GREY.astype(int) + 1, "labels": [0] * 4}, {"x": GREY}, "pixels must be whole numbers from 0 to 255"),
        ({"x": GREY, "labels": [0] * 4}, {"x": GREY / 255}, "pixels must be whole numbers from 0 to 255"),
        ({"x": GREY, "labels": [0] * 4}, {"x": GREY[..., None].repeat(2, 3)}, "1 or 3 channels"),
        ({"x": GREY.swapaxes(1, 2), "labels": [0] * 4}, {"x": GREY}, r"rows of shape \(5, 6\)"),
    ],
)  # fmt: skip
def test_wrong_arrays(tmp_path: Path, private: dict[str, Any], public: dict[str, Any], rule: str) -> None:
    """One line that names file, array and rule and holds no private value."""
    private = {name: np.asarray(values) for name, values in private.items()}
    if "x" in private and private["x"].dtype == int and private["x"].max() < 256:
        private["x"][0] = 256
    config = _settings(tmp_path, private, public)
    with pytest.raises(UserError, match=rule) as caught:
        _load(config)
    assert "\n" not in str(caught.value)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "values", "rule"),
    [
        ("unit", np.array([1.0, 2.0, 3.0, 4.0]), "must name an id or unit"),
        ("unit", np.array(["a", "", "b", "c"]), "must name an id or unit"),
        ("unit", np.array([b"\xff", b"a", b"b", b"c"]), "text in UTF-8"),
        ("unit", np.array([1, 2]), "one value for each record"),
        ("id", np.array([1, 1, 2, 3]), "repeats an id"),
        ("id", np.array([2**64 - 1, 1, 2, 3], np.uint64), "ids below 2"),
    ],
)
def test_wrong_ids_and_units(tmp_path: Path, field: str, values: np.ndarray, rule: str) -> None:
    """Floats are no ids; every row has one; public ones are unique."""
    held = {"x": X, "labels": [0] * 4, "name": values}
    config = _settings(tmp_path, held, held, **{field: "name"})
    with pytest.raises(UserError, match=rule) as caught:
        _load(config)
    assert "\n" not in str(caught.value)


def _bytes(**held: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **held)
    return out.getvalue()


def test_broken_archives(tmp_path: Path) -> None:
    """Not a zip, a truncated one, a member that lies about its length, members that are no arrays: one line each."""
    good = _bytes(x=X, labels=np.zeros(4, int))
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("readme.txt", "hello")
    bomb = io.BytesIO()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**13, 3)})
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.getvalue() + b"\0" * 100_000)
        archive.writestr("labels.npy", b"\x93NUMPY")
    cases = {
        b"hello": "not a readable .npz",
        good[:-30]: "not a readable .npz",
        other.getvalue(): "must hold .npy arrays",
        bomb.getvalue(): "not as long as its header declares",
    }
    for content, rule in cases.items():
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(UserError, match=rule) as caught:
            npz.members(tmp_path / "bad.npz")
        assert "\n" not in str(caught.value)


def test_a_declared_size_that_cannot_be_is_refused(tmp_path: Path) -> None:
    """A directory that declares more than its compressed bytes can hold is refused before anything is allocated."""
    raw = bytearray(_bytes(x=np.zeros((4, 3))))
    at = raw.index(b"PK\x01\x02")
    raw[at + 24 : at + 28] = (2**31).to_bytes(4, "little")
    (tmp_path / "x.npz").write_bytes(raw)
    with pytest.raises(UserError, match="declares a size that the file cannot hold"):
        npz.members(tmp_path / "x.npz")


GOOD = _bytes(x=X, labels=np.array([0, 1, 0, 1]), who=np.array(["a", "b", "c", "d"]))
PLAIN = io.BytesIO()
np.savez(PLAIN, x=X, labels=np.array([0, 1, 0, 1]), who=np.array(["a", "b", "c", "d"]))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    raw=st.sampled_from([GOOD, PLAIN.getvalue()]),
    changes=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=6),
    cut=st.none() | st.integers(0, 2**11),
)
@pytest.mark.filterwarnings("ignore")
def test_any_bytes_load_or_are_refused(
    tmp_path: Path, raw: bytes, changes: list[tuple[int, int]], cut: int | None
) -> None:
    """Changed and truncated archives: records, or a UserError of one line; never another exception."""
    config = _settings(tmp_path, {"x": X, "labels": [0] * 4}, {"x": X}, unit="who")
    broken = bytearray(raw)
    for at, value in changes:
        broken[at % len(broken)] = value
    (tmp_path / "private.npz").write_bytes(broken[:cut])
    try:
        records = load_private(config, 0, None)
    except UserError as error:
        refusal = str(error)
    else:
        refusal = "" if np.isfinite(records.features).all() else "not\nfinite"
    assert "\n" not in refusal
