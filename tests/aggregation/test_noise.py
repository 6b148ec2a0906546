"""The sampler draws exactly the law that is accounted: right laws are accepted, slightly wrong ones rejected."""

import subprocess
import sys
from collections.abc import Callable
from itertools import product

import flint
import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from aggregation.noise import argmax, at_least
from aggregation.quantiles import LAWS, TABLE_BITS, brackets, enclosure
from data.errors import UserError

Source = Callable[[int], bytes]

# A right law is rejected, and a wrong one accepted, with this probability (the source is seeded: once and for all).
RISK = 1e-6

HISTOGRAMS = [(5, 5), (7, 4), (10, 8, 8, 3), (3, 0, 1, 1, 2), (60, 55, 10, 0, 0, 0, 0, 0, 0, 0)]


def win_probabilities(votes: tuple[int, ...], scale: float, law: str) -> np.ndarray:
    """P_j = int f(z) prod_{k != j} F(z + (v_j - v_k) / scale) dz by Gauss-Legendre between all kinks and integers."""
    noise = stats.norm if law == "gaussian" else stats.laplace
    nodes, weights = np.polynomial.legendre.leggauss(24)

    def win(j: int) -> float:
        gaps = np.array([(votes[j] - v) / scale for k, v in enumerate(votes) if k != j])
        edges = np.unique([*range(-40, 41), *-gaps])
        half, middle = np.diff(edges)[:, None] / 2, (edges[:-1, None] + edges[1:, None]) / 2
        z = (middle + half * nodes).ravel()
        inner = noise.pdf(z) * np.prod(noise.cdf(z[:, None] + gaps), axis=1)
        return float((inner * (half * weights).ravel()).sum())

    return np.array([win(j) for j in range(len(votes))])


def critical(classes: int) -> float:
    return float(stats.chi2.isf(RISK, classes - 1))


def statistic(winners: np.ndarray, probabilities: np.ndarray) -> float:
    """Pearson's chi-square of the winners against these probabilities."""
    expected = len(winners) * probabilities
    return float(((np.bincount(winners, minlength=len(expected)) - expected) ** 2 / expected).sum())


def draws_needed(truth: np.ndarray, wrong: np.ndarray) -> int:
    """So many draws from ``truth`` that the chi-square test against ``wrong`` misses with probability RISK at most."""
    distance = float(((truth - wrong) ** 2 / wrong).sum())
    draws = 1000
    while stats.ncx2.cdf(critical(len(truth)), len(truth) - 1, draws * distance) > RISK:
        draws = int(draws * 1.25)
    return draws


def drawn(votes: tuple[int, ...], scale: float, law: str, draws: int, source: Source) -> np.ndarray:
    return argmax(np.broadcast_to(np.array(votes), (draws, len(votes))), scale, law, source)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("votes", HISTOGRAMS)
def test_winners_have_the_accounted_law_and_no_law_3_percent_off(
    votes: tuple[int, ...], law: str, noise_source: Source
) -> None:
    """Winners follow P_j of the accounting; noise 3% too large or too small is told apart."""
    scale = 4.0
    truth = win_probabilities(votes, scale, law)
    assert truth.sum() == pytest.approx(1, abs=1e-10)
    rivals = [win_probabilities(votes, scale * factor, law) for factor in (1.03, 1 / 1.03)]
    # A tie between two classes has the same winners at any scale: nothing to tell apart.
    needed = [draws_needed(truth, wrong) for wrong in rivals if np.abs(wrong - truth).max() > 1e-6]
    winners = drawn(votes, scale, law, max(needed, default=200_000), noise_source)
    assert statistic(winners, truth) < critical(len(votes))
    if needed:
        assert all(statistic(winners, wrong) > critical(len(votes)) for wrong in rivals)


def test_gaussian_and_laplace_of_one_variance_are_told_apart(noise_source: Source) -> None:
    """The law asked for is the law drawn: Laplace noise of the same variance as the Gaussian is rejected."""
    votes, sigma = (10, 8, 8, 3), 4.0
    gaussian = win_probabilities(votes, sigma, "gaussian")
    laplace = win_probabilities(votes, sigma / 2**0.5, "laplace")
    draws = max(draws_needed(gaussian, laplace), draws_needed(laplace, gaussian))
    from_gaussian = drawn(votes, sigma, "gaussian", draws, noise_source)
    from_laplace = drawn(votes, sigma / 2**0.5, "laplace", draws, noise_source)
    assert statistic(from_gaussian, gaussian) < critical(4) < statistic(from_gaussian, laplace)
    assert statistic(from_laplace, laplace) < critical(4) < statistic(from_laplace, gaussian)


def test_integer_noise_with_a_tie_rule_is_rejected_at_sigma_40(noise_source: Source) -> None:
    """A tie is won by either class with probability 1/2; rounding noise to integers would give the first .5035."""
    k = np.arange(-600, 601)
    rounded = stats.norm.cdf((k + 0.5) / 40) - stats.norm.cdf((k - 0.5) / 40)
    tie = float((rounded**2).sum())
    truth, wrong = np.array([0.5, 0.5]), np.array([(1 + tie) / 2, (1 - tie) / 2])
    winners = drawn((125, 125), 40.0, "gaussian", draws_needed(truth, wrong), noise_source)
    assert statistic(winners, truth) < critical(2) < statistic(winners, wrong)


@pytest.mark.parametrize("value", [200, 260, 130, 201.5])
def test_the_threshold_test_passes_with_probability_phi(value: float, noise_source: Source) -> None:
    """Pr[pass] = Phi((value - T) / sigma_T), for whole and real values; a threshold off by 2 is rejected."""
    sigma, threshold = 150.0, 200.0
    p = stats.norm.cdf((value - threshold) / sigma)
    q = stats.norm.cdf((value - threshold - 2) / sigma)
    truth, wrong = np.array([1 - p, p]), np.array([1 - q, q])
    passed = at_least(np.full(draws_needed(truth, wrong), value), threshold, sigma, noise_source).astype(int)
    assert statistic(passed, truth) < critical(2) < statistic(passed, wrong)


def test_the_threshold_tests_scale_is_right_to_3_percent(noise_source: Source) -> None:
    """A sigma_T 3% off is rejected where the value lies one sigma_T above the threshold."""
    truth, wrong = (np.array([stats.norm.sf(x), stats.norm.cdf(x)]) for x in (1.0, 1 / 1.03))
    passed = at_least(np.full(draws_needed(truth, wrong), 350), 200.0, 150.0, noise_source).astype(int)
    assert statistic(passed, truth) < critical(2) < statistic(passed, wrong)


def exact_quantile(law: str, p: mpmath.mpf) -> mpmath.mpf:
    """F^-1(p) by mpmath at 80 digits: erfinv for the Gaussian, the logarithm for Laplace."""
    with mpmath.workdps(80):
        if p > mpmath.mpf(1) / 2:
            return -exact_quantile(law, 1 - p)
        return mpmath.log(2 * p) if law == "laplace" else -mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * p)


@pytest.mark.parametrize("law", LAWS)
def test_table_brackets_hold_the_exact_quantiles_and_no_more(law: str) -> None:
    """Every bracket of the table contains its cell's exact quantiles, and is wider by two float steps at most."""
    table = brackets(law)
    cells = 1 << TABLE_BITS
    assert table.lower[0] == -np.inf
    assert table.upper[-1] == np.inf
    edges = [1, 2, 3, cells // 2 - 1, cells // 2, cells // 2 + 1, cells - 1]
    for k in [*edges, *np.random.default_rng(1).integers(1, cells, 150).tolist()]:
        with mpmath.workdps(80):
            exact = exact_quantile(law, mpmath.mpf(k) / cells)
            below, above = table.lower[k], table.upper[k - 1]
            assert mpmath.mpf(float(below)) <= exact <= mpmath.mpf(float(above))
        assert above - below <= 2 * np.spacing(abs(below))
    assert (np.diff(table.lower) > 0).all()


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("bits", [16, 80, 144])
def test_balls_hold_exactly_the_quantiles_of_their_cell(law: str, bits: int) -> None:
    """At every depth a cell's ball contains the exact quantiles at both ends, and little beside them."""
    half, generator = 1 << (bits - 1), np.random.default_rng(bits)
    cells = [1, 2, half - 2, half - 1, half, half + 1, 2 * half - 2]
    cells += [int.from_bytes(generator.bytes(bits // 8), "little") for _ in range(20)]
    for cell in cells:
        with flint.ctx.workprec(bits + 64), mpmath.workdps(80):
            ball = enclosure(law, cell, bits)
            low, high = (exact_quantile(law, mpmath.mpf(k) / 2**bits) for k in (cell, cell + 1))
            reach = (high - low) * mpmath.mpf("1e-6")
            assert to_arb(low - reach) <= ball <= to_arb(high + reach)
            # The ends themselves, up to the 80 digits that mpmath knows of them.
            slack = mpmath.mpf(10) ** -70
            assert ball.lower() <= to_arb(low + slack)
            assert ball.upper() >= to_arb(high - slack)
    for outermost in (0, 2 * half - 1):
        assert enclosure(law, outermost, bits).contains(flint.arb(0))
        assert not enclosure(law, outermost, bits) < flint.arb(10) ** 9


def to_arb(x: mpmath.mpf) -> flint.arb:
    sign, mantissa, exponent, _ = x._mpf_
    return flint.arb((-1) ** sign * int(mantissa)) * flint.arb(2) ** int(exponent)


class Bits:
    """A source whose uniform number j has the 16 given first bits and then one 64-bit word for ever; counts calls."""

    def __init__(self, first: list[int], word: int) -> None:
        self.first, self.word, self.calls = np.array(first, dtype="<u2").tobytes(), word, 0

    def __call__(self, size: int) -> bytes:
        self.calls += 1
        return self.first if self.calls == 1 else self.word.to_bytes(8, "little") * (size // 8)

    def numbers(self) -> list[mpmath.mpf]:
        """The exact uniform numbers that this source spells."""
        with mpmath.workdps(80):
            tail = mpmath.mpf(self.word) / (2**64 - 1)
            return [(int(k) + tail) / 2**16 for k in np.frombuffer(self.first, dtype="<u2")]


rows = st.lists(st.tuples(st.integers(0, 2**16 - 1), st.integers(0, 60)), min_size=2, max_size=6)
words = st.integers(1, 2**64 - 2)
scales = st.sampled_from([1e-12, 0.37, 4.0, 40.0, 1e4, 1e9])


@given(rows, words, scales, st.sampled_from(LAWS), st.sampled_from([0, 3, 8, TABLE_BITS, 16]))
@settings(max_examples=100, deadline=None)
def test_the_winner_is_that_of_an_80_digit_evaluation_of_the_same_bits(
    row: list[tuple[int, int]], word: int, scale: float, law: str, table_bits: int
) -> None:
    """Whatever bits are drawn and whatever the table, the winner is the one mpmath finds from the same numbers.

    And where the first 16 bits decided alone, no continuation of them could have changed the winner.
    """
    first, votes = [k for k, _ in row], [v for _, v in row]
    assume(len({(k, v) for k, v in row}) == len(row))
    source = Bits(first, word)
    winner = int(argmax(np.array([votes]), scale, law, source, table_bits=table_bits)[0])
    with mpmath.workdps(80):
        scores = [v + mpmath.mpf(scale) * exact_quantile(law, u) for v, u in zip(votes, source.numbers(), strict=True)]
        assert winner == max(range(len(votes)), key=lambda j: scores[j])
        if source.calls == 1:
            ends = [mpmath.mpf(k + (j != winner)) / 2**16 for j, k in enumerate(first)]
            lasts = [
                v + mpmath.mpf(scale) * (exact_quantile(law, u) if 0 < u < 1 else mpmath.inf * (2 * u - 1))
                for v, u in zip(votes, ends, strict=True)
            ]
            assert lasts[winner] >= max(lasts)


@given(st.integers(0, 2**16 - 1), words, st.integers(-90, 90), scales, st.sampled_from([0, 5, TABLE_BITS]))
@settings(max_examples=100, deadline=None)
def test_the_test_bit_is_that_of_an_80_digit_evaluation_of_the_same_bits(
    first: int, word: int, value: int, scale: float, table_bits: int
) -> None:
    """The threshold test says what mpmath says of the same uniform number."""
    source = Bits([first], word)
    passed = bool(at_least(np.array([value]), 30.0, scale, source, table_bits=table_bits)[0])
    with mpmath.workdps(80):
        score = value + mpmath.mpf(scale) * exact_quantile("gaussian", source.numbers()[0])
        assert passed == (score >= 30)


def exact_distribution(law: str, z: mpmath.mpf) -> mpmath.mpf:
    """F(z) by mpmath."""
    if law == "gaussian":
        return mpmath.ncdf(z)
    return mpmath.exp(z) / 2 if z < 0 else 1 - mpmath.exp(-z) / 2


class Tape:
    """A source that hands out the given chunks in order and remembers the sizes asked for."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks, self.sizes = list(chunks), []

    def __call__(self, size: int) -> bytes:
        self.sizes.append(size)
        return self.chunks.pop(0)


def shorts(*values: int) -> bytes:
    return np.array(values, dtype="<u2").tobytes()


def longs(*values: int) -> bytes:
    return np.array(values, dtype="<u8").tobytes()


@pytest.mark.parametrize("law", LAWS)
def test_equal_first_bits_are_refined_until_they_differ(law: str) -> None:
    """Two tied classes with 144 equal bits are told apart by the 208th: only they draw more, and nothing twice."""
    tape = Tape(shorts(9, 50_000, 50_000), longs(7, 7), longs(2**64 - 1, 2**64 - 1), longs(3, 5))
    assert argmax(np.array([[9, 9, 9]]), 40.0, law, tape).tolist() == [2]
    assert tape.sizes == [6, 16, 16, 16]


def eighty_bits(u: mpmath.mpf, cells: int) -> tuple[int, int]:
    """The first 16 bits and the next 64 of u, moved by so many cells of 2^-80."""
    return divmod(int(mpmath.floor(u * 2**80)) + cells, 2**64)


@pytest.mark.parametrize("value", [29, 30, 90, -60])
@pytest.mark.parametrize("cells", [-2, 2])
def test_the_test_bit_flips_exactly_at_phi(value: int, cells: int) -> None:
    """A uniform number two parts in 2^80 below Phi((T - value) / sigma_T) fails the test, two above pass it."""
    with mpmath.workdps(80):
        first, then = eighty_bits(mpmath.ncdf((mpmath.mpf("30.25") - value) / mpmath.mpf(40.7)), cells)
    tape = Tape(shorts(first), longs(then))
    assert at_least(np.array([value]), 30.25, 40.7, tape).tolist() == [cells > 0]
    assert len(tape.sizes) == 2


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("cells", [-3, 3])
@pytest.mark.parametrize(("gap", "first", "then"), [(0, 700, 5), (1, 40_000, 2**50), (35, 33_000, 9), (-60, 3, 77)])
def test_the_winner_changes_exactly_where_two_scores_cross(
    gap: int, first: int, then: int, cells: int, law: str
) -> None:
    """A rival whose 80 bits place it three parts in 2^80 above the first class's exact score wins, below it loses."""
    scale = 40.7
    with mpmath.workdps(80):
        level = exact_quantile(law, (mpmath.mpf(first) + mpmath.mpf(then) / 2**64) / 2**16) + gap / mpmath.mpf(scale)
        rival = eighty_bits(exact_distribution(law, level), cells)
    tape = Tape(shorts(first, rival[0]), longs(then, rival[1]), longs(0, 0), longs(0, 0))
    # 3 cells may still touch at 80 bits where the density of the rival is lower: zeros then extend both.
    assert argmax(np.array([[100 + gap, 100]]), scale, law, tape).tolist() == [int(cells > 0)]
    assert len(tape.sizes) > 1


def test_further_bits_extend_the_first_and_never_replace_them() -> None:
    """A class ahead by its first bits stays ahead whatever follows, even when all is left to refinement."""
    tape = Tape(shorts(0x8001, 0x8000), longs(2**40, 2**64 - 2**40))
    assert argmax(np.array([[5, 5]]), 40.0, "gaussian", tape, table_bits=0).tolist() == [0]
    tape = Tape(shorts(0x8000), longs(2**64 - 1))
    assert at_least(np.array([5]), 5.0, 1.0, tape, table_bits=0).tolist() == [True]
    tape = Tape(shorts(0x7FFF), longs(0))
    assert at_least(np.array([5]), 5.0, 1.0, tape, table_bits=0).tolist() == [False]


def test_a_source_that_repeats_itself_or_falls_short_is_refused() -> None:
    """A source of constant or missing bytes ends in an error, not in a hang or in noise."""
    with pytest.raises(RuntimeError, match="repeats itself"):
        argmax(np.array([[5, 5]]), 40.0, "gaussian", lambda size: b"\x17" * size)
    with pytest.raises(RuntimeError, match="another number of bytes"):
        argmax(np.array([[5, 4]]), 40.0, "gaussian", lambda size: b"\x17" * (size - 1))


@pytest.mark.parametrize("law", LAWS)
def test_many_classes_and_large_votes_follow_the_law(law: str, noise_source: Source) -> None:
    """With 1000 classes, one of them ahead among votes near a million, it wins as often as the integral says."""
    scale, lead = 1000.0, 4000
    noise = stats.norm if law == "gaussian" else stats.laplace
    p = integrate.quad(
        lambda z: noise.pdf(z) * noise.cdf(z + lead / scale) ** 999, -12, 40, points=[-lead / scale, 0], limit=500
    )[0]
    votes = np.full((5000, 1000), 10**6 - lead)
    votes[:, 731] = 10**6
    wins = int((argmax(votes, scale, law, noise_source) == 731).sum())
    assert abs(wins - 5000 * p) < 5 * (5000 * p * (1 - p)) ** 0.5


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [5e-324, 1e-300, 1e-9])
def test_tiny_noise_leaves_the_winner_and_splits_ties_evenly(law: str, scale: float, noise_source: Source) -> None:
    """Noise far below one vote never moves a lead of one vote, however small or large the votes, yet breaks ties."""
    votes = np.tile(np.array([10**6 - 1, 10**6, 3, 10**6]), (400, 1))
    wins = np.bincount(argmax(votes, scale, law, noise_source), minlength=4)
    assert wins[[0, 2]].sum() == 0
    assert abs(wins[1] - 200) < 5 * 10
    assert at_least(np.array([4, 6, 10**6]), 5, scale, noise_source).tolist() == [False, True, True]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [1e15, 1e308])
def test_huge_noise_drowns_the_votes(law: str, scale: float, noise_source: Source) -> None:
    """Noise far above the votes makes every class equally likely, up to the largest scale a float can hold."""
    winners = drawn((10**6, 0, 5, 7), scale, law, 1500, noise_source)
    assert statistic(winners, np.full(4, 0.25)) < critical(4)


@given(st.permutations(range(5)), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_classes_are_treated_alike(order: list[int], seed: int) -> None:
    """Renaming the classes, with their bits, renames the winner: no class is favoured by its place."""
    votes, bits = np.array([12, 11, 11, 10, 3]), np.random.default_rng(seed).integers(0, 2**16, 5).tolist()
    assume(len(set(bits)) == 5)
    plain = argmax(votes[None], 3.0, "gaussian", Bits(bits, 12345))[0]
    renamed = argmax(votes[None, order], 3.0, "gaussian", Bits([bits[j] for j in order], 12345))[0]
    assert order[renamed] == plain


def test_blocks_of_rows_are_one_sequence_of_independent_rows(noise_source: Source) -> None:
    """Rows beyond one block are neither skipped nor repeated: each has its own winner and its own noise."""
    leaders = np.random.default_rng(3).integers(0, 10, 20_000)
    assert (argmax(np.eye(10, dtype=int)[leaders] * 1000, 1.0, "gaussian", noise_source) == leaders).all()
    winners = drawn((5, 5), 1.0, "gaussian", 100_000, noise_source)
    for lag in (1, 32_768):  # 32,768 rows of two classes fill a block
        agree = (winners[lag:] == winners[:-lag]).mean()
        assert abs(agree - 0.5) < 5 * 0.5 / (100_000 - lag) ** 0.5


BAD = [float("nan"), float("inf"), 0.0, -1.0]


@pytest.mark.parametrize("scale", BAD)
def test_a_scale_that_is_no_positive_number_is_refused(scale: float) -> None:
    """NaN, infinity, zero and negative scales are refused by name."""
    with pytest.raises(UserError, match=r"scale = .*finite number above 0"):
        argmax(np.array([[3, 4]]), scale, "gaussian")
    with pytest.raises(UserError, match=r"scale = .*finite number above 0"):
        at_least(np.array([3]), 1.0, scale)


def test_bad_arguments_are_refused_without_showing_a_vote() -> None:
    """Wrong types, shapes, magnitudes and laws are refused in one line that holds no value of the votes."""
    bad = 987654321
    cases: list[Callable[[], object]] = [
        lambda: argmax(np.array([[bad + 0.5, 1.0]]), 1.0, "gaussian"),
        lambda: argmax(np.array([[float("nan"), 1.0]]), 1.0, "gaussian"),
        lambda: argmax(np.array([bad, 1]), 1.0, "gaussian"),
        lambda: argmax(np.array([[bad]]), 1.0, "gaussian"),
        lambda: argmax(np.array([[bad * 10**9, 1]]), 1.0, "gaussian"),
        lambda: argmax(np.array([[bad, 1]]), 1.0, "cauchy"),  # type: ignore[arg-type]
        lambda: at_least(np.array([[bad]]), 1.0, 1.0),
        lambda: at_least(np.array([bad, float("nan")]), 1.0, 1.0),
        lambda: at_least(np.array([bad, float("-inf")]), 1.0, 1.0),
        lambda: at_least(np.array([bad]), float("nan"), 1.0),
        lambda: at_least(np.array([True]), 1.0, 1.0),
        lambda: argmax(np.array([[bad, 1]]), 1.0, "gaussian", table_bits=17),
    ]
    for case in cases:
        with pytest.raises(UserError) as caught:
            case()
        assert "\n" not in str(caught.value)
        assert "98765" not in str(caught.value)


def test_the_default_noise_is_the_operating_systems_and_no_global_generator_is_touched() -> None:
    """Seeding NumPy's global generator repeats nothing, and drawing leaves its state as it was."""
    votes = np.full((200, 10), 25)
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    once = argmax(votes, 40.0, "gaussian")
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    assert (argmax(votes, 40.0, "gaussian") != once).any()
    assert (at_least(np.full(200, 5), 5, 1.0) != at_least(np.full(200, 5), 5, 1.0)).any()


def test_sampling_never_loads_torch() -> None:
    """The mechanisms are counts in, labels out: importing them brings in no torch."""
    check = "import sys, aggregation.mechanisms; sys.exit('torch' in sys.modules or 'prefect' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_every_integer_type_is_taken_as_the_numbers_it_holds() -> None:
    """int8's -128, uint64 and float32 values are the numbers they stand for, whatever their type's arithmetic."""
    for kind, law in product((np.int8, np.int16, np.int32, np.int64), LAWS):
        assert argmax(np.array([[-128, 127, 126]], dtype=kind), 1e-3, law).tolist() == [1]
    assert argmax(np.array([[2**53, 2**53 - 1]], dtype=np.uint64), 1e-3, "gaussian").tolist() == [0]
    assert at_least(np.array([0.1], dtype=np.float32), 0.1, 1e-12).tolist() == [True]  # 0.1 as float32 is larger
