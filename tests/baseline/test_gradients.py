from collections.abc import Iterable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from baseline.gradients import Gradients, clipped_sum, per_unit, workers
from baseline.networks import divide
from teachers.networks import build

SHAPE = (1, 12, 12)
CLIP = 0.3
NETWORKS = ["logistic", "tanh-mlp", "tanh-cnn", "gn-cnn", "scattering"]


def _data(units: int, copies: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.rand((units, copies, *SHAPE), generator=generator)
    return inputs, torch.randint(0, 4, (units,), generator=generator)


def _flat(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([gradient.flatten(1) for gradient in gradients], 1)


@pytest.mark.parametrize("model", NETWORKS)
@pytest.mark.parametrize("copies", [1, 3])
def test_each_units_gradient_is_autograds(model: str, copies: int) -> None:
    """Row by row the derivative of that unit's mean loss, in the order of the parameters."""
    network, (inputs, labels) = build(model, SHAPE, 4, 0), _data(6, copies)
    found = per_unit(network, inputs, labels)
    assert [g.shape[1:] for g in found] == [p.shape for p in network.parameters()]
    for row in range(6):
        loss = nn.functional.cross_entropy(network(inputs[row]), labels[row].repeat(copies))
        expected = torch.autograd.grad(loss, list(network.parameters()))
        assert torch.allclose(_flat(found)[row], torch.cat([g.flatten() for g in expected]), atol=1e-6)


@pytest.mark.parametrize("model", NETWORKS)
@pytest.mark.parametrize("value", [0.0, 1e30, float("inf"), float("nan")])
def test_what_others_hold_is_no_part_of_a_units_gradient(model: str, value: float) -> None:
    """Another unit's zeros, huge numbers or NaN leave a unit's gradient as it was, and its own stays finite."""
    network, (inputs, labels) = build(model, SHAPE, 4, 0), _data(5, 2)
    changed = inputs.clone()
    changed[[0, 2, 3]] = value
    before, after = _flat(per_unit(network, inputs, labels)), _flat(per_unit(network, changed, labels.roll(0)))
    assert torch.allclose(before[[1, 4]], after[[1, 4]], atol=1e-7)
    assert bool(torch.isfinite(after).all())
    assert not torch.allclose(before[0], after[0], atol=1e-3)


@pytest.mark.parametrize("model", NETWORKS)
@pytest.mark.parametrize("clip", [1e-3, 0.5, 1e3])
def test_the_sum_is_of_gradients_scaled_to_the_clip(model: str, clip: float) -> None:
    """Both ways to the sum, written out and as a product of matrices, against a loop over the units' gradients."""
    network, (inputs, labels) = build(model, SHAPE, 4, 0), _data(7, 1)
    found = torch.cat([gradient.flatten() for gradient in clipped_sum(network, inputs, labels, clip)])
    terms = _flat(per_unit(network, inputs, labels))
    expected = sum(term * min(1.0, clip / float(term.norm())) for term in terms)
    assert torch.allclose(found, expected, atol=2e-6 * max(1.0, float(expected.norm())))


@pytest.mark.parametrize("model", ["logistic", "scattering"])
@given(scale=st.floats(-36, 36), clip=st.floats(-3, 3), seed=st.integers(0, 2**31))
def test_a_linear_layers_clip_holds_at_any_scale(model: str, scale: float, clip: float, seed: int) -> None:
    """One unit alone, from 10^-36 to 10^36: its term is never longer than the clip, and finite."""
    layer = divide(build(model, SHAPE, 4, 0))[1]
    width = next(p for p in layer.parameters()).shape[1]
    row = 10**scale * torch.randn(1, 1, width, generator=torch.Generator().manual_seed(seed))
    term = torch.cat([gradient.flatten() for gradient in clipped_sum(layer, row, torch.tensor([1]), 10**clip)])
    assert bool(torch.isfinite(term).all())
    assert float(term.detach().double().norm()) <= 10**clip * (1 + 1e-6)


def test_no_unit_has_gradients_of_no_rows() -> None:
    """(0, *parameter) for each parameter."""
    network, (inputs, labels) = build("tanh-cnn", SHAPE, 4, 0), _data(0, 2)
    assert [g.shape for g in per_unit(network, inputs, labels)] == [(0, *p.shape) for p in network.parameters()]


def _blocks(network: nn.Module, threads: int, size: int) -> list[Gradients]:
    inputs, labels = _data(23, 2)
    with workers(network, threads, CLIP) as compute:
        return list(compute(lambda rows: (inputs[rows], labels[rows]), torch.arange(23).split(size)))


@pytest.mark.parametrize("threads", [2, 5])
def test_the_number_of_threads_changes_no_bit_and_no_order(threads: int) -> None:
    """Blocks come back in their order, each as one thread alone computes it."""
    network = build("tanh-cnn", SHAPE, 4, 0)
    alone, together = _blocks(network, 1, 3), _blocks(network, threads, 3)
    assert len(alone) == 8
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_step_between_two_rounds_is_seen_by_every_thread() -> None:
    """The threads' modules hold the very parameters that the optimiser steps."""
    network, (inputs, labels) = build("tanh-cnn", SHAPE, 4, 0), _data(12, 1)
    with workers(network, 3, CLIP) as compute:
        rows = torch.arange(12).split(2)
        before = list(compute(lambda rows: (inputs[rows], labels[rows]), rows))
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(0.5)
        after = list(compute(lambda rows: (inputs[rows], labels[rows]), rows))
    expected = clipped_sum(network, inputs, labels, CLIP)
    for number, gradient in enumerate(expected):
        assert torch.allclose(sum(block[number] for block in after), gradient, atol=1e-6)
        assert not torch.allclose(sum(block[number] for block in before), gradient, atol=1e-5)


def test_an_error_in_a_thread_is_raised_and_torchs_threads_are_as_before() -> None:
    """Nothing hangs, nothing is swallowed."""
    usual, network = torch.get_num_threads(), build("logistic", SHAPE, 4, 0)
    torch.set_num_threads(2)

    def broken(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise ValueError("no such rows")

    try:
        with (
            pytest.raises(ValueError, match="no such rows"),
            workers(network, 2, CLIP) as compute,
        ):
            list(compute(broken, torch.arange(12).split(2)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(usual)


def test_a_network_that_draws_or_mixes_units_is_refused() -> None:
    """Dropout would draw from torch's global generator, batch statistics would mix units: torch.func raises."""
    inputs, labels = torch.rand(4, 1, 6), torch.zeros(4, dtype=torch.long)
    for layer in (nn.Dropout(), nn.BatchNorm1d(6)):
        with pytest.raises((RuntimeError, ValueError)):
            per_unit(nn.Sequential(layer, nn.Linear(6, 3)), inputs, labels)
