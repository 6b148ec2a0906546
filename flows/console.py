"""What a run says while it works: lines and progress bars on standard error, nothing computed from private data."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console as Terminal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Report = Callable[[int, int], None]
SECONDS_BETWEEN_LINES = 5.0


@dataclass(frozen=True)
class Console:
    """``say`` writes a line; ``bar`` gives a callback (done, total) that shows progress under a title."""

    say: Callable[[str], None]
    bar: Callable[[str], Report]


def _lines(title: str, write: Callable[[str], None]) -> Report:
    started = last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < SECONDS_BETWEEN_LINES and done < total:
            return
        last = now
        rate = done / max(now - started, 1e-9)
        left = f", {(total - done) / rate:.0f} s left" if 0 < done < total else ""
        write(f"{title}: {done}/{total} ({rate:.1f}/s{left})")

    return report


def _bar(title: str, terminal: Terminal) -> Report:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    progress = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=terminal)
    task = progress.add_task(title, total=None)

    def report(done: int, total: int) -> None:
        if not progress.live.is_started:
            progress.start()
        progress.update(task, completed=done, total=total)
        if done >= total:
            progress.stop()

    return report


def console(quiet: bool = False) -> Console:
    """Bars on a terminal, plain lines elsewhere, nothing when quiet."""
    if quiet:
        return Console(lambda line: None, lambda title: lambda done, total: None)
    terminal = Terminal(stderr=True, soft_wrap=True, highlight=False)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if terminal.is_terminal:
        return Console(say, lambda title: _bar(title, terminal))
    return Console(say, lambda title: _lines(title, say))
