"""Draws of what depends on the votes' own cost: the test of a tested release, and a sanitised figure.

Neighbours: one teacher's votes changed from any class to any class, in every query. Released: the bit of the test
(then labels, if it passed, by :mod:`aggregation.answering`), or the noisy figure on a fixed lattice. Each has its
event on the ledger, which is paid whatever comes out, a refusal too. Noise is that of ``aggregation.noise``, exact;
what is drawn is journalled before anything is released, and a journal that holds it is replayed, never drawn again.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from accounting.events import Sanitized, Tested
from accounting.sanitized import Figure
from accounting.tested import threshold
from aggregation import journal
from aggregation.noise import Source, at_least, rounded
from data.errors import UserError

STEP = 2.0**-16
"""What a sanitised figure and its scale's logarithm are rounded to: fixed for all data."""
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Published:
    """A sanitised figure as released: the noisy f, and the noisy ln S where the event pays for it, else None."""

    rdp: float
    log_smooth_sensitivity: float | None


def passes(distance: int, tested: Tested, journal_path: Path, source: Source = os.urandom) -> bool:
    """Whether the labels may be released: distance + N(0, sigma_d^2) >= sigma_d Phi^-1(1 - delta').

    ``distance`` is :func:`accounting.tested.distance` of the votes that the labels would come from. The journal at
    ``journal_path`` was begun by :func:`aggregation.journal.start`; it holds the bit when this returns.
    """

    def draw() -> list[int]:
        return [int(at_least(np.array([distance]), threshold(tested), tested.sigma_d, source)[0])]

    return bool(_journalled(journal_path, 1, draw)[0])


def publish(figure: Figure, sanitized: Sanitized, journal_path: Path, source: Source = os.urandom) -> Published:
    """f + S sigma_ss N(0, 1), to the nearest multiple of :data:`STEP`; ln S + beta sigma N(0, 1) if the event has it.

    The journal at ``journal_path`` was begun by :func:`aggregation.journal.start`; it holds the multiples when this
    returns.
    """
    log_scale = sanitized.sigma_log_scale

    def draw() -> list[int]:
        drawn = [rounded(figure.rdp, (figure.smooth_sensitivity, sanitized.sigma_ss), STEP, source)]
        if log_scale is not None:
            drawn.append(rounded(float(np.log(figure.smooth_sensitivity)), (sanitized.beta, log_scale), STEP, source))
        # Clipping, like rounding, looks at what was drawn alone.
        return [min(max(number, -_LARGEST), _LARGEST) for number in drawn]

    numbers = _journalled(journal_path, 1 if log_scale is None else 2, draw) * STEP
    return Published(float(numbers[0]), None if log_scale is None else float(numbers[1]))


def _journalled(path: Path, count: int, draw: Callable[[], list[int]]) -> np.ndarray:
    """What the journal holds, (count,); drawn and journalled where it holds nothing yet."""
    state = journal.read(path)
    if state is None:
        raise UserError(f"{path}: no such file")
    held = state[1]
    if not len(held):
        held = np.array(draw(), dtype=np.int32)
        journal.append(path, 0, held)
    if len(held) != count:
        raise UserError(f"{path}: is the journal of another release")
    return held
