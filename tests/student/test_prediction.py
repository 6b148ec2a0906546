"""A released student, read back by a stranger: the same predictions, and one line for every wrong input."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from data.encoding import TableEncoder, encode, fit_encoder
from data.errors import UserError
from data.examples import Examples
from data.tables import TableFile
from data.vectors import fit_vectors
from student.prediction import predict, predictions_table
from student.release import class_names, describe, encoder_of, load_student, save_student
from student.settings import StudentSettings
from student.training import probabilities, train
from tests.student.digits_data import parts

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
FOREST = "sklearn:sklearn.ensemble.RandomForestClassifier"


@pytest.fixture(scope="module")
def digits_release(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, np.ndarray]:
    """A network's release folder, test images, and the probabilities it gave before it was saved."""
    public, truth, test = parts(0)
    settings = StudentSettings(method="supervised", model="cnn", epochs=5, variations=False)
    model = train(public, np.arange(100), truth[:100], settings, 0, 10)
    folder = tmp_path_factory.mktemp("run") / "release"
    save_student(folder, model, describe("cnn", public.features.shape[1:], DIGITS))
    return folder, test.features, probabilities(model, test.features, 10)


@pytest.fixture(scope="module")
def table_release(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table, np.ndarray, TableEncoder]:
    """A forest's release folder, a public table, and the probabilities it gave before it was saved."""
    rng = np.random.default_rng(0)
    columns = {
        "age": rng.integers(18, 90, 300),
        "job": rng.choice(["nurse", "pilot", "cook"], 300),
        "tall": rng.random(300) < 0.5,
    }
    table = pa.table(columns)
    batch = table.combine_chunks().to_batches()[0]
    schema = pa.schema([("age", pa.int64()), ("job", pa.string()), ("tall", pa.bool_())])
    encoder = fit_encoder([batch], schema, Path("public.parquet"))
    plain = pa.RecordBatch.from_arrays(
        [batch["age"].cast(pa.float64()), batch["job"], batch["tall"].cast(pa.int8()).cast(pa.float64())],
        schema=encoder.schema(TableFile(Path("public.parquet"), "FILE")),
    )
    features = encode(encoder, plain, Path("public.parquet"))
    labels = ((columns["age"] > 50) ^ (columns["job"] == "cook")).astype(int)
    settings = StudentSettings(method="supervised", model=FOREST, params={"n_estimators": 20})
    model = train(Examples(features, np.arange(300)), np.arange(200), labels[:200], settings, 0, 2)
    folder = tmp_path_factory.mktemp("run") / "release"
    save_student(folder, model, describe(FOREST, features.shape[1:], ("low", "high"), encoder))
    return folder, table, probabilities(model, features, 2), encoder


def test_a_network_predicts_after_loading_what_it_did_before(
    digits_release: tuple[Path, np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    """Bit for bit, whatever way the images come: arrays of every shape, .npy, .npz."""
    folder, images, expected = digits_release
    np.save(tmp_path / "flat.npy", images.reshape(len(images), -1))
    np.savez(tmp_path / "one.npz", images)
    # The arrays of an npz source: labels and ids are of one dimension, inputs of more.
    np.savez_compressed(tmp_path / "more.npz", labels=np.zeros(len(images)), x=images, row=np.arange(len(images)))
    sources = [images, images[:, 0], images[:, 0].astype(np.int64), np.moveaxis(images, 1, 3)]
    sources += [tmp_path / "flat.npy", str(tmp_path / "one.npz"), tmp_path / "more.npz"]
    for source in sources:
        labels, found = predict(folder, source)
        assert np.array_equal(found, expected)
        assert np.array_equal(labels, expected.argmax(1))


def test_an_estimator_predicts_tables_after_loading(
    table_release: tuple[Path, pa.Table, np.ndarray, TableEncoder], tmp_path: Path
) -> None:
    """The stored encoder turns a new file's columns, in any order and with others beside, into the same inputs."""
    folder, table, expected, encoder = table_release
    extra = table.select(["tall", "job", "age"]).append_column("note", pa.array(["x"] * 300))
    pq.write_table(extra, tmp_path / "new.parquet")
    _, found = predict(folder, tmp_path / "new.parquet")
    assert np.array_equal(found, expected)
    student = load_student(folder)
    assert encoder_of(student) == encoder
    assert class_names(student) == ("low", "high")
    assert sorted(file.name for file in folder.iterdir()) == ["student.json", "student.skops"]


def test_the_predictions_table_names_classes(digits_release: tuple[Path, np.ndarray, np.ndarray]) -> None:
    """Row, the class's name and its probability, in the order of the inputs; no input gives an empty table."""
    folder, images, expected = digits_release
    found = predictions_table(folder, images)
    assert found.column_names == ["row", "label", "probability"]
    assert found["row"].to_pylist() == list(range(len(images)))
    assert found["label"].to_pylist() == [DIGITS[c] for c in expected.argmax(1)]
    np.testing.assert_array_equal(found["probability"].to_numpy(), expected.max(1).astype(float))
    empty = predictions_table(folder, images[:0])
    assert empty.schema == found.schema
    assert len(empty) == 0


def test_image_files_are_read_in_the_student_s_form(
    digits_release: tuple[Path, np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    """A folder gives a row a file, with its path; a file alone the same prediction; colour and size are adapted."""
    folder, images, expected = digits_release
    for n, image in enumerate(images[:12, 0]):
        path = tmp_path / "in" / ("b" if n < 6 else "a") / f"{n:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    (tmp_path / "in" / "notes.txt").write_text("no image")
    found = predictions_table(folder, tmp_path / "in")
    assert found.column_names == ["row", "label", "probability", "path"]
    order = [*range(6, 12), *range(6)]
    assert found["path"].to_pylist() == [f"{'b' if n < 6 else 'a'}/{n:02d}.png" for n in order]
    np.testing.assert_array_equal(found["probability"].to_numpy(), expected[order].max(1).astype(float))
    one = predictions_table(folder, tmp_path / "in" / "b" / "03.png")
    assert one.to_pylist() == [{"row": 0, **{k: found[k][9].as_py() for k in ("label", "probability")}}]
    larger = Image.fromarray(images[3, 0]).convert("RGB").resize((80, 80), Image.Resampling.NEAREST)
    larger.save(tmp_path / "larger.bmp")
    assert predict(folder, tmp_path / "larger.bmp")[0].tolist() == [expected[3].argmax()]


def test_a_student_of_vectors_scales_new_ones_itself(tmp_path: Path) -> None:
    """Raw numbers in, whatever their scale; the stored encoder makes of them what the student was trained on."""
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(200, 3)) * [1, 1000, 0.01] + [0, 5000, 1]
    encoder = fit_vectors([raw], 3, "x")
    features, truth = encoder.encode(raw), (raw[:, 1] > 5000).astype(int)
    settings = StudentSettings(method="supervised", model="logistic", epochs=40)
    model = train(Examples(features, np.arange(200)), np.arange(100), truth[:100], settings, 0, 2)
    save_student(tmp_path, model, describe("logistic", (3,), ("no", "yes"), encoder))
    assert encoder_of(load_student(tmp_path)) == encoder
    np.savez(tmp_path / "new.npz", x=raw, labels=truth)
    labels, found = predict(tmp_path, tmp_path / "new.npz")
    assert np.array_equal(found, probabilities(model, features, 2))
    assert (labels == truth).mean() > 0.9
    for source, message in (
        (np.full((1, 3), np.nan), "must hold finite numbers: vectors"),
        (np.array([["a", "b", "c"]]), "must hold finite numbers: vectors"),
        (tmp_path / "x.parquet", "must be a .npy or .npz file: this student reads vectors"),
        (tmp_path, "this student does not read images"),
    ):
        with pytest.raises(UserError, match=message):
            predict(tmp_path, source)


def test_colour_images(tmp_path: Path) -> None:
    """Three channels, last or first in arrays, and from files."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (30, 3, 9, 7), dtype=np.uint8)
    settings = StudentSettings(method="supervised", model="cnn", epochs=2, variations=True)
    model = train(Examples(images, np.arange(30)), np.arange(20), np.arange(20) % 2, settings, 0, 2)
    save_student(tmp_path / "release", model, describe("cnn", (3, 9, 7), ("no", "yes")))
    expected = probabilities(model, images, 2)
    last = images.transpose(0, 2, 3, 1)
    Image.fromarray(last[5]).save(tmp_path / "x.png")
    assert np.array_equal(predict(tmp_path / "release", images)[1], expected)
    assert np.array_equal(predict(tmp_path / "release", last)[1], expected)
    np.testing.assert_allclose(predict(tmp_path / "release", tmp_path / "x.png")[1], expected[5:6], atol=1e-6)
    with pytest.raises(UserError, match=r"must be one of \(N, 3, 9, 7\), \(N, 189\), \(N, 9, 7, 3\)"):
        predict(tmp_path / "release", images[:, :1])


def test_a_new_student_replaces_the_old_one(tmp_path: Path) -> None:
    """After an estimator is saved over a network, the folder holds one student and loads it."""
    public, truth, _ = parts(0)
    for name in ("logistic", "sklearn:sklearn.linear_model.LogisticRegression"):
        settings = StudentSettings(method="supervised", model=name, epochs=1, variations=False)
        model = train(public, np.arange(60), truth[:60], settings, 0, 10)
        save_student(tmp_path, model, describe(name, (1, 8, 8), DIGITS))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["student.json", "student.skops"]
    assert predict(tmp_path, public.features)[1].shape == (400, 10)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.zeros((2, 9, 9), np.uint8), r"shape \(2, 9, 9\); must be one of \(N, 1, 8, 8\), \(N, 64\), "),
        (np.zeros(64, np.uint8), r"shape \(64,\)"),
        (np.zeros((2, 8, 8)), "pixels must be whole numbers from 0 to 255"),
        (np.full((2, 8, 8), 256), "pixels must be whole numbers from 0 to 255"),
        ("absent.npy", "no such file"),
        ("broken.npy", "is not a readable array"),
        ("broken.npz", "is not a readable .npz file of arrays"),
        ("objects.npy", "is not a readable array"),
        ("lies.npy", "is not a readable array"),
        ("two.npz", "must hold one array of inputs .* and holds 'arr_0', 'arr_1'"),
        ("table.parquet", "must be a .npy or .npz file of images, an image, or a folder of images"),
        ("absent.png", "no such file"),
        ("broken.png", "broken.png': must be a whole, readable PNG"),
        ("empty", "holds no image"),
        ("folder", "x.png': must be a whole, readable PNG"),
    ],
)
def test_wrong_images_are_refused_in_one_line(
    digits_release: tuple[Path, np.ndarray, np.ndarray], tmp_path: Path, source: np.ndarray | str, message: str
) -> None:
    """Shape, type, range and file format: the error says what is taken."""
    for name in ("empty", "folder"):
        (tmp_path / name).mkdir()
    for name in ("broken.npy", "broken.npz", "broken.png", "folder/x.png"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 not an array")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "two.npz", np.zeros((1, 8, 8), np.uint8), np.zeros((1, 2)))
    with (tmp_path / "lies.npy").open("wb") as stream:
        shape = (10**12, 8, 8)
        np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with pytest.raises(UserError, match=message) as caught:
        predict(digits_release[0], source if isinstance(source, np.ndarray) else tmp_path / source)
    assert "\n" not in str(caught.value)


def test_wrong_tables_are_refused_in_one_line(
    table_release: tuple[Path, pa.Table, np.ndarray, TableEncoder], tmp_path: Path
) -> None:
    """A missing column is named; a column of another type and an infinite number are refused; a strange word is not."""
    folder, table, _, _ = table_release
    cases = {
        "has no column 'job'": table.drop_columns(["job"]),
        "column 'age' must hold": table.set_column(0, "age", pa.array(["old"] * 300)),
        "column 'age' must hold finite": table.set_column(0, "age", pa.array([float("inf"), *range(299)])),
    }
    for message, wrong in cases.items():
        pq.write_table(wrong, tmp_path / "wrong.parquet")
        with pytest.raises(UserError, match=message):
            predict(folder, tmp_path / "wrong.parquet")
    with pytest.raises(UserError, match="no such file"):
        predict(folder, tmp_path / "absent.parquet")
    with pytest.raises(UserError, match=r"must be one of \(N, 5\)"):
        predict(folder, np.zeros((3, 4)))
    pq.write_table(table.set_column(1, "job", pa.array(["astronaut"] * 300)), tmp_path / "new.parquet")
    assert len(predict(folder, tmp_path / "new.parquet")[0]) == 300


def test_a_folder_without_a_student_is_refused(tmp_path: Path) -> None:
    """The error names the file that is missing."""
    with pytest.raises(UserError, match=r"student\.json: no such file"):
        predict(tmp_path, np.zeros((1, 8, 8), np.uint8))
