"""Draws of the test of a tested release and of a sanitised figure: their laws, and that nothing is drawn twice."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from accounting import events, tested
from accounting.events import Sanitized, event_to_dict
from accounting.sanitized import Figure
from aggregation import journal
from aggregation.noise import rounded
from aggregation.testing import STEP, passes, publish
from data.errors import UserError

Source = Callable[[int], bytes]


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of journals: whether they survive a power cut is not the question."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def begun(path: Path, event: events.Event) -> Path:
    journal.start(path, journal.Header("reservation", "binding", event_to_dict(event)))
    return path


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("distance", [12, 17, 22])
def test_labels_are_released_with_the_accounted_probability(
    distance: int, tmp_path: Path, noise_source: Source
) -> None:
    """Pr[pass] = Phi(d*/sigma_d - Phi^-1(1 - delta')): right within four standard errors, a d* one off is outside."""
    event = events.Tested(10.0, 0.5, 4.0, 1e-5)
    draws = 900
    path = tmp_path / "journal"
    passed = sum(passes(distance, event, begun(path, event), noise_source) for _ in range(draws))
    truth, off = (float(stats.norm.cdf(d / 4.0 + stats.norm.ppf(1e-5))) for d in (distance, distance + 1))
    error = 4 * math.sqrt(max(truth * (1 - truth), 0.02) / draws)
    assert abs(passed / draws - truth) < error < abs(off - truth) + error / 2


@pytest.mark.usefixtures("quick_disk")
def test_votes_that_cost_too_much_are_refused(tmp_path: Path) -> None:
    """At distance 0 the labels come out with probability delta' alone."""
    event = events.Tested(10.0, 0.5, 4.0, 1e-9)
    path = tmp_path / "journal"
    assert not any(passes(0, event, begun(path, event)) for _ in range(200))
    assert tested.threshold(event) / 4.0 == pytest.approx(-stats.norm.ppf(1e-9))


@pytest.mark.usefixtures("quick_disk")
def test_a_figure_is_the_real_noisy_number_rounded(tmp_path: Path, noise_source: Source) -> None:
    """f + S sigma_ss Z: its law is accepted, a wrong mean rejected; ln S has noise beta sigma."""
    event = Sanitized(10.0, 0.025, 12.0, 8.0)
    figure = Figure(0.37, 0.017)
    path = tmp_path / "journal"
    drawn = [publish(figure, event, begun(path, event), noise_source) for _ in range(1500)]
    for values, mean, scale in (
        ([d.rdp for d in drawn], 0.37, 0.017 * 12),
        ([d.log_smooth_sensitivity for d in drawn], math.log(0.017), 0.025 * 8),
    ):
        found = np.array(values, dtype=float)
        assert np.all(found / STEP == np.round(found / STEP))
        assert stats.kstest(found, stats.norm(mean, scale).cdf).pvalue > 1e-4
        assert found.std() == pytest.approx(scale, rel=0.074)  # four standard errors
        assert stats.kstest(found, stats.norm(mean + 0.15 * scale, scale).cdf).pvalue < 1e-4


@pytest.mark.parametrize("log_scale", [None, 8.0])
def test_what_is_journalled_is_never_drawn_again(log_scale: float | None, tmp_path: Path) -> None:
    """A second call gives what the journal holds, whatever it is called with; the scale is released if paid for."""
    event = Sanitized(10.0, 0.025, 12.0, log_scale)
    path = begun(tmp_path / "journal", event)
    first = publish(Figure(0.3, 0.01), event, path)
    assert (first.log_smooth_sensitivity is None) == (log_scale is None)
    assert publish(Figure(9.9, 5.0), event, path) == first
    other = Sanitized(10.0, 0.025, 12.0, 1.0 if log_scale is None else None)
    with pytest.raises(UserError, match="journal of another release"):
        publish(Figure(0.3, 0.01), other, path)
    test = events.Tested(10.0, 0.5, 4.0, 1e-5)
    path = begun(tmp_path / "test", test)
    assert passes(1000, test, path)
    assert passes(0, test, path)
    with pytest.raises(UserError, match="no such file"):
        passes(0, test, tmp_path / "nothing")


def test_a_figure_beyond_the_lattice_is_clipped(tmp_path: Path) -> None:
    """What a journal cannot hold becomes its largest number: a function of what was drawn."""
    event = Sanitized(10.0, 0.025, 12.0)
    assert publish(Figure(1e9, 0.01), event, begun(tmp_path / "journal", event)).rdp == (2**31 - 1) * STEP


@given(
    value=st.floats(-1e6, 1e6),
    factors=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=2),
    word=st.integers(1, 2**64 - 2),
)
@settings(max_examples=100, deadline=None)
def test_rounding_agrees_with_80_digits_of_the_same_bits(value: float, factors: list[float], word: int) -> None:
    """The whole number is that of the exact noisy value, for bits that repeat one word for ever."""
    found = rounded(value, factors, STEP, lambda size: word.to_bytes(8, "little") * (size // 8))
    with mpmath.workdps(80):
        u = mpmath.mpf(word) / (2**64 - 1)
        z = mpmath.sqrt(2) * mpmath.erfinv(2 * u - 1) if word != 2**63 else mpmath.mpf(0)
        exact = (mpmath.mpf(value) + mpmath.fprod(map(mpmath.mpf, factors)) * z) / STEP
        assert abs(exact - found) <= mpmath.mpf("0.5") + mpmath.mpf(10) ** -40


@pytest.mark.parametrize(
    ("value", "factors", "step"),
    [(math.nan, [1.0], STEP), (1.0, [0.0], STEP), (1.0, [-77.5], STEP), (1.0, [math.inf], STEP), (1.0, [1.0], 0.0)],
)
def test_numbers_out_of_range_are_refused_without_showing_them(value: float, factors: list[float], step: float) -> None:
    """The error names what is wrong and no number: value and scale are private."""
    with pytest.raises(UserError, match=r"(value|factor|step): must be") as caught:
        rounded(value, factors, step, os.urandom)
    assert "77" not in str(caught.value)


def test_a_source_that_repeats_itself_ends() -> None:
    """All bits zero put the noise at minus infinity: an error, never a loop."""
    with pytest.raises(RuntimeError, match="repeats itself"):
        rounded(0.0, [1.0], STEP, lambda size: bytes(size))
