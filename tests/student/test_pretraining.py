"""Encoders: from public inputs alone, the same every time, and of each record by itself."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from data.errors import UserError
from data.examples import Examples
from student.augmentation import Strength, warped
from student.pretraining import check, nt_xent, pretrain
from student.pretraining_settings import PretrainingSettings
from teachers import encoders
from teachers.backbones import backbone, folded
from teachers.encoders import Encoder
from teachers.networks import as_input

SMALL = PretrainingSettings(
    method="contrastive", epochs=3, batch_size=40, width=6, dimensions=24, components=10, device="cpu"
)


def _images(count: int, seed: int = 0) -> np.ndarray:
    """Blurred bright spots."""
    places = np.random.default_rng(seed).uniform(2, 8, (count, 2))
    rows, columns = np.mgrid[:10, :10]
    near = np.square(rows - places[:, :1, None]) + np.square(columns - places[:, 1:, None])
    return (255 * np.exp(-near / 4)).astype(np.uint8)[:, None]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    images = _images(120)
    return pretrain(Examples(images, np.arange(len(images))), SMALL, 7)


def test_it_is_the_same_every_time_and_leaves_torchs_generator_alone(encoder: Encoder) -> None:
    """Bit for bit; another seed gives another one."""
    public = Examples(_images(120), np.arange(120))
    state = torch.get_rng_state()
    again = pretrain(public, SMALL, 7)
    assert torch.equal(state, torch.get_rng_state())
    assert encoders.weights_digest(again.network) == encoders.weights_digest(encoder.network)
    assert np.array_equal(again.axes, encoder.axes)
    other = pretrain(public, SMALL, 8)
    assert encoders.weights_digest(other.network) != encoders.weights_digest(encoder.network)
    mixed = [pretrain(public, SMALL.model_copy(update={"precision": "mixed"}), 7).network for _ in range(2)]
    digests = {encoders.weights_digest(network) for network in mixed}
    assert len(digests) == 1
    assert encoders.weights_digest(encoder.network) not in digests


def test_features_are_of_unit_length_and_of_each_record_by_itself(encoder: Encoder) -> None:
    """Whatever other records come along, in whatever order, and however many."""
    images = _images(150, 1)
    found = encoder.features(images)
    assert found.shape == (150, 10)
    assert found.dtype == np.float32
    assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(150), abs=1e-5)
    changed = images.copy()
    changed[1:] = 255 - changed[1:]
    assert np.array_equal(encoder.features(changed)[0], found[0])
    assert np.array_equal(encoder.features(images[:1])[0], found[0])
    alone = encoder.features(images, block=1)
    assert np.array_equal(alone[[5]], encoder.features(images[[5]], block=1))
    assert alone == pytest.approx(found, abs=1e-4)
    assert encoder.features(images[:0]).shape == (0, 10)


def test_whitened_components_vary_alike(encoder: Encoder) -> None:
    """At whitening 0.5 the projections have unit variance on the public inputs; without it they do not."""
    images = _images(120)
    reached = np.concatenate([rows[:n].numpy() for rows, n in encoders.outputs(encoder.network, images, "cpu")])
    assert ((reached - encoder.mean) @ encoder.axes).var(0) == pytest.approx(np.ones(10), rel=1e-2)
    plain = pretrain(Examples(images, np.arange(120)), SMALL.model_copy(update={"whitening": 0.0}), 7)
    assert np.linalg.norm(plain.axes, axis=0) == pytest.approx(np.ones(10), rel=1e-4)


@pytest.mark.parametrize("precision", ["full", "mixed"])
def test_training_brings_views_of_one_image_together(precision: str) -> None:
    """On images not trained on, the loss of two views is smaller than at the initial weights."""
    images = _images(120)
    longer = SMALL.model_copy(update={"epochs": 25, "precision": precision})
    encoder = pretrain(Examples(images, np.arange(120)), longer, 7)
    shown = as_input(_images(80, 2))
    generator = torch.Generator().manual_seed(3)
    first, second = warped(shown, generator), warped(shown, generator)
    start = backbone(encoder.shape, 6, 24, 1)
    start.train()(shown)
    with torch.no_grad():
        trained = nt_xent(encoder.network(first), encoder.network(second), 0.2)
        untrained = nt_xent(start.eval()(first), start(second), 0.2)
    assert trained < 0.9 * untrained


def test_the_contrastive_loss_is_that_of_its_formula() -> None:
    first, second = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    views = torch.cat([first, second]).double().numpy()
    views /= np.linalg.norm(views, axis=1, keepdims=True)
    losses = []
    for i in range(6):
        among = [math.exp(views[i] @ views[k] / 0.5) for k in range(6) if k != i]
        losses.append(-math.log(math.exp(views[i] @ views[(i + 3) % 6] / 0.5) / sum(among)))
    assert nt_xent(first, second, 0.5).item() == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 8, 8), (3, 70, 40)])
def test_a_folded_backbone_is_the_one_in_eval_mode(shape: tuple[int, ...]) -> None:
    """After its moments and scales moved; and it mixes no records in training."""
    network = backbone(shape, 8, 16, 0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    network.train()(torch.rand(12, *shape, generator=generator))
    rows = torch.rand(6, *shape, generator=generator)
    plain = folded(network)
    assert torch.allclose(plain(rows), network.eval()(rows), atol=1e-5)
    assert not any(isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) for layer in plain)
    assert torch.allclose(plain.train()(rows)[:1], plain(rows[:1]), atol=1e-6)


def test_trainable_layers_give_the_features(encoder: Encoder) -> None:
    """New layers at each call, none of them the encoder's own."""
    images = _images(30, 4)
    layers = nn.Sequential(*encoder.trainable())
    assert layers(as_input(images)).detach().numpy() == pytest.approx(encoder.features(images), abs=1e-4)
    own = {p.data_ptr() for p in encoder.network.parameters()}
    assert not own & {p.data_ptr() for p in layers.parameters()}


def test_a_saved_encoder_is_the_same_and_a_damaged_one_is_refused(encoder: Encoder, tmp_path: Path) -> None:
    """Bit for bit."""
    images = _images(30, 5)
    weights, page = encoders.save(tmp_path / "encoder", encoder)
    assert np.array_equal(encoders.load(tmp_path / "encoder", 7, "cpu").features(images), encoder.features(images))
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UserError, match=r"encoder\.safetensors: is corrupt"):
        encoders.load(tmp_path / "encoder", 7)
    page.write_text("{}")
    with pytest.raises(UserError, match=r"encoder\.json: is corrupt"):
        encoders.load(tmp_path / "encoder", 7)


_MODULES = """
import torch
from torch import nn

class Mixing(nn.Module):
    def forward(self, rows):
        return rows.flatten(1) - rows.flatten(1).mean(0)

def drawn(shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 12), nn.BatchNorm1d(12), nn.ReLU())

def mixing(shape):
    return Mixing()

def flat(shape):
    return nn.Conv2d(shape[0], 2, 1)

calls = []
def other(shape):
    calls.append(0)
    network = drawn(shape)
    nn.init.constant_(network[1].weight, len(calls))
    return network
"""


def test_a_module_of_ones_own_is_checked_frozen_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights are not kept: a page says which they were."""
    monkeypatch.syspath_prepend(tmp_path)
    code = tmp_path / "encoders_of_a_user.py"
    code.write_text(_MODULES)
    images = _images(60)
    settings = PretrainingSettings(method="module:encoders_of_a_user.drawn", components=8, device="cpu")
    made = pretrain(Examples(images, np.arange(60)), settings, 3)
    assert not any(p.requires_grad for p in made.network.parameters())
    encoders.save(tmp_path / "encoder", made)
    assert np.array_equal(encoders.load(tmp_path / "encoder", 3, "cpu").features(images), made.features(images))
    with pytest.raises(UserError, match="gives other weights"):
        encoders.load(tmp_path / "encoder", 4)
    for name, problem in (
        ("mixing", "must not mix the records"),
        ("flat", r"must map \(4, 1, 10, 10\) to \(4, D\)"),
        ("other", "must give the same weights"),
        ("absent", "cannot be imported"),
    ):
        changed = settings.model_copy(update={"method": f"module:encoders_of_a_user.{name}"})
        with pytest.raises(UserError, match=f"pretraining.method = 'module:encoders_of_a_user.{name}'.*{problem}"):
            check(changed, (1, 10, 10), 60, 0)


def test_what_cannot_be_learned_is_refused_by_its_field() -> None:
    with pytest.raises(UserError, match=r"pretraining\.method = 'contrastive': is for images"):
        check(SMALL, (30,), 500, 0)
    with pytest.raises(UserError, match=r"pretraining\.batch_size = 40: must be at most the 39"):
        check(SMALL, (1, 8, 8), 39, 0)
    with pytest.raises(ValueError, match="components = 30: must be at most dimensions = 24"):
        PretrainingSettings.model_validate(SMALL.model_dump() | {"components": 30})
    with pytest.raises(ValueError, match="must be none, contrastive, or module:"):
        PretrainingSettings(method="simclr")


def test_views_keep_shape_and_a_strength_of_nothing_changes_nothing() -> None:
    """Each image by draws of its own: none depends on the pixels of another."""
    shown = as_input(_images(9))
    still = Strength(0, 0, 0, 0, 0)
    assert warped(shown, torch.Generator(), still) == pytest.approx(shown.numpy(), abs=1e-5)
    other = shown.clone()
    other[1:] = 0.5
    first, second = (warped(each, torch.Generator().manual_seed(1)) for each in (shown, other))
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[0], shown[0])
    assert dataclasses.astuple(Strength()) == (10.0, 0.07, 0.12, 0.15, 0.06)
