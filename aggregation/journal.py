"""The journal of drawn outcomes: written and fsynced before anything is released, replayed after a crash.

Line 1 is the header: which reservation pays, what the draws are bound to (a keyed digest of votes and mechanism), the
event. Every further line holds a checksum and a batch of outcomes or, in a run of several rounds, what a round asks,
fixed before its first draw. Only the last line can be torn by a crash: what it held was never released, and is drawn
again under the same reservation; anything else that does not check is an error. Private zone: mode 0600.
"""

import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data.errors import UserError
from data.store import write_text


@dataclass(frozen=True)
class Header:
    """What the outcomes of a journal belong to."""

    reservation: str
    binding: str
    event: dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What a round asks, a function of public inputs and of what was released in earlier rounds.

    ``number``: of the round, from 0. ``rows``: (Q,) rows of the public part, in the order in which they are asked.
    ``student``: (Q, C) the student's probabilities in :func:`aggregation.mechanisms.parts`; None: no student.
    """

    number: int
    rows: np.ndarray
    student: np.ndarray | None = None


@dataclass(frozen=True)
class Round:
    """A round so far: what it asks, and the outcomes (<= Q,) int32 of its first queries; the others wait."""

    asked: Asked
    outcomes: np.ndarray


def start(path: Path, header: Header) -> None:
    """A new journal with no outcome yet; replaces an old one."""
    write_text(path, json.dumps(vars(header), sort_keys=True) + "\n")


def _line(first: int, outcomes: np.ndarray) -> str:
    # Of one width whatever was drawn: whether a line fits on a full disk must not depend on it.
    return _checked(f"[{first:>10}, [{', '.join(f'{outcome:>10}' for outcome in outcomes.tolist())}]]")


def _checked(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x} {body}\n"


def append(path: Path, first: int, outcomes: np.ndarray) -> None:
    """Add the outcomes of queries ``first``, ``first`` + 1, …; on the disk when this returns."""
    _add(path, _line(first, outcomes))


def ask(path: Path, asked: Asked) -> None:
    """Begin a round: what it asks is on the disk when this returns, before anything is drawn for it."""
    student = None if asked.student is None else asked.student.tolist()
    _add(path, _checked(json.dumps({"round": asked.number, "rows": asked.rows.tolist(), "student": student})))


def _add(path: Path, line: str) -> None:
    with path.open("ab") as stream:
        stream.write(line.encode())
        stream.flush()
        os.fsync(stream.fileno())


def read(path: Path) -> tuple[Header, np.ndarray] | None:
    """The header and the outcomes (-1: abstained) so far, of all rounds; None without a journal."""
    state = read_rounds(path)
    if state is None:
        return None
    header, rounds = state
    return header, np.concatenate([part.outcomes for part in rounds])


def read_rounds(path: Path) -> tuple[Header, tuple[Round, ...]] | None:
    """The header and the rounds so far; None without a journal. A torn last line is cut off.

    In a journal that began no round all outcomes are of one that names no rows, number -1.
    """
    if not path.exists():
        return None
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    lines = whole.decode(errors="replace").splitlines()
    rounds, outcomes = [Asked(-1, np.zeros(0, np.int64))], [np.zeros(0, np.int32)]
    try:
        header = Header(**json.loads(lines[0]))
        for line in lines[1:]:
            checksum, body = line.split(" ", 1)
            held = json.loads(body)
            if int(checksum, 16) != zlib.crc32(body.encode()):
                raise ValueError
            if isinstance(held, dict):
                rounds.append(_asked(held, after=rounds[-1].number))
                outcomes.append(np.zeros(0, np.int32))
                continue
            first, batch = held
            if first != sum(map(len, outcomes)):
                raise ValueError
            outcomes[-1] = np.concatenate([outcomes[-1], np.array(batch, dtype=np.int32)])
        found = tuple(map(Round, rounds, outcomes))
        if len(found) > 1 and len(outcomes[0]):
            raise ValueError
    except (ValueError, TypeError, IndexError, KeyError, OverflowError):
        raise UserError(f"{path}: is corrupt; restore it, or delete it and rerun (a new, charged event)") from None
    if len(whole) < len(raw):
        with path.open("r+b") as stream:
            stream.truncate(len(whole))
            os.fsync(stream.fileno())
    return header, found[1:] or found


def _asked(held: dict[str, Any], after: int) -> Asked:
    student = None if held["student"] is None else np.array(held["student"], dtype=np.int64)
    asked = Asked(int(held["round"]), np.array(held["rows"], dtype=np.int64), student)
    if asked.number <= after:
        raise ValueError
    return asked
