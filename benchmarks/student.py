"""What each part of the student's training is worth: the same released labels, one part left out at a time.

    python benchmarks/student.py [configs/mnist-headline.yaml] [--seeds 0,1,2] [--set KEY=VALUE]

For each seed one run of the config without its baseline (encoder, teachers, labels), then the student alone once for
each variant: a rerun of its stage, which reuses the labels and charges nothing. Accuracy is that on the config's test
part, and on the public inputs that the student learned from without their labels (a benchmark has them); variants were
never chosen by the test part. Prints means over seeds and the differences to the whole, seed by seed. Data come from
$PATE_TEST_DATA/datasets.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

# A script's own folder comes first, where files stand in packages' way.
sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

from data import images  # noqa: E402
from data.public import load_public  # noqa: E402
from flows.config import load  # noqa: E402
from flows.console import console  # noqa: E402
from flows.context import run_of  # noqa: E402
from flows.pipeline import run_all  # noqa: E402
from flows.settings import Settings  # noqa: E402
from flows.stages import run_stage  # noqa: E402
from flows.summary import summary  # noqa: E402
from student.release import load_student  # noqa: E402

WHOLE = "as configured"
VARIANTS = {
    WHOLE: (),
    "half the epochs": ("student.epochs=20",),
    "no changed images": ("student.variations=false",),
    "spread labels only, to the end": ("student.own_targets=1",),
    "every target of its own counts": ("student.confidence=0",),
    "hardly any averaging": ("student.averaging=0.5",),
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
    return float(summary(settings)["student_accuracy"]), float(np.mean(right))


def main() -> None:
    """All variants for all seeds."""
    parser = argparse.ArgumentParser(description="Parts of the student's training, left out one at a time")
    parser.add_argument(
        "config", nargs="?", type=Path, default=Path(__file__).parents[1] / "configs/mnist-headline.yaml"
    )
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    root = Path(os.environ.get("PATE_TEST_DATA", "~/.cache/pate")).expanduser() / "datasets"
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in VARIANTS}
    for seed in map(int, options.seeds.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            fixed = [f"seed={seed}", f"run_root={folder}", f"data.root={root}", "baseline.enabled=false", *options.set]
            for name, changed in VARIANTS.items():
                settings = load(options.config, [*fixed, *changed])
                if name == WHOLE:
                    run_all(settings, console(quiet=True))
                    seconds = 0.0
                else:
                    started = time.perf_counter()
                    run_stage("student", settings, console(quiet=True))
                    seconds = time.perf_counter() - started
                found[name].append((*accuracies(settings), seconds))
                print(
                    f"seed {seed}, {name}: test {found[name][-1][0]:.4f}, public {found[name][-1][1]:.4f}", flush=True
                )
    print(f"\n{'':34}{'test':>8}{'public':>8}{'seconds':>9}   public, less the whole, by seed")
    for name, results in found.items():
        test, public, seconds = (statistics.fmean(column) for column in zip(*results, strict=True))
        less = " ".join(f"{100 * (one[1] - whole[1]):+.2f}" for one, whole in zip(results, found[WHOLE], strict=True))
        print(f"{name:34}{test:>8.4f}{public:>8.4f}{seconds:>9.0f}   {less}")


if __name__ == "__main__":
    main()
