"""What the privacy numbers of a run's votes cost in time and memory: this project beside the literature's own scripts.

    python benchmarks/accounting.py [--votes counts.npy] [--peer research/pate_2018] [--growth 1000 10000]

Every measurement is a whole process, from its start to its last line, as a curator would wait for it: wall time, CPU
time of all its threads, largest resident memory. The parameters are those of the published MNIST run (GNMax with sigma
40 behind a test of threshold 200 and sigma 150, delta 1e-5), on its first 640 queries and on 8,500 drawn from the file
with replacement.

Ours: `pate privacy` with every number, the unsound one of the papers' tables included. Its data-independent number
needs certified bounds that depend on the noise and the caps alone and are kept on disk: `cold` starts with an empty
cache, `warm` finds them there. A row apart leaves out what is asked for by an option.

The peer: `smooth_sensitivity_table.py` of tensorflow/privacy's research/pate_2018, which prints the
textbook's data-dependent epsilon and the sanitised one. --peer names that folder; it needs sympy, absl-py and six, and
is not part of this project: without it its rows are left out.

Growth: the data-dependent numbers of 10^3 to 10^6 queries, from the same file with replacement, and of as many
histograms that all differ, which is the worst case: equal ones are looked at once.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

THRESHOLD, TEST_SIGMA, SIGMA, DELTA = 200, 150, 40, 1e-5
Votes = NDArray[np.int64]


@dataclass(frozen=True)
class Taken:
    """Of one process: seconds, seconds of the CPU, megabytes, and what it wrote."""

    wall: float
    cpu: float
    memory: float
    output: str


def measured(command: list[str], folder: Path, cache: Path, limit: float) -> Taken | None:
    """Run a command to its end; None if it took longer than ``limit`` seconds or failed (its last line is printed)."""
    with tempfile.TemporaryFile("w+") as written:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, stdout=written, stderr=subprocess.STDOUT, env={**os.environ, "PATE_CACHE": str(cache)}
        )
        while True:
            found, status, usage = os.wait4(process.pid, os.WNOHANG)
            wall = time.perf_counter() - start
            if found:
                break
            if wall > limit:
                process.kill()
                os.wait4(process.pid, 0)
                print(f"  stopped after {limit:g} s")
                return None
            time.sleep(0.01)
        process.returncode = os.waitstatus_to_exitcode(status)
        written.seek(0)
        output = written.read()
    if process.returncode:
        print(f"  failed: {output.strip().splitlines()[-1] if output.strip() else process.returncode}")
        return None
    kilobytes = usage.ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return Taken(wall, usage.ru_utime + usage.ru_stime, kilobytes / 1024, output)


def ours(file: Path, answers: int, *options: str) -> list[str]:
    return [
        sys.executable, "-m", "flows", "privacy", str(file), "--mechanism", "confident-gnmax", "--sigma", str(SIGMA),
        "--threshold", str(THRESHOLD), "--threshold-sigma", str(TEST_SIGMA), "--max-answers", str(answers), "--delta",
        str(DELTA), *options, "--json",
    ]  # fmt: skip


def peers(file: Path) -> list[str]:
    return [
        sys.executable, "smooth_sensitivity_table.py", f"--counts_file={file}", f"--threshold={THRESHOLD}",
        f"--sigma1={TEST_SIGMA}", f"--sigma2={SIGMA}", f"--delta={DELTA}",
    ]  # fmt: skip


def shown(name: str, taken: Taken | None) -> None:
    if taken is not None:
        print(f"{name:46}{taken.wall:>9.2f}{taken.cpu:>9.2f}{taken.memory:>9.0f}", flush=True)


def our_numbers(taken: Taken | None) -> None:
    if taken is None:
        return
    result: dict[str, Any] = json.loads(taken.output.strip().splitlines()[-1])
    numbers = {name: number["epsilon"] for name, number in result["epsilon"].items()}
    print("  " + ", ".join(f"{name} {value:.4f}" for name, value in numbers.items()))


def peer_numbers(taken: Taken | None) -> None:
    if taken is not None:
        lines = [line.strip() for line in taken.output.splitlines() if re.search(r"eps|E\[SS", line)]
        print("\n".join(f"  {line}" for line in lines))


def compare(file: Path, queries: int, answers: int, peer: Path | None, folder: Path, limit: float) -> None:
    """Both on the same votes."""
    print(f"\n{queries} queries, {file.name}, at most {answers} answers")
    print(f"{'whole process':46}{'wall s':>9}{'CPU s':>9}{'MB':>9}")
    cache = folder / f"cache-{file.stem}"
    every = ours(file, answers, "--sanitize", "--tested", "--unsound-p18")
    shown("ours, every number, cold cache", measured(every, folder, cache, limit))
    warm = measured(every, folder, cache, limit)
    shown("ours, every number, warm cache", warm)
    shown("ours, without options, warm cache", measured(ours(file, answers), folder, cache, limit))
    our_numbers(warm)
    if peer is not None:
        taken = measured(peers(file), peer / "ICLR2018", cache, limit)
        shown("peer: smooth_sensitivity_table.py", taken)
        if taken is not None and warm is not None:
            print(f"  wall time, peer / ours with every number, warm: {taken.wall / warm.wall:.1f}")
        peer_numbers(taken)


def growth(votes: Votes, sizes: list[int], folder: Path, limit: float) -> None:
    """Time and memory against queries."""
    print(f"\nours, data-dependent and worst cases, warm cache\n{'queries':46}{'wall s':>9}{'CPU s':>9}{'MB':>9}")
    cache, random = folder / "cache-growth", np.random.default_rng(0)
    for queries in sizes:
        rows = votes[random.integers(0, len(votes), queries)]
        shares = (rows + 0.5) / (rows + 0.5).sum(axis=1, keepdims=True)
        different = random.multinomial(int(votes[0].sum()), shares)
        for name, table in (("drawn from the file", rows), ("nearly all different", different)):
            file = folder / f"{queries}.npy"
            np.save(file, table.astype(np.int32))
            answers = min(queries, 283)
            measured(ours(file, answers), folder, cache, limit) if name == "drawn from the file" else None
            shown(f"{queries:>9,} {name}", measured(ours(file, answers), folder, cache, limit))
            file.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory of privacy numbers")
    default = Path(os.environ.get("PATE_TEST_DATA", ".")) / "votes" / "mnist_250_teachers.npy"
    parser.add_argument("--votes", type=Path, default=default, help="counts, queries by classes (.npy)")
    parser.add_argument("--peer", type=Path, help="the folder research/pate_2018 of tensorflow/privacy")
    parser.add_argument("--growth", type=int, nargs="*", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--limit", type=float, default=3600, help="most seconds a process may take")
    options = parser.parse_args()
    if not options.votes.is_file():
        parser.error(f"--votes = {str(options.votes)!r}: no such file")
    peer = options.peer.resolve() if options.peer is not None else None
    if peer is None or not (peer / "ICLR2018" / "smooth_sensitivity_table.py").is_file():
        print("--peer names no folder research/pate_2018 of tensorflow/privacy: its rows are left out")
        peer = None

    votes = np.load(options.votes)
    print(f"{os.cpu_count()} CPUs; OMP_NUM_THREADS {os.environ.get('OMP_NUM_THREADS', 'unset')}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        drawn = votes[np.random.default_rng(0).integers(0, len(votes), 8500)]
        for file, table, answers in ((folder / "first.npy", votes[:640], 283), (folder / "drawn.npy", drawn, 1000)):
            np.save(file, table)
            compare(file, len(table), answers, peer, folder, options.limit)
        growth(votes, options.growth, folder, options.limit)


if __name__ == "__main__":
    main()
