"""The journal of drawn outcomes: written and fsynced before anything is released, replayed after a crash.

Line 1 is the header: which reservation pays, what the draws are bound to (a keyed digest of votes and mechanism), the
event. Every further line holds a batch of outcomes and a checksum. Only the last line can be torn by a crash: what it
held was never released, and is drawn again under the same reservation; anything else that does not check is an error.
Private zone: mode 0600.
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


def start(path: Path, header: Header) -> None:
    """A new journal with no outcome yet; replaces an old one."""
    write_text(path, json.dumps(vars(header), sort_keys=True) + "\n")


def _line(first: int, outcomes: np.ndarray) -> str:
    # Of one width whatever was drawn: whether a line fits on a full disk must not depend on it.
    body = f"[{first:>10}, [{', '.join(f'{outcome:>10}' for outcome in outcomes.tolist())}]]"
    return f"{zlib.crc32(body.encode()):08x} {body}\n"


def append(path: Path, first: int, outcomes: np.ndarray) -> None:
    """Add the outcomes of queries ``first``, ``first`` + 1, …; on the disk when this returns."""
    with path.open("ab") as stream:
        stream.write(_line(first, outcomes).encode())
        stream.flush()
        os.fsync(stream.fileno())


def read(path: Path) -> tuple[Header, np.ndarray] | None:
    """The header and the outcomes (-1: abstained) so far; None without a journal. A torn last line is cut off."""
    if not path.exists():
        return None
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    lines = whole.decode(errors="replace").splitlines()
    outcomes: list[int] = []
    try:
        header = Header(**json.loads(lines[0]))
        for line in lines[1:]:
            checksum, body = line.split(" ", 1)
            first, batch = json.loads(body)
            if int(checksum, 16) != zlib.crc32(body.encode()) or first != len(outcomes):
                raise ValueError
            outcomes.extend(batch)
    except (ValueError, TypeError, IndexError):
        raise UserError(f"{path}: is corrupt; restore it, or delete it and rerun (a new, charged event)") from None
    if len(whole) < len(raw):
        with path.open("r+b") as stream:
            stream.truncate(len(whole))
            os.fsync(stream.fileno())
    return header, np.array(outcomes, dtype=np.int32)
