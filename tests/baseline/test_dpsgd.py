import math
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from scipy import stats
from torch import nn

from accounting.events import DPSGD
from baseline import dpsgd
from baseline.networks import build
from baseline.planning import plan
from baseline.settings import BaselineSettings
from data.errors import UserError
from data.examples import PrivateRecords
from data.identity import unit_ids
from teachers.networks import as_input

Records = Callable[..., PrivateRecords]
SILENT = 1e-9


def _settings(**changed: object) -> BaselineSettings:
    base = {"model": "tanh-mlp", "sampling_rate": 1.0, "steps": 1, "clip": 0.7, "learning_rate": 1.0, "batch_size": 8}
    return BaselineSettings(**{**base, "averaging": 0.0, **changed})


def _event(settings: BaselineSettings, noise: float) -> DPSGD:
    return DPSGD(noise, settings.sampling_rate, settings.steps)


def _weights(network: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(network.parameters()).detach()


def _move(data: PrivateRecords, settings: BaselineSettings, noise: float = SILENT) -> torch.Tensor:
    """The sum that one step of SGD at rate 1 applied: −(change of the weights) × the divisor."""
    start = _weights(build(settings, data.features.shape[1:], 3, 1))
    trained = dpsgd.train(data, _event(settings, noise), settings, 1, data.features.shape[1:], 3)
    return (start - _weights(trained)) * settings.batch_size


def _clipped_gradient(data: PrivateRecords, row: int, settings: BaselineSettings) -> torch.Tensor:
    """One unit's gradient by plain autograd, scaled to at most the clipping norm: the definition."""
    network = build(settings, data.features.shape[1:], 3, 1)
    loss = nn.functional.cross_entropy(
        network(as_input(data.features[row : row + 1])), torch.tensor([int(data.labels[row])])
    )
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))])
    return gradient * min(1.0, settings.clip / float(gradient.norm()))


@pytest.mark.parametrize("micro_batch", [512, 4, 1])
def test_a_step_is_the_sum_of_clipped_gradients_over_the_constant(records: Records, micro_batch: int) -> None:
    """With the noise next to nothing a step is Σ clip(g) / batch_size, by plain autograd, whatever the micro-batch."""
    data, settings = records(13), _settings(micro_batch=micro_batch)
    expected = sum(_clipped_gradient(data, row, settings) for row in range(13))
    assert torch.allclose(_move(data, settings), expected, atol=2e-5)


@pytest.mark.parametrize("n", [1, 7, 30])
def test_the_divisor_is_the_constant_whatever_the_number_of_units(records: Records, n: int) -> None:
    """n equal-sized data sets or not: the applied sum over batch_size never uses n or the sample's size."""
    data, settings = records(n), _settings(batch_size=64)
    expected = sum(_clipped_gradient(data, row, settings) for row in range(n))
    assert torch.allclose(_move(data, settings), expected, atol=1e-4)


def test_a_unit_more_moves_the_sum_by_its_own_clipped_gradient(records: Records) -> None:
    """Adding one unit changes no constant: the sums of the two neighbours differ by that unit's term alone."""
    larger, settings = records(12), _settings()
    smaller = PrivateRecords(larger.features[:-1], larger.labels[:-1], larger.units[:-1], larger.content[:-1])
    difference = _move(larger, settings) - _move(smaller, settings)
    assert torch.allclose(difference, _clipped_gradient(larger, 11, settings), atol=2e-5)
    assert float(difference.norm()) <= settings.clip * (1 + 1e-4)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e6, 1e18, 1e30, 3e38, math.inf, math.nan])
def test_no_record_however_extreme_moves_the_sum_beyond_the_clip(records: Records, scale: float) -> None:
    """Tiny, huge, overflowing, infinite and NaN inputs: the sum stays finite, and within the clip of one unit."""
    data, settings = records(9), _settings(model="logistic")
    features = data.features.copy()
    features[4] = np.float32(min(scale, 3e38)) if math.isfinite(scale) else scale
    features[4, 0] = -features[4, 0]
    extreme = PrivateRecords(features, data.labels, data.units, data.content)
    without = np.arange(9) != 4
    rest = PrivateRecords(data.features[without], data.labels[without], data.units[without], data.content[without])
    difference = _move(extreme, settings) - _move(rest, settings)
    assert bool(torch.isfinite(difference).all())
    assert float(difference.norm()) <= settings.clip * (1 + 1e-4)


@pytest.mark.parametrize("n", [0, 20])
def test_the_noise_has_the_std_of_the_event(records: Records, n: int) -> None:
    """Noise on the sum is N(0, (noise_multiplier · clip)²) per coordinate, for no unit as for 20; 5% off is refused."""
    settings, multiplier = _settings(clip=0.5, batch_size=100, micro_batch=3), 2.0
    data = records(n)
    noise = torch.cat([_move(data, settings, multiplier) - _move(data, settings) for _ in range(12)]).double().numpy()
    std = multiplier * settings.clip
    low, high = np.sqrt(stats.chi2.ppf([1e-9, 1 - 1e-9], len(noise)) / len(noise))
    measured = math.sqrt(float(np.mean(noise**2)))
    assert low < measured / std < high
    # The interval is narrow enough to tell: noise once per micro-batch, or not scaled by the clip, is far outside.
    assert low > 0.95
    assert high < 1.05
    assert stats.kstest(noise / std, "norm").pvalue > 1e-7
    assert stats.kstest(noise / (1.25 * std), "norm").pvalue < 1e-7


def test_an_empty_sample_is_a_step_of_noise_and_never_skipped(records: Records) -> None:
    """At a rate so low that every sample is empty, all steps still add noise and are reported as done."""
    settings = _settings(sampling_rate=1e-9, steps=30, clip=1.0, batch_size=1)
    done: list[tuple[int, int]] = []
    network = dpsgd.train(records(10), _event(settings, 1.0), settings, 1, (5,), 3, lambda a, b: done.append((a, b)))
    moved = (_weights(network) - _weights(build(settings, (5,), 3, 1))).double().numpy()
    low, high = np.sqrt(30 * stats.chi2.ppf([1e-9, 1 - 1e-9], len(moved)) / len(moved))
    assert low < math.sqrt(float(np.mean(moved**2))) < high
    assert done == [(step, 30) for step in range(1, 31)]


def test_images_and_no_records_at_all_train_too() -> None:
    """An empty private part of images trains on noise alone: that there was nobody must not be told by an error."""
    for model in ("scattering", "tanh-cnn"):
        settings = _settings(model=model, steps=2)
        nobody = PrivateRecords(
            np.zeros((0, 1, 8, 8), np.uint8), np.zeros(0, np.int32), np.zeros(0, "S32"), np.zeros(0, "S32")
        )
        network = dpsgd.train(nobody, _event(settings, 1.0), settings, 1, (1, 8, 8), 10)
        assert bool(torch.isfinite(_weights(network)).all())


@pytest.mark.parametrize(("rate", "noise"), [(1.0, 1.0), (0.5, SILENT)])
def test_the_seed_fixes_the_initial_weights_and_neither_noise_nor_samples(
    records: Records, rate: float, noise: float
) -> None:
    """Two runs of one seed start alike and end apart, by noise alone and by samples alone; torch's seed is no help."""
    data, settings = records(40), _settings(steps=3, sampling_rate=rate)
    assert torch.equal(_weights(build(settings, (5,), 3, 1)), _weights(build(settings, (5,), 3, 1)))
    assert not torch.equal(_weights(build(settings, (5,), 3, 1)), _weights(build(settings, (5,), 3, 2)))
    ends = []
    for _ in range(2):
        torch.manual_seed(0)
        ends.append(_weights(dpsgd.train(data, _event(settings, noise), settings, 1, (5,), 3)))
    # Coordinates may agree by chance (a float has 24 bits); most must not.
    assert float((ends[0] != ends[1]).float().mean()) > 0.9


def test_with_the_entropy_given_nothing_else_is_random(records: Records) -> None:
    """The same bytes in the place of the system's give the same weights bit for bit."""
    data, settings = records(10), _settings(steps=3, sampling_rate=0.5)
    known = [
        _weights(dpsgd.train(data, _event(settings, 1.0), settings, 1, (5,), 3, entropy=np.random.default_rng(3).bytes))
        for _ in range(2)
    ]
    assert torch.equal(*known)


def test_torchs_global_generator_is_neither_read_nor_moved(records: Records) -> None:
    """Whoever seeds torch learns nothing of the noise, and the run leaves the global state as it was."""
    settings = _settings(steps=2)
    before = torch.get_rng_state()
    dpsgd.train(records(10), _event(settings, 1.0), settings, 1, (5,), 3)
    assert torch.equal(before, torch.get_rng_state())


def test_a_person_with_many_records_is_clipped_as_one_unit(records: Records) -> None:
    """Fifty records of one unit move the sum by no more than the clipping norm."""
    settings = _settings()
    crowd = records(50, [b"one"] * 50)
    assert float(_move(crowd, settings).norm()) <= settings.clip * (1 + 1e-4)


def test_averaging_is_the_mean_of_the_last_weights(records: Records) -> None:
    """averaging = 0.5 of 4 steps releases the mean of the weights after steps 3 and 4, from the same noise."""
    data, bits = records(10), os.urandom(1 << 14)

    def source() -> Callable[[int], bytes]:
        return lambda n: bits[:n]

    def after(steps: int, averaging: float) -> torch.Tensor:
        settings = _settings(steps=steps, averaging=averaging, momentum=0.5)
        return _weights(dpsgd.train(data, _event(settings, 1.0), settings, 1, (5,), 3, entropy=source()))

    assert torch.allclose(after(4, 0.5), (after(3, 0.0) + after(4, 0.0)) / 2, atol=1e-5)
    assert torch.allclose(after(4, 1.0), sum(after(k, 0.0) for k in (1, 2, 3, 4)) / 4, atol=1e-5)


@pytest.mark.parametrize(("epsilon", "delta", "rate", "steps"), [(1.0, 1e-4, 1.0, 30), (2.14, 1e-5, 0.1, 200)])
def test_the_planned_noise_meets_the_target_and_wastes_little(
    epsilon: float, delta: float, rate: float, steps: int
) -> None:
    """dp_accounting, asked directly, finds an epsilon between 97% and 100% of the target."""
    event = plan(_settings(sampling_rate=rate, steps=steps), epsilon, delta)
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    step = PoissonSampledDpEvent(rate, GaussianDpEvent(event.noise_multiplier))
    accountant.compose(SelfComposedDpEvent(step, steps))
    assert (event.sampling_rate, event.steps) == (rate, steps)
    assert 0.97 * epsilon <= accountant.get_epsilon(delta) <= epsilon


def test_training_refuses_an_event_that_was_not_planned_for_it(records: Records) -> None:
    """What is charged is what is run: other steps or another rate than the event's are refused."""
    for event in (DPSGD(1.0, 1.0, 2), DPSGD(1.0, 0.5, 1)):
        with pytest.raises(UserError, match="sampling_rate and steps"):
            dpsgd.train(records(4), event, _settings(), 1, (5,), 3)


def test_nothing_is_printed_and_nothing_private_hangs_on_the_network(
    records: Records, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    """No line, no warning; the returned weights carry no per-unit gradient, and equal those of a plain network."""
    settings = _settings(steps=3)
    network = dpsgd.train(records(10), _event(settings, 1.0), settings, 1, (5,), 3)
    assert capfd.readouterr() == ("", "")
    assert [str(w.message) for w in recwarn] == []
    for parameter in network.parameters():
        assert parameter.grad is None
        assert not hasattr(parameter, "grad_sample")
        assert not hasattr(parameter, "summed_grad")


def test_units_without_an_order_give_the_same_sum(records: Records) -> None:
    """The order in which records lie in the file decides nothing."""
    data, settings = records(12), _settings()
    order = np.random.default_rng(0).permutation(12)
    shuffled = PrivateRecords(data.features[order], data.labels[order], data.units[order], data.content[order])
    assert torch.allclose(_move(data, settings), _move(shuffled, settings), atol=1e-5)
    assert unit_ids([b"a"], 0).dtype == data.units.dtype
