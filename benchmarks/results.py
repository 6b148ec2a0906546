"""Student against DP-SGD at equal ε, over several whole runs: benchmarks/RESULTS.md, gathered over time.

    python benchmarks/results.py run configs/mnist-headline.yaml --epsilon 0.47,1,3 --seeds 0,1,2 [--block 0]
    python benchmarks/results.py page

``run`` makes whole runs (partition, encoder, teachers, noise, student and baseline), each seed's in a folder and on a
ledger of its own, and adds a line for each to benchmarks/results.jsonl. σ is the one that publishes ε at the config's
caps; thresholds keep their ratio to it. ``--block B`` (MNIST): the test part is the B-th thousand of the 10,000 test
images and the public part the other 9,000; without it, the config's own split, which is the 2018 paper's. ``page``
writes RESULTS.md from the lines. Data come from $PATE_TEST_DATA/datasets.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student_t

# A script's own folder comes first, where files stand in packages' way.
sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

from data.store import Run  # noqa: E402
from flows.config import load  # noqa: E402
from flows.console import console  # noqa: E402
from flows.context import run_of  # noqa: E402
from flows.pipeline import run_all  # noqa: E402
from flows.sharing import take_over  # noqa: E402
from flows.summary import summary  # noqa: E402
from flows.sweep_points import points  # noqa: E402

HERE = Path(__file__).parent
LINES, PAGE = HERE / "results.jsonl", HERE / "RESULTS.md"
BLOCK = 1_000


def data_root() -> Path:
    """Where the datasets lie."""
    return Path(os.environ.get("PATE_TEST_DATA", "~/.cache/pate")).expanduser() / "datasets"


def block_options(folder: Path, block: int) -> list[str]:
    """MNIST with the ``block``-th thousand of the test images as the test part, as files of arrays in ``folder``."""
    from torchvision.datasets import MNIST

    train, test = (MNIST(str(data_root()), train=part) for part in (True, False))
    images, labels = test.data.numpy()[..., None], test.targets.numpy()
    inside = np.arange(len(images)) // BLOCK == block
    parts = {
        "private": (train.data.numpy()[..., None], train.targets.numpy()),
        "public": (images[~inside], labels[~inside]),
        "test": (images[inside], labels[inside]),
    }
    options = ["data.source=npz", "data.name=mnist-blocks", "data.label=labels", f"data.classes={list(range(10))}"]
    for name, (features, targets) in parts.items():
        path = folder / f"{name}.npz"
        np.savez(path, features=features, labels=targets)
        options.append(f"data.{name}={path}")
    return options


def runs_of(
    config: Path, epsilons: list[float], seed: int, block: int | None, others: list[str]
) -> Iterator[dict[str, Any]]:
    """Whole runs of one seed at each ε; what they gave, as lines of results.jsonl.

    A seed gives the same encoder, partition, teachers and votes bit for bit whatever ε: the first run makes them, and
    the others, of which no time is told, take them over.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = [f"seed={seed}", f"run_root={folder}", f"data.root={data_root()}", *others]
        if block is not None:
            options += block_options(Path(folder), block)
        made: list[Run] = []
        for target, point in zip(epsilons, points(load(config, options), epsilons), strict=True):
            settings = point.settings
            started = time.perf_counter()
            if made:
                take_over(settings, made, console())
            run_all(settings, console())
            seconds = None if made else round(time.perf_counter() - started)
            made.append(run_of(settings))
            found = summary(settings)
            yield {
                "config": config.stem,
                "split": "config" if block is None else f"block {block}",
                "seed": seed,
                "options": others,
                "target": target,
                "epsilon": found["epsilon"],
                "delta": found["delta"],
                "sigma": settings.aggregation.sigma,
                "asked": found["asked"],
                "answered": found["answered"],
                "student": found["student_accuracy"],
                "baseline": found["baseline_accuracy"],
                "nonprivate": found["nonprivate_accuracy"],
                "seconds": seconds,
                "cores": len(os.sched_getaffinity(0)),
            }


def interval(values: list[float | None]) -> str:
    """Mean and, from three runs on, Student's 95% interval of it, in percent; – where a run has none."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "–"
    mean = 100 * statistics.fmean(known)
    if len(known) < 3:
        return f"{mean:.2f}"
    half = 100 * float(student_t.ppf(0.975, len(known) - 1)) * statistics.stdev(known) / len(known) ** 0.5
    return f"{mean:.2f} ± {half:.2f}"


def page(lines: list[dict[str, Any]]) -> str:
    """RESULTS.md: a row for each config, split and ε, then the runs one by one."""
    groups: dict[tuple[str, str, float, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        split = "config's" if line["split"] == "config" else "rotating"
        groups[line["config"], split, line["target"], " ".join(line["options"])].append(line)
    out = [
        "# Results",
        "",
        "Student against DP-SGD at the same ε and δ, measured on the same public test inputs. ε is the published one,",
        "data-independent and at the caps. ± is Student's 95% interval of the mean, from three runs on, each with",
        "a fresh partition, encoder, teachers, noise, student and baseline; the chance of the test inputs (±0.6 points",
        "for 1,000 of them at 99%) is not in it where runs share one split. Made by `benchmarks/results.py`; no",
        "finished run is left out.",
        "",
        "| Config | split | published ε | δ | runs | student % | DP-SGD % | without privacy % | minutes a run |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (config, split, _, options), found in sorted(groups.items()):
        both = [interval([line[name] for line in found]) for name in ("student", "baseline", "nonprivate")]
        timed = [line["seconds"] / 60 for line in found if line["seconds"] is not None]
        minutes = f"{statistics.fmean(timed):.1f}" if timed else "–"
        named = f"{config} ({options})" if options else config
        out.append(
            f"| {named} | {split} | {max(line['epsilon'] for line in found):.4g} | {found[0]['delta']:g} "
            f"| {len(found)} | {both[0]} | {both[1]} | {both[2]} | {minutes} |"
        )
    out += ["", "## Runs", "", "| Config | split | seed | ε | σ | answered | student | DP-SGD | seconds |"]
    out.append("|---|---|---|---|---|---|---|---|---|")
    for line in lines:
        shown = " ".join([line["config"], *line["options"]])
        out.append(
            f"| {shown} | {line['split']} | {line['seed']} | {line['epsilon']:.4g} | {line['sigma']:.4g} | "
            f"{line['answered']} of {line['asked']} | {line['student']:.4f} | {line['baseline']:.4f} | "
            f"{'–' if line['seconds'] is None else line['seconds']} |"
        )
    return "\n".join(out) + "\n"


def gathered() -> list[dict[str, Any]]:
    """The lines so far."""
    return [json.loads(line) for line in LINES.read_text().splitlines()] if LINES.exists() else []


def main() -> None:
    """Make runs, or the page."""
    parser = argparse.ArgumentParser(description="Student against DP-SGD at equal ε, over whole runs")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("config", type=Path)
    run.add_argument("--epsilon", required=True, help="numbers with commas between")
    run.add_argument("--seeds", default="0,1,2")
    run.add_argument("--block", type=int, choices=range(10), help="of MNIST's test images, as the test part")
    run.add_argument("--set", action="append", default=[], help="another setting: key=value")
    commands.add_parser("page")
    options = parser.parse_args()
    if options.command == "run":
        epsilons = [float(part) for part in options.epsilon.split(",")]
        for seed in map(int, options.seeds.split(",")):
            for line in runs_of(options.config, epsilons, seed, options.block, options.set):
                print(json.dumps(line), flush=True)
                with LINES.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    PAGE.write_text(page(gathered()))


if __name__ == "__main__":
    main()
