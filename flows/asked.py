"""What became of the queries asked, by round: counts of released labels, from labels.parquet alone."""

from dataclasses import dataclass
from pathlib import Path

from data.artifacts import read_sources


@dataclass(frozen=True)
class Counts:
    """Queries ``asked``; ``answered`` by the teachers, ``kept`` with the student's own label, ``abstained``."""

    asked: int
    answered: int
    kept: int
    abstained: int


def by_round(labels: Path) -> dict[int, Counts]:
    """{round, from 0: its counts}, of the rounds in which anything was asked."""
    sources, rounds = read_sources(labels)
    found = {}
    for number in sorted(set(rounds.tolist())):
        of = sources[rounds == number]
        found[number] = Counts(len(of), *(int((of == name).sum()) for name in ("teachers", "student", "abstained")))
    return found


def total(rounds: dict[int, Counts]) -> Counts:
    """Of all rounds together."""
    parts = list(rounds.values())
    return Counts(*(sum(getattr(part, name) for part in parts) for name in Counts.__dataclass_fields__))
