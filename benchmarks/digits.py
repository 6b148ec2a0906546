"""The demo's result, honestly: configs/digits.yaml over five seeds, with fresh noise in each run.

Prints the student's and the DP-SGD baseline's test accuracy at the published ε, mean and range, and what the student
gets from the released labels alone (method supervised). Usage: python benchmarks/digits.py [runs]
"""

import sys
import tempfile
import time
from pathlib import Path

# A script's own folder comes first, where files stand in packages' way.
sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

from flows.config import load  # noqa: E402
from flows.console import console  # noqa: E402
from flows.pipeline import run_all  # noqa: E402
from flows.summary import summary  # noqa: E402

CONFIG = Path(__file__).parents[1] / "configs" / "digits.yaml"


def line(name: str, values: list[float]) -> str:
    """Mean and range."""
    return f"{name:<28} mean {sum(values) / len(values):.4f}   range {min(values):.4f} to {max(values):.4f}"


def main(runs: int) -> None:
    """Run the config once a seed, in a folder and on a ledger of its own."""
    results, alone, seconds = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(runs):
            started = time.perf_counter()
            options = [f"seed={seed}", f"run_root={folder}/{seed}"]
            run_all(load(CONFIG, options), console(quiet=True))
            seconds.append(time.perf_counter() - started)
            results.append(summary(load(CONFIG, options)))
            supervised = load(CONFIG, [*options, "student.method=supervised"])
            run_all(supervised, console(quiet=True))
            alone.append(summary(supervised)["student_accuracy"])
            print(
                f"seed {seed}: {results[-1]['student_accuracy']:.3f} {results[-1]['baseline_accuracy']:.3f}", flush=True
            )
    first = results[0]
    print(f"{runs} runs; published ε {first['epsilon']:.4f}, δ {first['delta']:g}; asked {first['asked']}")
    print(line("student", [result["student_accuracy"] for result in results]))
    print(line("student, labels alone", alone))
    print(line("DP-SGD baseline, same ε, δ", [result["baseline_accuracy"] for result in results]))
    print(line("non-private", [result["nonprivate_accuracy"] for result in results]))
    print(line("seconds a run", seconds))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
