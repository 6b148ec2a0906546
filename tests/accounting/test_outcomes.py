"""The law of one query: against definitions in high precision, sampling, and closed forms."""

from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr, logsumexp

from accounting import exact, outcomes
from accounting.events import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax
from data.errors import UserError
from tests.accounting import laws
from tests.accounting.oracles import neighbours

HISTOGRAMS = st.lists(st.integers(0, 40), min_size=2, max_size=6).filter(any)


@pytest.mark.parametrize(
    ("votes", "sigma"),
    [((5, 3, 2), 1.0), ((250, 0, 0, 0), 40.0), ((50, 0, 0), 3.0), ((9, 4, 4, 1), 0.5), ((3, 3), 7.0)],
)
def test_gaussian_law_to_twelve_digits(votes: tuple[int, ...], sigma: float) -> None:
    """log P_j is exact for the most and the least likely class: adaptive quadrature in 40 digits agrees."""
    found = outcomes.log_winner([votes], GNMax(sigma, 1))[0]
    for j, vote in enumerate(votes):
        with mp.workdps(40):
            gaps = [mp.mpf(vote - v) / mp.mpf(sigma) for k, v in enumerate(votes) if k != j]
            centre = max(mp.mpf(0), -min(gaps) / 2)
            expected = mp.log(
                mp.quad(
                    lambda z, gaps=gaps: mp.npdf(z) * mp.fprod(mp.ncdf(z + g) for g in gaps),
                    [centre + d for d in (-13, -8, -5, -3, -1, 0, 1, 3, 5, 8, 13)],
                    method="gauss-legendre",
                )
            )
        assert found[j] == pytest.approx(float(expected), abs=2e-12, rel=1e-14)
        assert float(mp.log(laws.gaussian_winner(votes, sigma)[j])) == pytest.approx(float(expected), abs=1e-13)


@pytest.mark.parametrize(("votes", "scale"), [((5, 3, 2), 1.0), ((60, 0, 0), 2.0), ((9, 4, 4, 1), 20.0), ((3, 3), 0.2)])
def test_laplace_law_to_twelve_digits(votes: tuple[int, ...], scale: float) -> None:
    """The same for Laplace noise, whose integrand has kinks at the votes."""
    found = outcomes.log_winner([votes], LNMax(scale, 1))[0]
    expected = [float(mp.log(p)) for p in laws.laplace_winner(votes, scale)]
    assert found == pytest.approx(expected, abs=2e-12)


@given(
    gap=st.integers(0, 10**6),
    second=st.integers(0, 10**6),
    sigma=st.floats(0.05, 1000),
)
@settings(max_examples=60, deadline=None)
def test_two_classes_have_a_closed_form(gap: int, second: int, sigma: float) -> None:
    """Pr[the second wins] = Phi(-gap/(sigma sqrt 2)), for any number of teachers, far beyond where it underflows."""
    gap = min(gap, int(sigma * 5000))
    found = outcomes.log_winner([[second + gap, second + (gap == 0 == second)]], GNMax(sigma, 1))[0]
    true_gap = gap - (gap == 0 == second)
    expected = log_ndtr(np.array([true_gap, -true_gap]) / (sigma * np.sqrt(2)))
    assert found == pytest.approx(expected, rel=1e-12, abs=3e-12)


@given(votes=HISTOGRAMS, noise=st.floats(0.3, 60), laplace=st.booleans(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_laws_are_laws(votes: list[int], noise: float, laplace: bool, data: st.DataObject) -> None:
    """Probabilities sum to 1, follow the classes when they are permuted, and grow with the votes."""
    event = LNMax(noise, 1) if laplace else GNMax(noise, 1)
    order = data.draw(st.permutations(range(len(votes))))
    log_p = outcomes.log_winner([votes], event)[0]
    assert logsumexp(log_p) == pytest.approx(0, abs=1e-12)
    permuted = outcomes.log_winner([[votes[k] for k in order]], event)[0]
    assert permuted == pytest.approx(log_p[order], abs=1e-11)
    assert np.all(np.diff(log_p[np.argsort(votes, kind="stable")]) >= -1e-12)


@given(votes=HISTOGRAMS, noise=st.floats(0.5, 60), laplace=st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_largest_q_nearby_is_the_largest_of_all_neighbours(votes: list[int], noise: float, laplace: bool) -> None:
    """One neighbour attains it; brute force over all of them, and these votes themselves, finds the same."""
    event = LNMax(noise, 1) if laplace else GNMax(noise, 1)
    winner = int(np.argmax(votes))
    near = np.array([votes, *neighbours(tuple(votes))])
    others = np.delete(outcomes.log_winner(near, event), winner, axis=1)
    assert outcomes.log_other_nearby([votes], event)[0] == pytest.approx(logsumexp(others, axis=1).max(), abs=1e-11)
    assert outcomes.log_other([votes], event)[0] == pytest.approx(logsumexp(others[0]), abs=1e-11)


@pytest.mark.parametrize("mechanism", ["lnmax", "gnmax", "confident", "interactive"])
def test_sampling_the_mechanism_gives_the_law(mechanism: str) -> None:
    """200 000 runs of the mechanism as it is described: every frequency within 5 standard deviations."""
    draws, votes, student = 200_000, np.array([9, 7, 4, 0]), np.array([0.1, 0.4, 0.3, 0.2])
    rng = np.random.default_rng(3)
    event = {
        "lnmax": LNMax(3.0, 1),
        "gnmax": GNMax(4.0, 1),
        "confident": ConfidentGNMax(4.0, 10.0, 3.0, 1, 1),
        "interactive": InteractiveGNMax(4.0, 6.0, 3.0, 1, 1),
    }[mechanism]
    if isinstance(event, LNMax):
        noise = rng.laplace(scale=3.0, size=(draws, 4))
    else:
        noise = rng.normal(scale=4.0, size=(draws, 4))
    outcome = np.argmax(votes + noise, axis=1)
    if isinstance(event, ConfidentGNMax | InteractiveGNMax):
        compared = votes.max() if mechanism == "confident" else (votes - 20 * student).max()
        outcome[compared + rng.normal(scale=3.0, size=draws) < event.threshold] = 4
    law = np.exp(outcomes.log_law([votes], event, [student] if mechanism == "interactive" else None)[0])
    assert law.sum() == pytest.approx(1, abs=1e-12)
    seen = np.bincount(outcome, minlength=len(law)) / draws
    assert np.all(np.abs(seen - law) < 5 * np.sqrt(law * (1 - law) / draws) + 1e-6)


def test_types_and_blocks_do_not_matter(test_data: Path) -> None:
    """float32, integers and float64 give the same bits; so do rows looked at one by one (up to rounding)."""
    votes = np.load(test_data / "votes" / "mnist_250_teachers.npy")[:30]
    found = outcomes.log_winner(votes, GNMax(40.0, 1))
    for kind in (np.float32, np.int16, np.uint8):
        assert np.array_equal(outcomes.log_winner(votes.astype(kind), GNMax(40.0, 1)), found)
    alone = np.concatenate([outcomes.log_winner(row[None], GNMax(40.0, 1)) for row in votes])
    assert alone == pytest.approx(found, abs=1e-11)


@pytest.mark.parametrize("event", [GNMax(5.0, 1), LNMax(3.0, 1)])
@pytest.mark.parametrize("block", [1, 3000, 20_000])
def test_little_memory_gives_the_same(event: GNMax | LNMax, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared tables, tables for a few rows and for each row are one law."""
    votes = np.random.default_rng(5).multinomial(60, [0.5, 0.3, 0.2], size=25)
    found, cost = outcomes.log_winner(votes, event), exact.query_cost(votes, event, [3.0])
    monkeypatch.setattr(outcomes, "BLOCK", block)
    assert outcomes.log_winner(votes, event) == pytest.approx(found, abs=1e-11)
    assert np.array(exact.query_cost(votes, event, [3.0])) == pytest.approx(np.array(cost), rel=1e-8)


@pytest.mark.parametrize("event", [GNMax(5.0, 1), LNMax(3.0, 1)])
def test_a_long_grid_is_split_by_rows(event: GNMax | LNMax) -> None:
    """Many teachers and little noise: each row has its own grid, and a shift of all votes changes nothing."""
    votes = np.array([[9000, 8990, 10], [6000, 6000, 6000], [18000, 0, 0]])
    found = outcomes.log_winner(votes, event)
    assert logsumexp(found, axis=1) == pytest.approx(0, abs=1e-12)
    assert found[1] == pytest.approx(-np.log(3), abs=1e-12)
    small = outcomes.log_winner([[9000 - 5000, 8990 - 5000]], event)[0]
    assert found[0][:2] == pytest.approx(small, abs=1e-11)


@pytest.mark.parametrize(
    ("student", "rule"),
    [
        (None, "each class"),
        ([[0.5]], "each class"),
        ([[0.5, 1.5]], "between"),
        ([[0.5, np.nan]], "between"),
        ("x", "each|number"),
    ],
)
def test_bad_predictions_are_refused(student: object, rule: str) -> None:
    """Interactive-GNMax needs a probability for each class of each query."""
    with pytest.raises(UserError, match=rule):
        outcomes.log_law([[3, 1]], InteractiveGNMax(1.0, 1.0, 1.0, 1, 1), student)


def test_noise_too_small_for_a_grid_is_refused() -> None:
    """One line that names the noise, before memory runs out."""
    with pytest.raises(UserError, match="sigma = 1e-09: too small"):
        outcomes.log_winner([[3, 1]], GNMax(1e-9, 1))


@pytest.mark.parametrize("votes", [[[5.0, float("nan")]], [[6.0, -1.0]], [[4.5, 0.5]], [[7, 0], [6, 0]], [[0, 0]]])
def test_bad_votes_are_refused(votes: object) -> None:
    """The same one line as everywhere."""
    with pytest.raises(UserError, match="votes: "):
        outcomes.log_winner(votes, GNMax(1.0, 1))
