"""The literature's sanitised figure, which is unsound: reproduced, and shown to be what it is."""

from pathlib import Path

import numpy as np
import pytest

from accounting import sanitized_p18, smooth_gaussian
from accounting.events import ConfidentGNMax, GNMax


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "event", "epsilon", "noise_std", "beta", "sigma_ss"),
    [
        ("mnist", ConfidentGNMax(40.0, 200.0, 150.0, 640, 640), 2.516, 0.385, 0.0329, 6.233),
        ("adult", ConfidentGNMax(40.0, 300.0, 200.0, 1500, 1500), 2.086, 0.263, None, None),
    ],
)
def test_the_tables_of_the_paper_on_its_own_votes(
    test_data: Path,
    name: str,
    event: ConfidentGNMax,
    epsilon: float,
    noise_std: float,
    beta: float | None,
    sigma_ss: float | None,
) -> None:
    """To all published digits; a sound cost of the same release at the same parameters is a unit above."""
    votes = np.load(test_data / "votes" / f"{name}_250_teachers.npy")[: event.queries]
    found = sanitized_p18.plan(votes, event, 1e-5)
    assert found.epsilon == pytest.approx(epsilon, abs=6e-4)
    assert found.noise_std == pytest.approx(noise_std, abs=5e-4)
    if beta is not None:
        assert found.beta == pytest.approx(beta, abs=5e-5)
        assert found.sigma_ss == pytest.approx(sigma_ss, abs=5e-4)
    stated = smooth_gaussian.stated_in_p18(found.order, found.beta, found.sigma_ss)
    assert smooth_gaussian.rdp(np.array([found.order]), found.beta, found.sigma_ss)[0] > stated + 0.9


def test_without_a_test_every_answer_counts_in_full() -> None:
    """GNMax: two equal queries have twice the sensitivity of one, at the order that their sum converts best at."""
    event = GNMax(20.0, 2)
    votes = [[95, 3, 2]] * 400
    found = sanitized_p18.plan(votes, event, 1e-5)
    single = sanitized_p18._local_sensitivities(np.array(votes[:1], dtype=float), event, found.order)
    together = sanitized_p18._local_sensitivities(np.array(votes, dtype=float), event, found.order)
    assert together == pytest.approx(400 * single)
    assert len(single) == 100
    # Far enough away every query may be where its cost changes fastest.
    assert single[-1] == pytest.approx(single.max())
