"""Every number of published votes, however their blocks are cut; ones from samples; what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from accounting import cells, conversion, data_dependent, numbers, sanitized, tested
from accounting.events import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, Sanitized
from accounting.numbers import Number, Wanted
from accounting.smooth_gaussian import rdp as release_rdp
from data.errors import UserError

# ACCOUNTING.md, section 12: (lowest, highest) epsilon of each number at delta 1e-5.
MNIST = {
    "textbook": (2.741, 2.75),
    "data_independent": (1.97, 2.03),
    "data_dependent_p18": (1.7119, 1.7120),
    "data_dependent": (1.13, 1.14),
    "data_dependent_exact": (0.922, 0.924),
    "sanitized": (1.0, 1.62),
    "sanitized_p18": (2.515, 2.517),
}
ADULT = {
    "tested": (1.0, 1.9),
    "data_dependent_p18": (1.4135, 1.4137),
    "data_dependent": (1.03, 1.045),
    "data_dependent_exact": (0.957, 0.958),
    "sanitized": (1.0, 1.32),
    "sanitized_p18": (2.085, 2.087),
}
EVENT = ConfidentGNMax(3.0, 6.0, 4.0, 300, 200)


def _votes(rows: int = 300) -> np.ndarray:
    return np.random.default_rng(2).multinomial(12, [0.5, 0.3, 0.2], size=rows)


def _check(found: dict[str, Number], expected: dict[str, tuple[float, float]], forward: float) -> None:
    assert list(found) == [each for each in numbers.NAMES if each in expected]
    for number, (low, high) in expected.items():
        assert low <= found[number].epsilon <= high, number
        assert found[number].publishable == (number in ("textbook", "data_independent"))
    assert found["sanitized"].more["noise_std"] <= 0.25
    assert found["data_dependent_exact"].more["forward"] == pytest.approx(forward, rel=1e-3)


@pytest.mark.slow
def test_votes_on_mnist(test_data: Path) -> None:
    """The specification's numbers, under their names, the publishable ones marked so."""
    event = ConfidentGNMax(40.0, 200.0, 150.0, 640, 283)
    table = np.load(test_data / "votes" / "mnist_250_teachers.npy")[:640]
    votes = numbers.read([table[:100], table[100:]], event)
    assert (votes.queries, votes.teachers, votes.classes) == (640, 250, 10)
    assert numbers.expected_answered(votes, event) == pytest.approx(282.72, abs=0.005)
    found = numbers.numbers(votes, event, 1e-5, Wanted(sanitized=True, unsound_p18=True, order=10.0))
    _check(found, MNIST, 0.9140)


@pytest.mark.slow
def test_votes_on_adult(test_data: Path) -> None:
    """Likewise, with a test planned for 97.7% passing."""
    event = ConfidentGNMax(40.0, 300.0, 200.0, 1500, 539)
    table = np.load(test_data / "votes" / "adult_250_teachers.npy")[:1500]
    votes = numbers.read([table], event)
    assert numbers.expected_answered(votes, event) == pytest.approx(538.26, abs=0.005)
    found = numbers.of_votes(votes, event, 1e-5, Wanted(sanitized=True, tested=True, unsound_p18=True))
    _check(found, ADULT, 0.95)
    assert found["tested"].more["pass_probability"] >= 0.977


def test_the_classic_conversion_reproduces_the_literature(test_data: Path) -> None:
    """MNIST of the literature: 1.9988 at order 14."""
    table = np.load(test_data / "votes" / "mnist_250_teachers.npy")[:640]
    event = ConfidentGNMax(40.0, 200.0, 150.0, 640, 640)
    figure = numbers.data_dependent_numbers(numbers.read([table], event), event, 1e-5, "classic")["data_dependent_p18"]
    assert figure.epsilon == pytest.approx(1.9988, abs=5e-5)
    assert figure.order == 14


@pytest.mark.parametrize("event", [EVENT, GNMax(3.0, 300), LNMax(2.0, 300)])
def test_blocks_are_as_one_table(event: ConfidentGNMax | GNMax | LNMax) -> None:
    """However votes are cut into blocks, and in whatever order, every number is the same."""
    table, wanted = _votes(), Wanted()
    if not isinstance(event, LNMax):
        wanted = Wanted(sanitized=True, tested=True, order=4.0, sigma_d=0.3)
    whole = numbers.of_votes(numbers.read([table], event), event, 1e-3, wanted)
    shuffled = np.random.default_rng(3).permutation(table)
    cut = numbers.read((shuffled[k : k + 17].astype(np.uint8) for k in range(0, 300, 17)), event)
    assert cut.queries == 300
    parts = numbers.of_votes(cut, event, 1e-3, wanted)
    assert list(parts) == list(whole)
    for name, number in whole.items():
        assert parts[name].epsilon == pytest.approx(number.epsilon, rel=1e-9)
        assert parts[name].order == number.order
        for key, value in number.more.items():
            assert parts[name].more[key] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value)


def test_positions_of_blocks_are_those_of_the_queries() -> None:
    """A query counts as often as it is asked: the releases' own inputs are those of the whole table."""
    table = _votes()
    votes = numbers.read([table[:100], table[100:]], EVENT)
    where, directly = numbers.positions(votes, EVENT), cells.positions(table, EVENT)
    assert len(where) == 300
    order, straight = np.lexsort((where.z, where.largest)), np.lexsort((directly.z, directly.largest))
    assert np.array_equal(where.largest[order], directly.largest[straight])
    assert where.z[order] == pytest.approx(directly.z[straight], rel=1e-12)
    release = Sanitized(4.0, 0.05, 8.0)
    assert sanitized.figure(where, EVENT, release) == sanitized.figure(directly, EVENT, release)
    plan = tested.plan(where, EVENT, 1e-3, 4.0)
    assert plan == tested.plan(table, EVENT, 1e-3, 4.0)


def test_sanitized_shows_the_cost_of_its_release() -> None:
    """ε is the conversion of f plus what releasing it costs, by either conversion."""
    table = _votes()
    votes = numbers.read([table], EVENT)
    f = sanitized.plan(table, EVENT, 1e-3, 4.0).rdp
    for name in ("improved", "classic"):
        found = numbers.of_votes(votes, EVENT, 1e-3, Wanted(sanitized=True, order=4.0, conversion=name))["sanitized"]
        total = f + float(release_rdp(np.array([4.0]), found.more["beta"], found.more["sigma_ss"])[0])
        expected, _ = conversion.epsilon([total], [4.0], 1e-3, name, warn=False)
        assert found.epsilon == pytest.approx(expected, rel=1e-9)


def test_what_is_kept_of_certified_numbers_is_the_same_for_all_votes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache lies outside the private zone: neither its files nor the orders in them tell where votes are cheap."""
    kept = []
    for name, top in (("sure", 0.99), ("split", 0.4)):
        monkeypatch.setenv("PATE_CACHE", str(tmp_path / name))
        rest = (1 - top) / 2
        votes = np.random.default_rng(7).multinomial(200, [top, rest, rest], size=40)
        event = ConfidentGNMax(20.0, 100.0, 30.0, 40, 40)
        data_dependent.epsilons([votes], event, [2.0, 3.0, 5.0, 8.0, 13.0, 20.0, 60.0], 1e-5)
        tested.plan(votes, event, 1e-3, 4.0, pass_probability=0.3)
        sanitized.plan(votes, event, 1e-3, 4.0)
        files = sorted((tmp_path / name).rglob("*.json"))
        kept.append({file.name: sorted(json.loads(file.read_text())["values"]) for file in files})
    assert kept[0] == kept[1]
    assert list(kept[0]) == ["gaussian-argmax-20.0-v3.json"]


def test_a_sample_only_tells_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many different queries: a sample guesses orders, the numbers are of all queries and at the best orders."""
    votes = np.random.default_rng(5).multinomial(40, [0.5, 0.2, 0.2, 0.1], size=600)
    event = ConfidentGNMax(6.0, 20.0, 9.0, 600, 600)
    read = numbers.read([votes], event)
    whole = numbers.data_dependent_numbers(read, event, 1e-5, "improved")
    monkeypatch.setattr(data_dependent, "_SAMPLE", 50)
    sampled = numbers.data_dependent_numbers(read, event, 1e-5, "improved")
    for name, number in whole.items():
        assert number.epsilon * (1 - 1e-9) <= sampled[name].epsilon <= number.epsilon * 1.0005
        assert sampled[name].more.get("forward", 0) == pytest.approx(number.more.get("forward", 0), rel=5e-4)


def test_what_has_no_such_number_is_refused() -> None:
    """Sanitised and tested numbers of mechanisms for which they are not proven; the tables' figure of too many."""
    table = _votes(20)
    lnmax = LNMax(2.0, 20)
    with pytest.raises(UserError, match="must be GNMax or ConfidentGNMax"):
        numbers.of_votes(numbers.read([table], lnmax), lnmax, 1e-3, Wanted(sanitized=True))
    interactive = InteractiveGNMax(3.0, 2.0, 4.0, 20, 20)
    student = np.full((20, 3), 1 / 3)
    with pytest.raises(UserError, match="must be GNMax or ConfidentGNMax"):
        numbers.of_votes(numbers.read([(table, student)], interactive), interactive, 1e-3, Wanted(tested=True))
    many = numbers.Votes(numbers.MOST_UNSOUND + 1, 12, 3, numbers.read([table], EVENT).pieces)
    with pytest.raises(UserError, match="at most 20000 queries"):
        numbers.of_votes(many, EVENT, 1e-3, Wanted(unsound_p18=True))
    with pytest.raises(UserError, match="votes: "):
        numbers.read([], EVENT)


@pytest.mark.parametrize("bad", [[[1e308, 1e308]], [[2.0**54, 0]], [[np.inf, 1]], [[np.nan, 1]], [[-1, 2]], [[0.5, 1]]])
def test_numbers_that_are_no_counts_are_refused(bad: list[list[float]]) -> None:
    with pytest.raises(UserError, match="votes: every count"):
        numbers.read([bad], GNMax(1.0, 1))
