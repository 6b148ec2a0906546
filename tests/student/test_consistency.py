"""The consistency student: its targets by hand, and that it learns, repeats and corrects what is wrong."""

import numpy as np
import pytest
import torch

from data.errors import UserError
from data.examples import Examples
from student import training
from student.consistency import own_targets, train_consistent
from student.settings import StudentSettings
from teachers import networks
from teachers.fitting import probabilities
from tests.student.digits_data import parts

SETTINGS = StudentSettings(method="consistency", model="cnn", epochs=12, batch_size=64, learning_rate=5e-3)


def test_targets_are_sharpened_aligned_and_keep_what_was_released() -> None:
    own = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.98, 0.02], [0.55, 0.45]])
    released = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    shares = torch.tensor([0.5, 0.5])
    targets, weight = own_targets(own, shares, released, 0.8)
    squares = own.double().numpy() ** 2
    squares /= squares.sum(1, keepdims=True)
    aligned = squares * 0.5 / squares.mean(0)
    aligned /= aligned.sum(1, keepdims=True)
    np.testing.assert_allclose(targets[0], aligned[0], rtol=1e-5)
    np.testing.assert_array_equal(targets[1], [0, 1])  # Unsure: the released label stays.
    assert aligned[2, 0] > 0.9
    np.testing.assert_allclose(targets[2], aligned[2], rtol=1e-5)  # Surely of another mind: it goes.
    np.testing.assert_array_equal(weight, (aligned.max(1) > 0.8) | np.array([False, True, True, False]))


def _released(count: int, wrong: int) -> tuple[Examples, np.ndarray, np.ndarray, np.ndarray]:
    public, truth, _ = parts(0)
    rows = np.random.default_rng(0).permutation(len(truth))[:count]
    labels = truth[rows].astype(np.int64)
    labels[:wrong] = (labels[:wrong] + 1) % 10
    return public, rows, labels, truth


def test_better_than_the_labels_alone_repeatable_and_not_misled_by_a_few_wrong_ones() -> None:
    public, rows, labels, truth = _released(100, 5)
    alone = training.train(public, rows, labels, SETTINGS.model_copy(update={"method": "supervised"}), 0, 10)
    one, two = (training.train(public, rows, labels, SETTINGS, 0, 10) for _ in range(2))
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name])
    found = [(probabilities(model, public.features).argmax(1) == truth).mean() for model in (alone, one)]
    assert found[1] > max(found[0], 0.93)
    assert (probabilities(one, public.features[rows[:5]]).argmax(1) != labels[:5]).sum() >= 3


def test_mixed_precision_repeats_and_learns_as_well() -> None:
    public, rows, labels, truth = _released(100, 5)
    mixed = SETTINGS.model_copy(update={"precision": "mixed", "epochs": 6})
    full = training.train(public, rows, labels, mixed.model_copy(update={"precision": "full"}), 0, 10)
    one, two = (training.train(public, rows, labels, mixed, 0, 10) for _ in range(2))
    weights = [torch.cat([p.flatten() for p in model.parameters()]) for model in (one, two, full)]
    assert weights[0].dtype == torch.float32
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    found = [(probabilities(model, public.features).argmax(1) == truth).mean() for model in (one, full)]
    assert abs(found[0] - found[1]) < 0.03


def test_the_global_generator_and_the_arguments_are_left_alone() -> None:
    public, rows, labels, _ = _released(60, 0)
    network = networks.build("cnn", public.features.shape[1:], 10, 0)
    belief = np.full((len(public.features), 10), 0.1)
    before, state = belief.copy(), torch.get_rng_state()
    done: list[tuple[int, int]] = []
    quick = SETTINGS.model_copy(update={"epochs": 2})
    train_consistent(network, public.features, belief, rows, labels, quick, 0, lambda *at: done.append(at))
    assert done[-1] == (84, 84)
    assert torch.equal(state, torch.get_rng_state())
    np.testing.assert_array_equal(belief, before)


def test_only_images_and_networks() -> None:
    with pytest.raises(UserError, match=r"student.method = 'consistency': is for images"):
        training.check(SETTINGS.model_copy(update={"model": "mlp"}), (12,), 2)
    with pytest.raises(UserError, match="not for 'logistic'"):
        training.check(SETTINGS.model_copy(update={"model": "logistic"}), (1, 8, 8), 2)


def test_a_rate_at_which_training_diverges_is_named() -> None:
    public, rows, labels, _ = _released(60, 0)
    wild = SETTINGS.model_copy(update={"learning_rate": 1e30, "epochs": 2})
    with pytest.raises(UserError, match=r"student.learning_rate = 1e\+30: training diverged"):
        training.train(public, rows, labels, wild, 0, 10)
