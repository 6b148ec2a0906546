"""Folders of images: order, labels, units from paths; pixels in the form of the public part; errors without names."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from data import decoding
from data.errors import UserError
from data.imagefolder import Listing, list_images
from data.private import keyed_digest, load_private, source_files
from data.public import load_public, load_test
from data.settings import DataSettings
from data.split import rows_of

RNG = np.random.default_rng(11)
CANARY = "CANARY-7f3a"


def _grey(height: int = 6, width: int = 5) -> np.ndarray:
    return RNG.integers(0, 256, (height, width), dtype=np.uint8)


def _save(path: Path, pixels: np.ndarray, **options: Any) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return pixels


def _settings(folder: Path, **more: Any) -> DataSettings:
    record = {
        "name": "t",
        "source": "imagefolder",
        "classes": ["cat", "dog"],
        "private": str(folder / "private"),
        "public": str(folder / "public"),
    }
    return DataSettings.model_validate(record | more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """private/{cat,dog}/p<n>_<m>.png, a flat public/, test/{cat,dog}: grey images of 6×5."""
    for n in range(4):
        for m in range(2):
            _save(tmp_path / "private" / ("cat" if n % 2 else "dog") / f"p{n}_{m}.png", _grey())
    for n in range(5):
        _save(tmp_path / "public" / f"{n}.png", _grey())
        _save(tmp_path / "test" / ("cat" if n < 2 else "dog") / f"{n}.png", _grey())
    return tmp_path


def test_rows_labels_and_ids(folder: Path) -> None:
    """Rows in the order of the paths' bytes; labels from the class folders; ids are rows, or paths where asked for."""
    config = _settings(folder, test=str(folder / "test"), id="path")
    names = sorted(p.relative_to(folder / "private").as_posix() for p in (folder / "private").rglob("*.png"))
    records = load_private(config, 0, None)
    expected = np.stack([np.asarray(Image.open(folder / "private" / name))[None] for name in names])
    assert np.array_equal(records.features, expected)
    assert records.labels.tolist() == [0 if name.startswith("cat") else 1 for name in names]
    public, test = load_public(config, 0), load_test(config, 0)
    assert public.ids.tolist() == [f"{n}.png" for n in range(5)]
    assert public.labels is None
    assert test is not None
    assert test.labels is not None
    assert test.labels.tolist() == [0, 0, 1, 1, 1]
    assert load_public(_settings(folder), 0).ids.tolist() == [0, 1, 2, 3, 4]


def test_what_is_no_image_is_ignored_and_links_are_followed(folder: Path) -> None:
    """Hidden files and folders, other files; suffixes in upper case; links to files and folders; deeper folders."""
    before = list_images(folder / "private").names
    (folder / "private" / "cat" / "notes.txt").write_text("hello")
    (folder / "private" / "readme.md").write_text("hello")
    _save(folder / "private" / "cat" / ".hidden.png", _grey())
    _save(folder / "private" / ".cache" / "x.png", _grey())
    assert list_images(folder / "private").names == before
    _save(folder / "private" / "cat" / "deep" / "er" / "x.PNG", _grey(), format="png")
    _save(folder / "elsewhere" / "y.png", _grey())
    (folder / "private" / "dog" / "link.png").symlink_to(folder / "elsewhere" / "y.png")
    (folder / "private" / "dog" / "linked").symlink_to(folder / "elsewhere")
    added = set(list_images(folder / "private").names) - set(before)
    assert added == {"cat/deep/er/x.PNG", "dog/link.png", "dog/linked/y.png"}
    assert len(load_private(_settings(folder), 0, None).labels) == 11
    (folder / "private" / "dog" / "up").symlink_to(folder / "private")
    with pytest.raises(UserError, match="is a link to a folder that it lies in"):
        list_images(folder / "private")


def test_units(folder: Path) -> None:
    """A regular expression's group names the unit; without it equal pictures with equal labels are one unit, whatever
    their format."""
    records = load_private(_settings(folder, unit=r"^(p\d)_"), 0, None)
    assert len(set(records.units)) == 4
    assert len(set(records.content)) == 8
    pixels = np.asarray(Image.open(folder / "private" / "cat" / "p1_0.png"))
    _save(folder / "private" / "cat" / "again.bmp", pixels)
    _save(folder / "private" / "cat" / "colour.png", pixels[..., None].repeat(3, 2))
    _save(folder / "private" / "dog" / "other.png", pixels)
    records = load_private(_settings(folder), 0, None)
    names = list_images(folder / "private").names
    same = [names.index(f"cat/{name}") for name in ("p1_0.png", "again.bmp", "colour.png")]
    assert len({records.units[row] for row in same}) == 1
    assert len(set(records.units)) == 9
    with pytest.raises(UserError, match=r"data.unit = '\^\(p\\\\d\)_'") as caught:
        load_private(_settings(folder, unit=r"^(p\d)_"), 0, None)
    assert "again" not in str(caught.value)


def test_the_form_is_the_public_one(folder: Path) -> None:
    """Channels and size follow public images alone: private colour turns grey and other sizes are resized."""
    config = _settings(folder)
    reference = load_private(config, 0, None)
    colour = RNG.integers(0, 256, (20, 31, 3), dtype=np.uint8)
    _save(folder / "private" / "dog" / "z.png", colour)
    records = load_private(config, 0, None)
    assert records.features.shape == (9, 1, 6, 5)
    assert np.array_equal(records.features[:8], reference.features)
    expected = Image.fromarray(colour).convert("L").resize((5, 6), Image.Resampling.BILINEAR)
    assert np.array_equal(records.features[8, 0], np.asarray(expected))
    _save(folder / "public" / "z.jpg", RNG.integers(0, 256, (6, 5, 3), dtype=np.uint8))
    records = load_private(config, 0, None)
    assert records.features.shape == (9, 3, 6, 5)
    assert np.array_equal(records.features[:8, 0], reference.features[:, 0])
    assert load_private(_settings(folder, image_size=8), 0, None).features.shape == (9, 3, 8, 8)
    _save(folder / "public" / "y.png", _grey(9, 9))
    with pytest.raises(UserError, match=r"data.image_size: must be set"):
        load_public(config, 0)


def test_one_folder_split_by_units(folder: Path) -> None:
    """data.path with counts: every unit in one part; the form comes from the public rows only."""
    _save(folder / "private" / "cat" / "p9_0.png", RNG.integers(0, 256, (40, 40, 3), dtype=np.uint8))
    record = {"path": str(folder / "private"), "unit": r"^(p\d)_", "private": 3, "public": 1, "test": 1}
    for seed in range(20):
        config = _settings(folder, **record)
        parts = {name: rows_of(config, seed, name) for name in ("private", "public", "test")}
        rows = np.concatenate([part.rows for part in parts.values() if part is not None])
        assert sorted(rows.tolist()) == list(range(9))
        public = load_public(config, seed)
        colour = public.features.shape[1] == 3
        assert public.features.shape[1:] == ((3, 40, 40) if colour else (1, 6, 5))
        assert load_private(config, seed, None).features.shape[1:] == public.features.shape[1:]
        if colour:
            break


def test_public_slices_never_look_at_private_files(folder: Path) -> None:
    """Of one folder, the public slice decides the form; a private file that is broken does not disturb it."""
    for n in range(10):
        _save(folder / "one" / "cat" / f"{n}.png", _grey())
    (folder / "one" / "dog").mkdir()
    (folder / "one" / "dog" / "x.png").write_bytes(b"broken")
    config = _settings(folder, private=f"{folder}/one[6:]", public=f"{folder}/one[:6]")
    assert load_public(config, 0).features.shape == (6, 1, 6, 5)


@pytest.mark.parametrize("pair", [("a", "a/b"), ("a/b", "a"), ("a", "a"), ("a", "link")])
def test_public_and_private_folders_are_apart(tmp_path: Path, pair: tuple[str, str]) -> None:
    """One inside the other, or the same under another name, is refused."""
    _save(tmp_path / "a" / "b" / "cat" / "x.png", _grey())
    (tmp_path / "link").symlink_to(tmp_path / "a")
    config = _settings(tmp_path, private=str(tmp_path / pair[0]), public=str(tmp_path / pair[1]))
    with pytest.raises(UserError, match="overlaps data"):
        load_public(config, 0)


def test_the_digest_holds_names_and_bytes(folder: Path) -> None:
    """Renaming a file or its class folder, changing or adding a file changes it; other files and times do not."""
    files = source_files(_settings(folder), "private")
    seen = {keyed_digest(files, b"k")}
    cat = folder / "private" / "cat"
    (cat / "notes.txt").write_text("no image")
    os.utime(cat / "p1_0.png", (0, 0))
    assert keyed_digest(files, b"k") in seen
    changes = [
        lambda: (cat / "p1_0.png").rename(cat / "p1_9.png"),
        lambda: cat.rename(folder / "private" / "cow"),
        lambda: (folder / "private" / "cow" / "p1_9.png").write_bytes(b"x"),
        lambda: (folder / "private" / "dog" / "new.png").write_bytes(b""),
    ]
    for change in changes:
        change()
        digest = keyed_digest(files, b"k")
        assert digest not in seen
        seen.add(digest)
    assert keyed_digest(files, b"other") not in seen


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.fromarray(np.array([[0, 256 * 200 + 7]], np.uint16)), [[0, 200]]),
        (Image.fromarray(np.array([[[10, 20, 30, 0], [10, 20, 30, 255]]], np.uint8)), [[[255] * 3, [10, 20, 30]]]),
        (Image.fromarray(np.array([[7, 9]], np.uint8)).convert("1", dither=Image.Dither.NONE), [[0, 0]]),
        (Image.merge("LA", [Image.fromarray(np.array([row], np.uint8)) for row in ([7, 9], [255, 0])]), [[7, 255]]),
        (Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8)).quantize(), [[[1, 2, 3], [4, 5, 6]]]),
    ],
)
def test_kinds_of_pixels(tmp_path: Path, image: Image.Image, expected: list[Any]) -> None:
    """16 bits become the upper 8, what is transparent shows white, bilevel and palettes are resolved."""
    image.save(tmp_path / "x.png")
    shape = decoding.public_shape(Listing(tmp_path, ("x.png",)), None)
    pixels = decoding.decode(Listing(tmp_path, ("x.png",)), shape, public=True)[0]
    assert pixels.transpose(1, 2, 0).squeeze(-1 if shape[0] == 1 else ()).tolist() == expected


def test_orientation_is_applied(tmp_path: Path) -> None:
    """A picture that its EXIF turns by 90 degrees has its sides, and its pixels, turned."""
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = _save(tmp_path / "x.png", _grey(4, 9), exif=exif)
    listing = Listing(tmp_path, ("x.png",))
    shape = decoding.public_shape(listing, None)
    assert shape == (1, 9, 4)
    assert np.array_equal(decoding.decode(listing, shape, public=True)[0, 0], np.rot90(pixels, -1))


def _break(folder: Path, part: str, content: bytes) -> None:
    inside = folder / part / ("" if part == "public" else "cat")
    (inside / f"{CANARY}.png").write_bytes(content)


def _bomb() -> bytes:
    out = io.BytesIO()
    Image.new("1", (16_000, 16_000)).save(out, "png")
    return out.getvalue()


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n" + bytes(40)])
def test_a_broken_private_image_is_not_named(folder: Path, content: bytes) -> None:
    """In the private folder the error names folder and rule; in the public one the file."""
    _break(folder, "private", content)
    with pytest.raises(UserError, match="every image of .*private': must be a whole, readable PNG") as caught:
        load_private(_settings(folder), 0, None)
    assert CANARY not in str(caught.value)
    with pytest.raises(UserError, match="must be a whole, readable PNG") as caught:
        load_private(_settings(folder, unit="(.)"), 0, None)
    assert CANARY not in str(caught.value)
    _break(folder, "public", content)
    with pytest.raises(UserError, match=f"{CANARY}.png': must be a whole, readable PNG"):
        load_public(_settings(folder), 0)


def test_truncated_and_huge_images(folder: Path) -> None:
    """Half a file is no image; one of 256 million pixels is refused from its header."""
    whole = (folder / "public" / "0.png").read_bytes()
    for content, rule in ((whole[: len(whole) // 2], "must be a whole"), (_bomb(), "at most 64,000,000 pixels")):
        _break(folder, "public", content)
        with pytest.raises(UserError, match=rule):
            load_public(_settings(folder), 0)


def test_wrong_folders(folder: Path) -> None:
    """Images outside class folders, or in one of another name; no image at all; a file in a folder's place."""
    _save(folder / "flat" / "x.png", _grey())
    _save(folder / "private" / f"{CANARY}.png", _grey())
    rule = "every image must lie in a folder named as one of data.classes: cat, dog"
    with pytest.raises(UserError, match=rule) as caught:
        load_private(_settings(folder), 0, None)
    assert CANARY not in str(caught.value)
    (folder / "private" / f"{CANARY}.png").unlink()
    _save(folder / "private" / CANARY / "x.png", _grey())
    with pytest.raises(UserError, match=rule) as caught:
        load_private(_settings(folder), 0, None)
    assert CANARY not in str(caught.value)
    with pytest.raises(UserError, match=rule):
        load_test(_settings(folder, test=str(folder / "flat")), 0)
    (folder / "empty").mkdir()
    with pytest.raises(UserError, match="holds no row"):
        load_public(_settings(folder, public=str(folder / "empty")), 0)
    with pytest.raises(UserError, match="must be a folder"):
        load_public(_settings(folder, public=str(folder / "public" / "0.png")), 0)
    with pytest.raises(UserError, match="no such"):
        load_public(_settings(folder, public=str(folder / "nowhere")), 0)


@pytest.mark.parametrize("unit", ["(", "a", "(a)(b)", "(" * 500])
def test_the_unit_is_a_regular_expression_with_one_group(folder: Path, unit: str) -> None:
    """Refused with the settings."""
    with pytest.raises(ValueError, match="must be a regular expression with one group"):
        _settings(folder, unit=unit)


def _encoded(kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 10, 3), dtype=np.uint8)).save(out, kind, **options)
    return out.getvalue()


WHOLE = [
    ("x.png", _encoded("PNG")),
    ("x.jpg", _encoded("JPEG")),
    ("x.bmp", _encoded("BMP")),
    ("x.webp", _encoded("WEBP")),
    ("x.tif", _encoded("TIFF", compression="tiff_lzw")),
    ("x.tiff", _encoded("TIFF")),
]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    file=st.sampled_from(WHOLE),
    changes=st.lists(st.tuples(st.integers(0, 2**14) | st.integers(0, 60), st.integers(0, 255)), max_size=5),
    cut=st.none() | st.integers(0, 500),
)
def test_any_bytes_decode_or_are_refused(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    file: tuple[str, bytes],
    changes: list[tuple[int, int]],
    cut: int | None,
) -> None:
    """Changed and truncated files of every format: pixels, or one line without the file's name, and nothing printed."""
    name, content = file
    broken = bytearray(content)
    for at, value in changes:
        broken[at % len(broken)] = value
    (tmp_path / name).write_bytes(broken[:cut])
    listing = Listing(tmp_path, (name,))
    try:
        found = decoding.decode(listing, (3, 8, 8), public=False)
        decoding.contents(listing)
        refusal = "" if found.shape == (1, 3, 8, 8) else "another\nshape"
    except UserError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert name not in refusal
    assert capfd.readouterr() == ("", "")
