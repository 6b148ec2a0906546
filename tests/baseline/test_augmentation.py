"""Augmentation multiplicity: the mean gradient of a unit's copies is clipped; a unit decides its own copies alone."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from accounting.events import DPSGD
from baseline import augmentation, dpsgd
from baseline.networks import build
from baseline.settings import BaselineSettings
from data.errors import UserError
from data.examples import PrivateRecords
from data.identity import unit_ids
from teachers.networks import as_input

SHAPE = (1, 12, 12)
CLIP = 0.05


def _images(n: int) -> PrivateRecords:
    generator = np.random.default_rng(5)
    features = generator.integers(0, 256, (n, *SHAPE), dtype=np.uint8)
    units = unit_ids([b"%d" % row for row in range(n)], 0)
    return PrivateRecords(features, generator.integers(0, 3, n).astype(np.int32), units, units)


def _settings(**changed: object) -> BaselineSettings:
    base = {"model": "tanh-cnn", "steps": 1, "clip": CLIP, "learning_rate": 1.0, "batch_size": 8, "averaging": 0.0}
    return BaselineSettings(**{**base, "augmentation": 3, "shift": 2, **changed})


def _step(data: PrivateRecords, settings: BaselineSettings) -> torch.Tensor:
    """The clipped sum that one step at rate 1 applied, its noise next to nothing."""
    start = nn.utils.parameters_to_vector(build(settings, SHAPE, 3, 1).parameters()).detach()
    trained = dpsgd.train(data, DPSGD(1e-9, 1.0, 1), settings, 1, SHAPE, 3)
    return (start - nn.utils.parameters_to_vector(trained.parameters()).detach()) * settings.batch_size


def _shifted_by_hand(image: np.ndarray, down: int, right: int, shift: int) -> np.ndarray:
    padded = np.pad(image, ((0, 0), (shift, shift), (shift, shift)), mode="edge")
    return padded[:, down : down + SHAPE[1], right : right + SHAPE[2]]


def _by_the_definition(data: PrivateRecords, row: int, settings: BaselineSettings) -> torch.Tensor:
    """A loop over the unit's copies with plain autograd: gradients, then their mean, then the clip."""
    moves = augmentation.moves_of(
        augmentation.keys_of(data.units, 1)[row : row + 1], 0, settings.augmentation, settings.shift
    )
    network, total = build(settings, SHAPE, 3, 1), torch.zeros(())
    for copy in range(settings.augmentation):
        down, right = (int(moves[axis, 0, copy]) for axis in (0, 1))
        image = as_input(_shifted_by_hand(data.features[row], down, right, settings.shift)[None])
        loss = nn.functional.cross_entropy(network(image), torch.tensor([int(data.labels[row])]))
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        total = total + torch.cat([gradient.flatten() for gradient in gradients])
    mean = total / settings.augmentation
    return mean * min(1.0, settings.clip / float(mean.norm()))


@pytest.mark.parametrize("model", ["tanh-cnn", "gn-cnn", "scattering", "logistic"])
@pytest.mark.parametrize(("copies", "micro_batch"), [(3, 256), (3, 4), (1, 1)])
def test_a_step_is_the_sum_of_clipped_means_over_the_copies(model: str, copies: int, micro_batch: int) -> None:
    """Gradients are averaged over a unit's copies before the clip, whatever the network and the micro-batch."""
    data, settings = _images(9), _settings(model=model, augmentation=copies, micro_batch=micro_batch)
    terms = [_by_the_definition(data, row, settings) for row in range(9)]
    assert torch.allclose(_step(data, settings), sum(terms), atol=1e-5)
    # The clip binds, so clipping each copy's gradient, or the sum of all, would be seen.
    assert all(float(term.norm()) > 0.99 * CLIP for term in terms)


@pytest.mark.parametrize("copies", [0, 1, 2, 8])
@pytest.mark.parametrize("joined", [0, 4, 9])
def test_a_unit_more_moves_the_sum_by_at_most_the_clip_whatever_the_copies(copies: int, joined: int) -> None:
    """Whoever joins, first, between or last, changes nobody's copies: the sums differ by one clipped gradient."""
    data, settings = _images(10), _settings(augmentation=copies)
    row = int(np.argsort(data.units)[joined])
    others = np.arange(10) != row
    fields = [getattr(data, field.name)[others] for field in dataclasses.fields(data)]
    difference = _step(data, settings) - _step(PrivateRecords(*fields), settings)
    assert float(difference.norm()) <= CLIP * (1 + 1e-3)
    # Were another unit's copies changed too, the difference would be longer: terms of others are of length CLIP.
    assert float(difference.norm()) > 0.99 * CLIP


def test_moves_are_those_of_the_unit_step_and_copy_alone() -> None:
    """A unit's moves are the same in any company, and others in another step, for another copy and another seed."""
    units = unit_ids([b"%d" % row for row in range(200)], 0)
    keys = augmentation.keys_of(units, 1)
    moves = augmentation.moves_of(keys, 5, 4, 2)
    for rows in ([3], [100, 3, 7], list(range(199, -1, -1))):
        assert torch.equal(augmentation.moves_of(keys[rows], 5, 4, 2), moves[:, rows])
    assert np.array_equal(augmentation.keys_of(units[[7]], 1), keys[[7]])
    assert not np.array_equal(augmentation.keys_of(units, 2), keys)
    for other in (augmentation.moves_of(keys, 6, 4, 2), moves.roll(1, 2)):
        # Two independent moves agree in 1 of 25.
        assert float((other == moves).all(0).float().mean()) < 0.1


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_moves_are_uniform_over_the_places(shift: int) -> None:
    """Every place is as likely, over units, over steps of one unit and jointly over two copies."""
    width = 2 * shift + 1
    keys = augmentation.keys_of(unit_ids([b"%d" % row for row in range(5000)], 0), 1)
    many = augmentation.moves_of(keys, 3, 2, shift)
    one = torch.cat([augmentation.moves_of(keys[:1], step, 2, shift) for step in range(5000)], 1)
    for moves in (many, one):
        places = (moves[0] * width + moves[1]).numpy()
        assert stats.chisquare(np.bincount(places[:, 0], minlength=width**2)).pvalue > 1e-7
        pairs = moves[0, :, 0] * width + moves[0, :, 1]
        assert stats.chisquare(np.bincount(pairs.numpy(), minlength=width**2)).pvalue > 1e-7


def test_moved_images_are_the_shifted_ones_with_the_border_repeated() -> None:
    """Against padding and slicing by hand, for every place of a shift of 2 and for channels."""
    images = np.random.default_rng(0).random((25, 2, *SHAPE[1:])).astype(np.float32)
    down, right = np.divmod(np.arange(25), 5)
    moves = torch.from_numpy(np.stack([np.stack([down, right], 1), np.stack([right, down], 1)]))
    moved = augmentation.moved(torch.from_numpy(images), moves, 2)
    for row in range(25):
        for copy in range(2):
            expected = _shifted_by_hand(images[row], int(moves[0, row, copy]), int(moves[1, row, copy]), 2)
            assert np.array_equal(moved[row, copy].numpy(), expected)
    unmoved = augmentation.moved(torch.from_numpy(images), torch.full((2, 25, 1), 2), 2)
    assert np.array_equal(unmoved[:, 0].numpy(), images)


def test_copies_that_do_not_move_are_the_image_itself() -> None:
    """With a shift of 0 pixels, three copies give the step of none."""
    data = _images(9)
    assert torch.allclose(_step(data, _settings(shift=0)), _step(data, _settings(augmentation=0)), atol=1e-6)


def test_nobody_at_all_is_augmented_without_an_error() -> None:
    """An empty private part trains on noise alone, with copies as without."""
    assert float(_step(_images(0), _settings()).abs().max()) < 1e-6


def test_tables_have_no_copies() -> None:
    """A setting that cannot be kept is refused before anything is trained."""
    with pytest.raises(UserError, match=r"baseline.augmentation = 3: is for images"):
        build(_settings(model="logistic"), (5,), 3, 1)
