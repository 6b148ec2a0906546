"""Networks, fitting, estimators and saved models."""

import io
import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from data.errors import UserError
from student import training
from student.settings import StudentSettings
from teachers import ensemble, estimators, fitting, networks, saved
from teachers.augmentation import Augmentation
from teachers.settings import TeacherSettings

FIT = {"epochs": 4, "batch_size": 16, "learning_rate": 1e-2, "weight_decay": 1e-4, "seed": 3}
_FOREST = "sklearn:sklearn.ensemble.RandomForestClassifier"


@pytest.mark.parametrize("model", ["logistic", "mlp", "cnn"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_networks_start_from_the_seed_alone(model: str, shape: tuple[int, ...]) -> None:
    """The same seed gives the same weights bit for bit, another seed others; torch's own generator is not moved."""
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one, same, other = (networks.build(model, shape, 10, seed).state_dict() for seed in (5, 5, 6))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)
    images = np.zeros((3, *shape), dtype=np.uint8)
    assert fitting.probabilities(networks.build(model, shape, 10, 0), images).shape == (3, 10)
    assert fitting.probabilities(networks.build(model, shape, 10, 0), images[:0]).shape == (0, 10)


def test_jobs_take_the_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several GPUs and the choice left, each job is on the next; a named device stays."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert [fitting.spread("auto", job) for job in range(4)] == ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]
    assert fitting.spread("cuda:1", 5) == "cuda:1"
    assert fitting.spread("cpu", 5) == "cpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert fitting.spread("auto", 5) == "cuda"


@pytest.mark.parametrize(("model", "shape"), [("cnn", (104,)), ("cnn", (1, 3, 3)), ("resnet", (1, 8, 8))])
def test_a_network_that_does_not_go_with_the_data_is_refused(model: str, shape: tuple[int, ...]) -> None:
    """Convolutions on a table and unknown names: one line that says what is allowed."""
    with pytest.raises(UserError, match="^[^\n]+$"):
        networks.build(model, shape, 2, 0)


def test_pixels_are_scaled_and_table_columns_are_not() -> None:
    """uint8 becomes [0, 1]; float32 columns, encoded already, keep their values."""
    assert networks.as_input(np.array([[0, 255]], dtype=np.uint8)).tolist() == [[0.0, 1.0]]
    assert networks.as_input(np.array([[-3.0, 400.0]], dtype=np.float32)).tolist() == [[-3.0, 400.0]]


def test_soft_and_hard_targets_of_the_same_meaning_train_the_same_model(
    digits: tuple[np.ndarray, np.ndarray],
) -> None:
    """One-hot probabilities are the classes they stand for."""
    pixels, labels = digits
    hard, soft = (networks.build("mlp", (1, 8, 8), 10, 1) for _ in range(2))
    assert fitting.fit(hard, pixels[:300], labels[:300], **FIT)
    assert fitting.fit(soft, pixels[:300], np.eye(10, dtype=np.float32)[labels[:300]], **FIT)
    shares = fitting.probabilities(hard, pixels[300:])
    assert np.allclose(shares, fitting.probabilities(soft, pixels[300:]), atol=1e-4)
    assert np.allclose(shares.sum(axis=1), 1, atol=1e-5)
    assert (shares.argmax(axis=1) == labels[300:]).mean() > 0.75


def test_fitting_is_adamw_with_a_rate_that_falls_to_zero(digits: tuple[np.ndarray, np.ndarray]) -> None:
    """The weights are those that torch's own optimiser class reaches on the same batches (an oracle)."""
    pixels, labels = digits[0][:64], digits[1][:64]
    ours, theirs = (networks.build("mlp", (1, 8, 8), 10, 1) for _ in range(2))
    assert fitting.fit(ours, pixels, labels, **FIT)
    optimiser = torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=1e-4)
    generator, taken = torch.Generator().manual_seed(3), 0
    for _ in range(4):
        for rows in torch.randperm(64, generator=generator).split(16):
            optimiser.param_groups[0]["lr"] = 1e-2 * min(1, 2 * (1 - taken / 16))
            optimiser.zero_grad()
            outputs = theirs(networks.as_input(pixels)[rows])
            torch.nn.functional.cross_entropy(outputs, torch.from_numpy(labels)[rows].long()).backward()
            optimiser.step()
            taken += 1
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_layouts_in_memory_change_no_weight_beyond_rounding(digits: tuple[np.ndarray, np.ndarray]) -> None:
    """Images, gradients or parameters with a pixel's channels side by side train what the usual layout trains."""
    pixels, labels = digits[0][:64], digits[1][:64]
    usual, images, parameters = (networks.build("cnn", (1, 8, 8), 10, 1) for _ in range(3))
    parameters.to(memory_format=torch.channels_last)
    moved = Augmentation(shift=1)
    assert fitting.fit(usual, pixels, labels, augmentation=moved, **FIT)
    assert fitting.fit(images, pixels, labels, augmentation=moved, channels_last=True, **FIT)
    assert fitting.fit(parameters, pixels, labels, augmentation=moved, **FIT)
    for one, *others in zip(usual.parameters(), images.parameters(), parameters.parameters(), strict=True):
        assert all(torch.allclose(one, other, atol=1e-4) for other in others)


def test_shifts_move_images_whole_and_by_no_more_than_asked() -> None:
    """A moved image is the original at an offset within the bound; a shift of more moves more than one of none."""
    images = torch.zeros(50, 1, 9, 9)
    images[:, 0, 4, 4] = 1.0
    moved = Augmentation(shift=2)(images, torch.Generator().manual_seed(0))
    assert (moved.sum(dim=(1, 2, 3)) == 1).all()
    offsets = {tuple(place[2:].tolist()) for place in moved.nonzero()}
    assert len(offsets) > 10
    assert {abs(row - 4) for row, _ in offsets} == {abs(column - 4) for _, column in offsets} == {0, 1, 2}


def test_turned_images_keep_their_distances_and_scaled_ones_their_centre() -> None:
    """A spot at 6 pixels from the middle stays there under rotation, at every angle up to the bound."""
    images = torch.zeros(300, 2, 21, 31)
    images[:, :, 9:12, 20:23] = 1.0
    generator = torch.Generator().manual_seed(0)
    turned = Augmentation(rotation=90)(images, generator)
    assert torch.equal(turned[:, 0], turned[:, 1])
    ways = torch.stack(torch.meshgrid(torch.arange(21) - 10.0, torch.arange(31) - 15.0, indexing="ij"))
    mass = turned[:, 0].sum((1, 2))
    places = (turned[:, :1] * ways).sum((2, 3)) / mass[:, None]
    assert torch.allclose(places.norm(dim=1), torch.tensor(6.0), atol=0.2)
    angles = torch.rad2deg(torch.atan2(places[:, 0], places[:, 1]))
    assert angles.min() < -80
    assert angles.max() > 80
    assert (places[:, 1] > -0.5).all()
    stretched = Augmentation(scaling=0.5)(images, generator)
    places = (stretched[:, :1] * ways).sum((2, 3)) / stretched[:, 0].sum((1, 2))[:, None]
    assert places[:, 0].abs().max() < 1e-4
    assert 2.7 < places[:, 1].min() < 4.0
    assert 8.0 < places[:, 1].max() < 9.3


def test_tables_and_no_augmentation_change_nothing() -> None:
    """Only images are changed, and only where a bound is above 0; bounds near 0 give them back."""
    images = torch.rand(20, 1, 9, 9)
    assert not Augmentation().changes(images)
    assert not Augmentation(rotation=10).changes(torch.rand(20, 9))
    nearly = Augmentation(rotation=1e-6, scaling=1e-9)
    assert nearly.changes(images)
    assert torch.allclose(nearly(images, torch.Generator().manual_seed(0)), images, atol=1e-4)


def test_training_that_diverges_says_so(digits: tuple[np.ndarray, np.ndarray]) -> None:
    """A loss or parameters that are not finite give False, and no exception; so do no records at all."""
    table = np.full((20, 4), np.inf, dtype=np.float32)
    assert not fitting.fit(networks.build("mlp", (4,), 2, 0), table, np.arange(20) % 2, **FIT)
    assert not fitting.fit(networks.build("mlp", (4,), 2, 0), table[:0], np.arange(0), **FIT)


@pytest.mark.parametrize("model", ["logistic", "mlp", "cnn"])
def test_a_saved_network_predicts_the_same(digits: tuple[np.ndarray, np.ndarray], tmp_path: Path, model: str) -> None:
    """Probabilities after loading are those before saving, bit for bit, and the caller's facts come back."""
    network = networks.build(model, (1, 8, 8), 10, 4)
    saved.save(tmp_path / "student", network, saved.Description(model, (1, 8, 8), 10, {"classes": ["0", "1"]}))
    loaded = saved.load(tmp_path / "student")
    assert loaded.description.extra == {"classes": ["0", "1"]}
    pixels = digits[0][:50]
    assert np.array_equal(loaded.probabilities(pixels), fitting.probabilities(network, pixels))
    with pytest.raises(UserError, match="the model takes"):
        loaded.probabilities(pixels[:, :, :4])


@pytest.mark.parametrize(
    "path",
    [
        "sklearn.ensemble.RandomForestClassifier",
        "sklearn.ensemble.HistGradientBoostingClassifier",
        "sklearn.linear_model.LogisticRegression",
        "sklearn.neighbors.KNeighborsClassifier",
        "sklearn.svm.SVC",
    ],
)
def test_a_saved_estimator_predicts_the_same(digits: tuple[np.ndarray, np.ndarray], tmp_path: Path, path: str) -> None:
    """Common classifiers survive the skops file, without pickle."""
    pixels, labels = digits
    matrix = pixels.reshape(len(pixels), -1).astype(np.float32) / 255
    params = {"n_estimators": 10} if "Forest" in path else {"max_iter": 5} if "Hist" in path else {}
    estimator = estimators.build(f"sklearn:{path}", params, 1).fit(matrix[:200], labels[:200])
    saved.save(tmp_path / "student", estimator, saved.Description(f"sklearn:{path}", (1, 8, 8), 10))
    assert np.array_equal(
        saved.load(tmp_path / "student").probabilities(pixels[200:260]),
        estimators.probabilities(estimator, matrix[200:260], 10),
    )


class _Foreign:
    """A type that no saved model may bring along."""

    def __init__(self) -> None:
        self.command = "id"


def test_a_file_that_brings_a_foreign_type_or_a_pickle_is_refused(
    digits: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    """Whoever writes the file must not get code run: types outside scikit-learn, functions of it, and pickles."""
    from sklearn.datasets import fetch_openml
    from sklearn.preprocessing import FunctionTransformer

    model = "sklearn:sklearn.naive_bayes.GaussianNB"
    estimator = estimators.build(model, {}, 0).fit(digits[0][:50].reshape(50, -1), digits[1][:50])
    for index, foreign in enumerate((_Foreign(), FunctionTransformer(fetch_openml))):
        estimator.extra = foreign
        saved.save(tmp_path / f"{index}", estimator, saved.Description(model, (1, 8, 8), 10))
        with pytest.raises(UserError, match="refused"):
            saved.load(tmp_path / f"{index}")
    weights = tmp_path / "1.skops"
    weights.write_bytes(pickle.dumps(estimator))
    _redescribe(weights)
    with pytest.raises(UserError, match="corrupt"):
        saved.load(tmp_path / "1")


def _redescribe(weights: Path) -> None:
    """Make the description vouch for whatever the file now holds."""
    from data.store import digest, read_json, write_json

    page = weights.with_suffix(".json")
    record = read_json(page)
    record["weights"]["sha256"] = digest(weights)
    write_json(page, record)


@pytest.mark.parametrize("vouched", [False, True])
def test_a_damaged_model_is_named(tmp_path: Path, vouched: bool) -> None:
    """A missing, cut or foreign file is a one-line error with the file's name."""
    network = networks.build("mlp", (4,), 2, 0)
    weights, page = saved.save(tmp_path / "student", network, saved.Description("mlp", (4,), 2))
    weights.write_bytes(weights.read_bytes()[:-3])
    if vouched:
        _redescribe(weights)
    with pytest.raises(UserError, match=r"^[^\n]*student\.safetensors[^\n]*$"):
        saved.load(tmp_path / "student")
    weights.unlink()
    with pytest.raises(UserError, match=r"student\.safetensors: no such file"):
        saved.load(tmp_path / "student")
    page.write_text("[]")
    with pytest.raises(UserError, match=r"student\.json: is corrupt"):
        saved.load(tmp_path / "student")


@pytest.mark.parametrize(
    ("path", "params", "said"),
    [
        ("sklearn:sklearn.ensemble.NoSuchForest", {}, "cannot be imported"),
        ("sklearn:sklearn.nowhere.Forest", {}, "cannot be imported"),
        ("sklearn:os.system", {}, "must be a class of scikit-learn"),
        ("sklearn:sklearn.linear_model.LinearRegression", {}, "must be a classifier"),
        ("sklearn:sklearn.base.clone", {}, "must be a class"),
        ("sklearn:sklearn.ensemble.RandomForestClassifier", {"trees": 5}, "does not take them"),
        ("sklearn:sklearn.ensemble.RandomForestClassifier", {"n_estimators": -1}, "n_estimators"),
        ("sklearn:sklearn.ensemble.VotingClassifier", {}, "does not take them"),
    ],
)
def test_bad_estimators_are_refused_in_one_line(path: str, params: dict[str, object], said: str) -> None:
    """A wrong path, a regressor, an unknown or impossible parameter: one line that says which."""
    with pytest.raises(UserError, match="^[^\n]+$") as error:
        estimators.build(path, params, 0)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": _FOREST, "precision": "mixed"}, ".precision = 'mixed': is for networks"),
        ({"model": "cnn", "params": {"n_estimators": 5}}, ".params: are for estimators and modules"),
        ({"model": _FOREST, "params": {"trees": 5}}, ".params: model = "),
    ],
)
def test_settings_that_a_model_would_ignore_are_refused(changes: dict[str, object], said: str) -> None:
    """By teachers and student alike, with the whole name of the setting."""
    teachers = TeacherSettings(empty_vote=0).model_copy(update=changes)
    student = StudentSettings(method="supervised").model_copy(update=changes)
    with pytest.raises(UserError, match=f"^teachers{re.escape(said)}"):
        ensemble.check(teachers, (1, 8, 8), 10)
    with pytest.raises(UserError, match=f"^student{re.escape(said)}"):
        training.check(student, (1, 8, 8), 10)


def test_estimators_are_seeded_and_run_on_one_core() -> None:
    """random_state comes from the seed unless the settings fix it; n_jobs stays at one core."""
    assert estimators.build(_FOREST, {}, 2**40 + 9).random_state == 9
    assert estimators.build(_FOREST, {"random_state": 5}, 9).random_state == 5
    assert estimators.build(_FOREST, {}, 9).n_jobs in (None, 1)
    assert "random_state" not in estimators.build("sklearn:sklearn.naive_bayes.GaussianNB", {}, 9).get_params()


def test_skops_files_are_archives_without_pickled_objects(tmp_path: Path) -> None:
    """Every member of the archive is JSON or a plain array."""
    model = "sklearn:sklearn.tree.DecisionTreeClassifier"
    estimator = estimators.build(model, {}, 0).fit(np.arange(8.0).reshape(4, 2), [0, 1, 0, 1])
    weights, _ = saved.save(tmp_path / "m", estimator, saved.Description(model, (2,), 2))
    with zipfile.ZipFile(weights) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            if name.endswith(".npy"):
                np.load(io.BytesIO(content), allow_pickle=False)
            else:
                assert content.startswith((b"{", b"["))
