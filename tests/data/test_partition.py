"""Units to teachers and parts: one unit changes one shard, and nothing else moves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import UserError
from data.examples import PrivateRecords
from data.identity import split_by_count, teachers_of, unit_ids
from data.partition import forecast, partition, read_partition, shards, write_partition


def _records(names: list[bytes], seed: int = 0) -> PrivateRecords:
    units = unit_ids(names, seed)
    content = unit_ids([b"%d:%s" % (row, name) for row, name in enumerate(names)], seed)
    features = np.arange(len(names), dtype=np.float32)[:, None]
    return PrivateRecords(features, np.zeros(len(names), np.int32), units, content)


@given(st.sets(st.binary(max_size=6), min_size=2, max_size=40), st.integers(1, 9), st.integers(0, 5))
def test_removing_a_unit_moves_no_other_unit(names: set[bytes], teachers: int, seed: int) -> None:
    """Every other unit keeps its teacher: one unit changes one shard."""
    ordered = sorted(names)
    before = dict(zip(ordered, teachers_of(unit_ids(ordered, seed), teachers, seed), strict=True))
    after = dict(zip(ordered[1:], teachers_of(unit_ids(ordered[1:], seed), teachers, seed), strict=True))
    assert all(before[name] == teacher for name, teacher in after.items())


def test_all_records_of_a_unit_share_a_teacher_and_every_record_is_in_one_shard() -> None:
    """Shards are disjoint, cover all records, and never split a unit."""
    names = [b"unit%d" % (n % 70) for n in range(300)]
    records = _records(names)
    parts = partition(records, 8, 0)
    found = shards(records, parts, np.arange(8))
    assert sorted(np.concatenate(found).tolist()) == list(range(300))
    owners = [{names[row] for row in shard} for shard in found]
    assert sum(len(owner) for owner in owners) == 70


def test_shards_do_not_depend_on_file_order() -> None:
    """The same records in another order give the same shards, in the same order of records."""
    names = [b"r%d" % n for n in range(50)]
    shuffled = np.random.default_rng(1).permutation(50)
    units = unit_ids(names, 0)
    a = PrivateRecords(np.arange(50)[:, None], np.zeros(50, np.int32), units, units)
    b = PrivateRecords(shuffled[:, None], np.zeros(50, np.int32), units[shuffled], units[shuffled])
    for one, other in zip(
        shards(a, partition(a, 5, 0), np.arange(5)), shards(b, partition(b, 5, 0), np.arange(5)), strict=True
    ):
        assert a.features[one].tolist() == b.features[other].tolist()


def test_hashing_is_uniform() -> None:
    """Shard sizes are those of a fair multinomial: a chi-square within its 1e-6 quantiles."""
    from scipy.stats import chi2

    counts = np.bincount(teachers_of(unit_ids([b"%d" % n for n in range(20_000)], 3), 50, 3), minlength=50)
    statistic = ((counts - 400) ** 2 / 400).sum()
    assert chi2.ppf(1e-6, 49) < statistic < chi2.ppf(1 - 1e-6, 49)


def test_seeds_and_purposes_give_unrelated_hashes() -> None:
    """Another seed gives another assignment."""
    names = [b"%d" % n for n in range(1000)]
    same = teachers_of(unit_ids(names, 0), 10, 0) == teachers_of(unit_ids(names, 1), 10, 1)
    assert 0.05 < same.mean() < 0.15


@given(st.integers(3, 60), st.integers(1, 20), st.integers(1, 20))
def test_removing_a_private_unit_leaves_public_and_test_parts(units: int, public: int, test: int) -> None:
    """Counts split by unit: the private part is last, so losing one of its units changes neither other part."""
    if public + test >= units - 1:
        return
    ids = unit_ids([b"%d" % n for n in range(units)], 0)
    first, second, private = split_by_count(ids, (public, test, units - public - test), 0)
    assert len(first) == public
    assert len(second) == test
    assert sorted([*first, *second, *private]) == list(range(units))
    kept = np.delete(ids, private[0])
    again = split_by_count(kept, (public, test, units - public - test - 1), 0)
    assert set(kept[again[0]]) == set(ids[first])
    assert set(kept[again[1]]) == set(ids[second])


def test_more_teachers_than_units_is_refused() -> None:
    """The error names the setting and the rule."""
    with pytest.raises(UserError, match=r"^teachers\.count = 5: must be at most the number of private units$"):
        partition(_records([b"a", b"b"]), 5, 0)


def test_partition_file_round_trip(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """What is read back is what was written, in a file that only its owner reads."""
    parts = partition(_records([b"%d" % n for n in range(30)]), 4, 0)
    path = tmp_path / "private" / "partition.parquet"
    write_partition(path, parts)
    back = read_partition(path)
    assert back.units.tolist() == parts.units.tolist()
    assert back.teachers.tolist() == parts.teachers.tolist()
    assert path.stat().st_mode & 0o777 == 0o600


def test_changed_private_records_do_not_fit_an_old_partition() -> None:
    """A unit that the partition does not know is an error, not a guess."""
    parts = partition(_records([b"a", b"b", b"c"]), 2, 0)
    with pytest.raises(UserError, match=r"^data\.private: has changed"):
        shards(_records([b"a", b"zz"]), parts, np.arange(2))


def test_forecast_brackets_real_shard_sizes() -> None:
    """About 95% of shards lie within the forecast's range."""
    sizes = np.bincount(teachers_of(unit_ids([b"%d" % n for n in range(12_000)], 0), 250, 0), minlength=250)
    told = forecast(12_000, 250)
    inside = ((sizes >= told.low) & (sizes <= told.high)).mean()
    assert told.mean == 48
    assert 0.90 < inside <= 1.0
