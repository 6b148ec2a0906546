"""What each part of the student's training is worth: the same released labels, one part left out at a time.

    python benchmarks/student.py run [configs/mnist-headline.yaml] [--seeds 0,1,2] [--set student.precision=mixed]
    python benchmarks/student.py page

``run``: for each seed the config's encoder, teachers and labels once, then the student once for each variant: a rerun
of its stage, which reuses the labels and charges nothing. Accuracy is that on the
config's test part, and on the public inputs that the student learned from without their labels (a benchmark has them);
variants were never chosen by the test part. Each is a line of benchmarks/student.jsonl; ``page`` writes STUDENT.md from
them: means over seeds, and the differences to the whole of the same seed with Student's 95% interval. Data come from
$PATE_TEST_DATA/datasets.
"""

import argparse
import itertools
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

from data import images  # noqa: E402
from data.public import load_public  # noqa: E402
from data.store import read_json  # noqa: E402
from flows.config import load  # noqa: E402
from flows.console import console  # noqa: E402
from flows.context import run_of  # noqa: E402
from flows.settings import Settings  # noqa: E402
from flows.stages import reserve_run, run_stage  # noqa: E402
from student.release import load_student  # noqa: E402

HERE = Path(__file__).parent
LINES, PAGE = HERE / "student.jsonl", HERE / "STUDENT.md"
WHOLE = "as configured"
VARIANTS = {
    WHOLE: (),
    "half the epochs": ("student.epochs=20",),
    "forward passes in float32": ("student.precision=full",),
    "no changed images": ("student.variations=false",),
    "spread labels only, to the end": ("student.own_targets=1",),
    "every target of its own counts": ("student.confidence=0",),
    "a smaller network, from scratch": ("student.model=cnn",),
    "label-spreading, then a convnet": ("student.method=label-spreading",),
    "released labels alone": ("student.method=supervised",),
}


def accuracies(settings: Settings) -> tuple[float, float]:
    """Of the released student: on the test part, and on the public part."""
    public = load_public(settings.data, settings.seed)
    truth = images.labels(settings.data, str(settings.data.public).split("[")[0], public.ids)
    student = load_student(run_of(settings).release)
    right = student.probabilities(public.features).argmax(1) == truth
    evaluation = read_json(run_of(settings).release / "student.json")["extra"]["evaluation"]
    return float(evaluation["accuracy"]), float(np.mean(right))


def runs_of(config: Path, seed: int, others: list[str]) -> Iterator[dict[str, Any]]:
    """Every variant of one seed, on the same labels; what they gave, as lines of student.jsonl."""
    root = Path(os.environ.get("PATE_TEST_DATA", "~/.cache/pate")).expanduser() / "datasets"
    with tempfile.TemporaryDirectory() as folder:
        fixed = [f"seed={seed}", f"run_root={folder}", f"data.root={root}", "baseline.enabled=false", *others]
        quiet, base = console(quiet=True), load(config, fixed)
        for stage in itertools.takewhile(lambda name: name != "student", reserve_run(base, quiet)):
            run_stage(stage, base, quiet)
        for name, changed in VARIANTS.items():
            settings = load(config, [*fixed, *changed])
            started = time.perf_counter()
            run_stage("student", settings, quiet)
            seconds = round(time.perf_counter() - started)
            test, public = accuracies(settings)
            yield {
                "config": config.stem,
                "options": others,
                "variant": name,
                "changed": list(changed),
                "seed": seed,
                "test": test,
                "public": public,
                "seconds": seconds,
                "cores": len(os.sched_getaffinity(0)),
            }


def difference(values: list[float]) -> str:
    """Mean in points and, from three seeds on, Student's 95% interval of it."""
    mean = 100 * statistics.fmean(values)
    if len(values) < 3:
        return f"{mean:+.2f}"
    half = 100 * float(student_t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:+.2f} ± {half:.2f}"


def page(lines: list[dict[str, Any]]) -> str:
    """STUDENT.md: a table for each config and its options."""
    out = [
        "# Parts of the student's training",
        "",
        "The same released labels, one part of the student's training changed at a time: percent right on the test",
        "part and on the public inputs that it learned from without their labels, means over seeds; and points",
        "against the whole of the same seed, with Student's 95% interval from three seeds on. Made by",
        "`benchmarks/student.py`.",
    ]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        groups[line["config"], " ".join(line["options"])].append(line)
    for (config, options), found in sorted(groups.items()):
        whole = {line["seed"]: line for line in found if line["variant"] == WHOLE}
        out += ["", f"## {config} {options}".rstrip(), "", f"Seeds {', '.join(map(str, sorted(whole)))}.", ""]
        out += ["| Student | settings | test % | public % | test, difference | public, difference | seconds |"]
        out += ["|---|---|---|---|---|---|---|"]
        for name in dict.fromkeys(line["variant"] for line in found):
            those = [line for line in found if line["variant"] == name]
            means = [f"{100 * statistics.fmean(line[part] for line in those):.2f}" for part in ("test", "public")]
            less = [
                "–" if name == WHOLE else difference([line[part] - whole[line["seed"]][part] for line in those])
                for part in ("test", "public")
            ]
            seconds = statistics.fmean(line["seconds"] for line in those)
            changed = " ".join(f"`{one}`" for one in those[0]["changed"])
            out.append(f"| {name} | {changed} | {' | '.join([*means, *less])} | {seconds:.0f} |")
    return "\n".join(out) + "\n"


def gathered() -> list[dict[str, Any]]:
    """The lines so far."""
    return [json.loads(line) for line in LINES.read_text().splitlines()] if LINES.exists() else []


def main() -> None:
    """Make runs, or the page."""
    parser = argparse.ArgumentParser(description="Parts of the student's training, left out one at a time")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("config", nargs="?", type=Path, default=HERE.parent / "configs/mnist-headline.yaml")
    run.add_argument("--seeds", default="0,1,2")
    run.add_argument("--set", action="append", default=[], help="another setting: key=value")
    commands.add_parser("page")
    options = parser.parse_args()
    if options.command == "run":
        for seed in map(int, options.seeds.split(",")):
            for line in runs_of(options.config, seed, options.set):
                print(json.dumps(line), flush=True)
                with LINES.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    PAGE.write_text(page(gathered()))


if __name__ == "__main__":
    main()
