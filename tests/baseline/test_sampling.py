import os
from collections.abc import Callable

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from baseline.sampling import one_per_unit, poisson_sample, system_generator
from data.examples import PrivateRecords


def test_the_inclusion_rate_is_the_configured_one_whatever_the_number_of_units() -> None:
    """Every unit enters a step with the configured probability, for 3 units as for 3000, and 10% more would show."""
    rate, draws = 0.07, 60_000
    for units in (3, 300, 3000):
        generator = system_generator(os.urandom)
        steps = draws // units
        entered = sum(len(poisson_sample(units, rate, generator)) for _ in range(steps))
        trials = steps * units
        z = (entered - trials * rate) / np.sqrt(trials * rate * (1 - rate))
        # 5 standard deviations: a false alarm once in 1.7 million; at a rate of 1.1 × 0.07, z would be near 6.7.
        assert abs(z) < 5
        assert (1.1 * rate - rate) * trials / np.sqrt(trials * rate * (1 - rate)) > 6


def test_units_enter_independently() -> None:
    """The batch's size is binomial, not fixed: its variance passes a chi-square test that a fixed size fails."""
    generator = system_generator(os.urandom)
    sizes = np.array([len(poisson_sample(400, 0.1, generator)) for _ in range(2000)])
    statistic = (len(sizes) - 1) * sizes.var(ddof=1) / (400 * 0.1 * 0.9)
    low, high = stats.chi2.ppf([1e-7, 1 - 1e-7], len(sizes) - 1)
    assert low < statistic < high


def test_rate_one_takes_every_unit_and_no_unit_is_no_error() -> None:
    """At rate 1 a step reads all units once; without units every sample is empty."""
    generator = system_generator(os.urandom)
    assert poisson_sample(50, 1.0, generator).tolist() == list(range(50))
    assert poisson_sample(0, 0.5, generator).tolist() == []


def test_the_generator_holds_all_the_entropy_it_was_given() -> None:
    """Every one of the 624 words of entropy changes the first numbers drawn or the block after them."""
    base = os.urandom(4 * 624)
    reference = torch.rand(700, generator=system_generator(lambda _: base), dtype=torch.float32)
    for word in (0, 1, 2, 300, 623):
        changed = bytearray(base)
        changed[4 * word + 3] ^= 0x80
        other = torch.rand(700, generator=system_generator(lambda _, b=bytes(changed): b), dtype=torch.float32)
        assert not torch.equal(reference, other)


def test_the_state_is_mersenne_twisters() -> None:
    """The words land where torch keeps them: the same state in NumPy's generator gives the same 32-bit numbers."""
    words = np.random.default_rng(5).integers(0, 2**32, 624, dtype=np.uint32)
    twin = np.random.MT19937()
    twin.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    drawn = torch.randint(0, 2**20, (10,), generator=system_generator(lambda n: words.astype("<u4").tobytes()[:n]))
    expected = [int(x) for x in twin.random_raw(10)]
    assert [int(x) for x in drawn] == [x % 2**20 for x in expected]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(0, 2**31))
def test_a_unit_keeps_one_record_and_moves_no_other(owners: list[int], seed: int) -> None:
    """One record per unit, in any order of the rows; removing a whole unit leaves the others' records as they were."""
    generator = np.random.default_rng(seed)
    n = len(owners)
    units = np.array([b"unit%d" % o for o in owners])
    content = np.array([b"%032x" % int(x) for x in generator.permutation(n)])
    everything = PrivateRecords(np.arange(n, dtype=np.float32)[:, None], np.zeros(n, np.int32), units, content)
    kept = one_per_unit(everything)
    assert sorted(kept.units.tolist()) == sorted(set(units.tolist()))
    for unit, chosen in zip(kept.units, kept.content, strict=True):
        assert chosen == min(content[units == unit])
    order = generator.permutation(n)
    assert _same(kept, one_per_unit(_rows(everything, order)))
    gone = units[0]
    rest = one_per_unit(_rows(everything, np.flatnonzero(units != gone)))
    assert _same(_rows(kept, np.flatnonzero(kept.units != gone)), rest)


def test_equal_units_are_one_unit(records: Callable[..., PrivateRecords]) -> None:
    """A person with 4 records weighs as much as a person with one."""
    assert len(one_per_unit(records(6, [b"a", b"a", b"b", b"a", b"c", b"a"])).labels) == 3


def _rows(records: PrivateRecords, rows: np.ndarray) -> PrivateRecords:
    return PrivateRecords(records.features[rows], records.labels[rows], records.units[rows], records.content[rows])


def _same(a: PrivateRecords, b: PrivateRecords) -> bool:
    return a.units.tolist() == b.units.tolist() and np.array_equal(a.features, b.features)
