"""How fast an ensemble is trained: a plain loop against this project, in one run on one machine.

    python benchmarks/teachers.py [--quick] [--repeats 3] [--device cpu]

Three ensembles on fixed shards: an mlp on scikit-learn's digits (50 teachers), a cnn on MNIST (250), random forests
on Adult (250; these are fitted when they vote, so training and voting on 1,000 queries are timed together). The plain
loop is what one writes first: torch modules and torch.optim's AdamW, one network after another; for the forests
scikit-learn's own fit and predict. Both get the same shards, epochs, batches and rate; their accuracy on other records
stands beside them. Data come from $PATE_TEST_DATA/datasets; what is not there is left out.

One thread of one process each, so that shares are of one core. Times are of the CPU, so that other work on the machine
weighs less, the best of the repeats, which take turns. `of matmul`: the arithmetic of the network's multiplications
(forward once, backward twice, less the gradient of the inputs) per second, as a share of what a product of two
1024×1024 matrices reaches here. `peak`: what the process held most, in a process of its own for each row.
"""

import argparse
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

# A script's own folder comes first, where this file stands in the package's way.
sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

from teachers import networks  # noqa: E402
from teachers.settings import TeacherSettings  # noqa: E402
from teachers.trainers import Shard, Task, Tensors, trainer_of, voter  # noqa: E402
from teachers.workers import use_one_thread  # noqa: E402

CLASSES = 10
QUERIES = 1000
FOREST = "sklearn:sklearn.ensemble.RandomForestClassifier"


@dataclass(frozen=True)
class Case:
    """An ensemble to train: what it is called, its settings, its shards, and labelled records to be asked about."""

    name: str
    settings: TeacherSettings
    shards: list[Shard]
    features: np.ndarray
    labels: np.ndarray

    @property
    def task(self) -> Task:
        return Task(self.settings, 0, self.features.shape[1:], max(CLASSES, int(self.labels.max()) + 1))


Contender = Callable[[Case], list[np.ndarray]]


def digits(count: int) -> Case:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = np.round(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    settings = TeacherSettings(count=count, model="mlp", epochs=60, batch_size=8, learning_rate=3e-3)
    return _case("digits, mlp", settings, images, labels, 1197, 50)


def mnist(count: int) -> Case:
    from torchvision.datasets import MNIST

    held = MNIST(_root(), train=True)
    settings = TeacherSettings(count=count, model="cnn", epochs=30, batch_size=32, shift=2)
    return _case("MNIST, cnn", settings, held.data.numpy()[:, None], held.targets.numpy(), 59_000, 250)


def adult(count: int) -> Case:
    import pandas as pd

    table = pd.read_parquet(_root() / "adult" / "adult.parquet")
    target = table.pop("income").astype("category").cat.codes.to_numpy()
    matrix = pd.get_dummies(table).to_numpy(dtype=np.float32)
    settings = TeacherSettings(count=count, model=FOREST, params={"n_estimators": 100})
    return _case("Adult, forests of 100 trees", settings, matrix, target, 30_000, 250)


def _root() -> Path:
    return Path(os.environ.get("PATE_TEST_DATA", "~/.cache/pate")).expanduser() / "datasets"


def _case(
    name: str, settings: TeacherSettings, features: np.ndarray, labels: np.ndarray, private: int, whole: int
) -> Case:
    """The first ``private`` records in ``whole`` shards by chance, as a keyed hash makes them; of these the first."""
    owner = np.random.default_rng(0).integers(0, whole, private)
    shards = [
        Shard(t, features[:private][owner == t], labels[:private][owner == t].astype(np.int32))
        for t in range(settings.count)
    ]
    return Case(name, settings, shards, features[private:][:QUERIES], labels[private:][:QUERIES])


def plain(case: Case) -> list[np.ndarray]:
    """One teacher after another, as one writes it first."""
    settings = case.settings
    if settings.model == FOREST:
        from sklearn.ensemble import RandomForestClassifier

        fitted = (RandomForestClassifier(**settings.params).fit(s.features, s.labels) for s in case.shards)
        return [forest.predict(case.features) for forest in fitted]
    votes = []
    for shard in case.shards:
        network = networks.build(settings.model, case.task.shape, case.task.classes, shard.teacher)
        optimiser = torch.optim.AdamW(network.parameters(), settings.learning_rate, weight_decay=settings.weight_decay)
        inputs, labels = networks.as_input(shard.features), torch.tensor(shard.labels).long()
        steps = settings.epochs * -(-len(inputs) // settings.batch_size)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s, n=steps: min(1.0, 2 * (1 - s / n)))
        for _ in range(settings.epochs):
            seen = _moved(inputs, settings.shift) if settings.shift else inputs
            for rows in torch.randperm(len(inputs)).split(settings.batch_size):
                optimiser.zero_grad()
                nn.functional.cross_entropy(network(seen[rows]), labels[rows]).backward()
                optimiser.step()
                schedule.step()
        with torch.inference_mode():
            votes.append(network(networks.as_input(case.features)).argmax(1).numpy())
    return votes


def _moved(images: torch.Tensor, shift: int) -> torch.Tensor:
    padded = nn.functional.pad(images, [shift] * 4, mode="replicate")
    height, width = images.shape[2:]
    moves = torch.randint(0, 2 * shift + 1, (len(images), 2)).tolist()
    return torch.stack([p[:, y : y + height, x : x + width] for p, (y, x) in zip(padded, moves, strict=True)])


def ours(**update: object) -> Contender:
    """This project's trainer and voter, with other settings than the case's where given."""

    def run(case: Case) -> list[np.ndarray]:
        settings = case.settings.model_copy(update=update)
        task = Task(settings, 0, case.task.shape, case.task.classes)
        kept: list[Tensors | None] = trainer_of(settings)(case.shards, task)
        vote = voter(case.features, task, 4096)
        return [vote(shard.teacher, own) for shard, own in zip(case.shards, kept, strict=True) if own is not None]

    return run


def contenders(case: Case, device: str) -> dict[str, Contender]:
    if case.settings.model == FOREST:
        return {"plain loop": plain, "ours": ours()}
    ways = {f"ours, {way}": ours(strategy=way, device=device) for way in ("loop", "vectorised")}
    return {"plain loop": plain, **ways}


def multiplications(case: Case) -> float:
    """Floating-point operations of all teachers' training: 2 a multiplication and addition, padding not counted."""
    if case.settings.model == FOREST:
        return math.nan
    network = networks.build(case.settings.model, case.task.shape, case.task.classes, 0)
    total, first = 0.0, True

    def count(layer: nn.Module, _: object, output: torch.Tensor) -> None:
        nonlocal total, first
        weights = layer.weight.numel() if hasattr(layer, "weight") else 0
        places = output[0, 0].numel() if output.ndim == 4 else 1
        total += 2.0 * weights * places * (2 if first and weights else 3)
        first = first and not weights

    for layer in network:
        layer.register_forward_hook(count)
    network(torch.zeros(1, *case.task.shape))
    return total * case.settings.epochs * sum(len(shard.labels) for shard in case.shards)


def matmul_rate(repeats: int = 5) -> float:
    """Floating-point operations a second of a product of two 1024×1024 float32 matrices, on one thread."""
    one, other = torch.rand(2, 1024, 1024)
    best = math.inf
    for _ in range(repeats):
        start = time.process_time()
        one @ other
        best = min(best, time.process_time() - start)
    return 2 * 1024**3 / best


CASES = {"digits": digits, "mnist": mnist, "adult": adult}


def peak(case: str, count: int, name: str, device: str) -> None:
    """In a process of its own: train once, and say the most memory held, and how much of it before training."""
    made = CASES[case](count)
    way, before = contenders(made, device)[name], _most_held()
    way(made)
    print(f"{name:20}{_most_held():>10,.0f} MiB peak, {before:,.0f} MiB of it before training", flush=True)


def _most_held() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(case: Case, options: argparse.Namespace) -> None:
    ways = contenders(case, options.device)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    right: dict[str, float] = {}
    for _ in range(options.repeats):
        for name, way in ways.items():
            start = time.process_time()
            votes = way(case)
            taken[name].append(time.process_time() - start)
            right[name] = float(np.mean([vote == case.labels for vote in votes]))
    rate, work = matmul_rate(), multiplications(case)
    print(f"\n{case.name}: {len(case.shards)} teachers, {sum(len(s.labels) for s in case.shards):,} records")
    print(f"{'':20}{'teachers/s':>12}{'best s':>9}{'plain / it':>12}{'of matmul':>11}{'accuracy':>10}")
    for name, seconds in taken.items():
        best = min(seconds)
        share = "" if math.isnan(work) else f"{work / best / rate:.0%}"
        print(
            f"{name:20}{len(case.shards) / best:>12.1f}{best:>9.2f}{min(taken['plain loop']) / best:>12.1f}"
            f"{share:>11}{right[name]:>10.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Teachers a second, of a plain loop and of this project")
    parser.add_argument("--quick", action="store_true", help="fewer teachers of the two larger ensembles")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu", help="of this project's networks")
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()

    use_one_thread()
    if options.peak:
        case, count, name = options.peak
        peak(case, int(count), name, options.device)
        return
    print(f"product of matrices: {matmul_rate() / 1e9:.0f} GFLOP/s on one core")
    for case, make in CASES.items():
        count = 50 if case == "digits" else 5 if options.quick else 250
        try:
            made = make(count)
        except (OSError, RuntimeError):
            print(f"\n{case}: not under {_root()}, left out")
            continue
        timed(made, options)
        for name in contenders(made, options.device):
            alone = [sys.executable, __file__, "--device", options.device, "--peak", case, str(count), name]
            subprocess.run(alone, check=True)


if __name__ == "__main__":
    main()
