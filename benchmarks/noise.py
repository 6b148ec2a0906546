"""How fast noisy argmax is drawn: this project's sampler against OpenDP's, in one run on one machine.

    python benchmarks/noise.py [--queries 640 9000] [--repeats 5]

Every competitor answers argmax_j v_j + noise of sigma 40 for the same votes of 10 classes (250 votes a query).
OpenDP adds noise to one vector of all counts and NumPy takes the argmax: discrete Gaussian on the integers, on a
lattice of 2^-40, and on its default one for floats (2^-1074). Its law is that of the lattice, ours the continuous
one. NumPy's own generator is the floor of what is possible, without any protection. Times are of the CPU, so that
other work on the machine weighs less; the best of the repeats counts, the median stands beside it. The table that
ours verifies once per process is timed apart. OpenDP is the optional extra ``bench``; without it its rows are left
out.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A script's own folder comes first, where files stand in packages' way.
sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

from aggregation.noise import argmax  # noqa: E402
from aggregation.quantiles import brackets  # noqa: E402

SIGMA = 40.0
CLASSES = 10
TEACHERS = 250

Votes = NDArray[np.int64]
Sampler = Callable[[Votes], NDArray[Any]]


def ours(votes: Votes) -> NDArray[Any]:
    return argmax(votes, SIGMA, "gaussian")


def unprotected(votes: Votes) -> NDArray[Any]:
    generator = np.random.default_rng()
    return np.asarray((votes + generator.normal(0.0, SIGMA, votes.shape)).argmax(axis=1))


def opendp_samplers(size: int) -> dict[str, Sampler]:
    """OpenDP's Gaussian measurements on vectors of ``size`` counts; none when OpenDP is absent."""
    try:
        import opendp.prelude as dp
    except ImportError:
        print("OpenDP is not installed (extra `bench`): its rows are left out")
        return {}
    dp.enable_features("contrib")

    def sampler(kind: type, lattice: int | None) -> Sampler:
        atoms = dp.atom_domain(T=int) if kind is int else dp.atom_domain(T=float, nan=False)
        space = dp.vector_domain(atoms, size=size), dp.l2_distance(T=float)
        measure = dp.m.make_gaussian(*space, scale=SIGMA, **({} if lattice is None else {"k": lattice}))

        def draw(votes: Votes) -> NDArray[Any]:
            noisy = measure(votes.ravel().astype(kind).tolist())
            return np.asarray(noisy).reshape(votes.shape).argmax(axis=1)

        return draw

    return {
        "OpenDP, integers": sampler(int, None),
        "OpenDP, lattice 2^-40": sampler(float, -40),
        "OpenDP, floats (default lattice)": sampler(float, None),
    }


def seconds(sampler: Sampler, votes: Votes, repeats: int) -> list[float]:
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        sampler(votes)
        taken.append(time.process_time() - start)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws per second of noisy-argmax samplers")
    parser.add_argument("--queries", type=int, nargs="+", default=[640, 9000])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()

    start = time.process_time()
    brackets("gaussian")
    print(f"table of brackets, once per process: {1e3 * (time.process_time() - start):.0f} ms")
    for queries in options.queries:
        votes = np.random.default_rng(0).multinomial(TEACHERS, np.full(CLASSES, 1 / CLASSES), queries)
        samplers = {"ours": ours, **opendp_samplers(votes.size), "NumPy, unprotected": unprotected}
        print(f"\n{queries} queries of {CLASSES} classes, sigma {SIGMA:g}: {votes.size} draws")
        print(f"{'sampler':34}{'draws/s':>14}{'best ms':>10}{'median ms':>11}{'time / ours':>13}")
        reference = None
        for name, sampler in samplers.items():
            taken = seconds(sampler, votes, options.repeats)
            best = min(taken)
            reference = reference or best
            print(
                f"{name:34}{votes.size / best:>14,.0f}{1e3 * best:>10.2f}"
                f"{1e3 * statistics.median(taken):>11.2f}{best / reference:>13.1f}"
            )


if __name__ == "__main__":
    main()
