"""How fast an ensemble is trained: a plain loop against this project, in one run on one machine.

    python benchmarks/teachers.py [--quick] [--device cuda] [--only digits mnist adult]

Three ensembles: an mlp on scikit-learn's digits (50 teachers), a cnn on MNIST (250), random forests on Adult (250;
these are fitted when they vote, so training and voting on 1,000 queries are timed together for all). The plain loop is
what one writes first: torch modules and torch.optim's AdamW, one network after another on as many threads as torch
takes by default; for the forests scikit-learn's own fit and predict. Ours is what a run does: shards written to the
disk, two workers side by side, one thread each, votes read back. Both get the same shards, epochs, batches, shifts and
rates. Data come from $PATE_TEST_DATA/datasets; what is not there is left out.

Each row is measured in processes of its own, which take turns; times are by the clock from the first record to the
last vote, without loading modules and data, and the best of the repeats. Where ``of teachers`` is less than the
ensemble, the loop trained so many, drawn at random, in as many parts as there are repeats, and its time for all is in
proportion. ``of matmul``: the arithmetic of the networks' multiplications (forward once, backward twice, less the
gradient of the inputs) per second, as a share of what a product of two large matrices reaches on this machine.
``peak``: what a process held most (of its memory, or on a GPU of that), ``data``: how much of it before training.
Other work on the machine makes all of it slower, the loop most: its threads wait for each other at every step.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

# A script's own folder comes first, where this file stands in the package's way.
sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

from data.examples import PrivateRecords  # noqa: E402
from data.identity import unit_ids  # noqa: E402
from data.partition import Partition, partition, shards  # noqa: E402
from teachers import networks  # noqa: E402
from teachers.augmentation import augmentation_of  # noqa: E402
from teachers.ensemble import train_ensemble  # noqa: E402
from teachers.groups import strategy_of  # noqa: E402
from teachers.settings import TeacherSettings  # noqa: E402
from teachers.votes import collect  # noqa: E402

QUERIES = 1000
FOREST = "sklearn:sklearn.ensemble.RandomForestClassifier"


@dataclass(frozen=True)
class Case:
    """An ensemble to train: its settings, private records with their partition, and labelled queries."""

    title: str
    settings: TeacherSettings
    records: PrivateRecords
    parts: Partition
    features: np.ndarray
    labels: np.ndarray
    classes: int


@dataclass(frozen=True)
class Row:
    """What one process measured: seconds by the clock and of all cores, MiB, share of right votes, teachers trained."""

    seconds: float
    core_seconds: float
    peak: float
    data: float
    right: float
    teachers: int


# (case, numbers of the teachers to train, device) → share of right votes.
Contender = Callable[[Case, np.ndarray, str], float]


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


CASES = {"digits": digits, "mnist": mnist, "adult": adult}


def _root() -> Path:
    return Path(os.environ.get("PATE_TEST_DATA", "~/.cache/pate")).expanduser() / "datasets"


def _case(
    title: str, settings: TeacherSettings, features: np.ndarray, labels: np.ndarray, private: int, whole: int
) -> Case:
    """As many of the first ``private`` records as ``settings.count`` of ``whole`` teachers get; queries follow them."""
    taken = private * settings.count // whole
    units = unit_ids([str(row).encode() for row in range(taken)], 0)
    records = PrivateRecords(features[:taken], labels[:taken].astype(np.int32), units, units)
    # Some chunks for each worker, however few the teachers.
    settings = settings.model_copy(update={"chunk": min(settings.chunk, -(-settings.count // 4))})
    return Case(
        title,
        settings,
        records,
        partition(records, settings.count, 0),
        features[private:][:QUERIES],
        labels[private:][:QUERIES],
        max(10, int(labels.max()) + 1) if settings.model != FOREST else int(labels.max()) + 1,
    )


def plain(case: Case, teachers: np.ndarray, device: str) -> float:
    """One teacher after another, as one writes it first."""
    settings, right = case.settings, []
    queries = networks.as_input(case.features).to(device)
    for teacher, own in zip(teachers, shards(case.records, case.parts, teachers), strict=True):
        features, labels = case.records.features[own], case.records.labels[own]
        if settings.model == FOREST:
            from sklearn.ensemble import RandomForestClassifier

            votes = RandomForestClassifier(**settings.params).fit(features, labels).predict(case.features)
        else:
            network = networks.build(settings.model, features.shape[1:], case.classes, int(teacher)).to(device)
            _fit(network, networks.as_input(features).to(device), torch.tensor(labels).long().to(device), settings)
            with torch.inference_mode():
                votes = network(queries).argmax(1).cpu().numpy()
        right.append(float(np.mean(votes == case.labels)))
    return float(np.mean(right))


def _fit(network: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, settings: TeacherSettings) -> None:
    optimiser = torch.optim.AdamW(network.parameters(), settings.learning_rate, weight_decay=settings.weight_decay)
    steps = settings.epochs * -(-len(inputs) // settings.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: min(1.0, 2 * (1 - s / steps)))
    generator, change = torch.Generator().manual_seed(0), augmentation_of(settings)
    for _ in range(settings.epochs):
        seen = change(inputs, generator) if change.changes(inputs) else inputs
        for rows in torch.randperm(len(inputs), device=inputs.device).split(settings.batch_size):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(seen[rows]), labels[rows]).backward()
            optimiser.step()
            schedule.step()


def ours(**update: object) -> Contender:
    """A run's teach and vote stages, with other settings than the case's where given."""

    def run(case: Case, teachers: np.ndarray, device: str) -> float:
        settings = case.settings.model_copy(update={"device": device} | update)
        with tempfile.TemporaryDirectory() as folder:
            where = Path(folder) / "private" / "teachers"
            train_ensemble(where, case.records, case.parts, settings, 0, case.classes, "key")
            counts = collect(where, case.features, case.classes, settings)
        return float(counts[np.arange(len(case.labels)), case.labels].mean() / settings.count)

    return run


def contenders(case: Case, device: str) -> dict[str, Contender]:
    """The plain loop first; the settings' defaults second."""
    if case.settings.model == FOREST:
        return {"plain loop": plain, "ours, 2 threads": ours(), "ours, 2 processes": ours(runner="process")}
    how = strategy_of(case.settings.model_copy(update={"device": device}))
    return {"plain loop": plain, f"ours, {how}": ours()}


def multiplications(case: Case) -> float:
    """Floating-point operations of all teachers' training: 2 a multiplication and addition, padding not counted."""
    if case.settings.model == FOREST:
        return math.nan
    shape = case.records.features.shape[1:]
    network = networks.build(case.settings.model, shape, case.classes, 0)
    total, first = 0.0, True

    def count(layer: nn.Module, _: object, output: torch.Tensor) -> None:
        nonlocal total, first
        weights = layer.weight.numel() if hasattr(layer, "weight") else 0
        places = output[0, 0].numel() if output.ndim == 4 else 1
        total += 2.0 * weights * places * (2 if first and weights else 3)
        first = first and not weights

    for layer in network:
        layer.register_forward_hook(count)
    network(torch.zeros(1, *shape))
    return total * case.settings.epochs * len(case.records.labels)


def matmul_rate(device: str, repeats: int = 20) -> float:
    """Floating-point operations a second of a product of two large float32 matrices, on all cores or on the GPU."""
    size = 8192 if device.startswith("cuda") else 1024
    one, other = torch.rand(2, size, size, device=device)
    best = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        float((one @ other)[0, 0])
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def measure(name: str, count: int, way: str, part: int, parts: int, device: str) -> Row:
    """Train and vote once, in a process of its own: all teachers, or part ``part`` of so many parts drawn at random."""
    case = CASES[name](count)
    run = contenders(case, device)[way]
    teachers = np.random.default_rng(0).permutation(count)[part::parts]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cores, start = _core_seconds(), time.perf_counter()
    right = run(case, teachers, device)
    seconds = time.perf_counter() - start
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    if device.startswith("cuda"):
        before, peak = 0.0, torch.cuda.max_memory_allocated() / 2**20
    return Row(seconds, _core_seconds() - cores, peak, before, right, len(teachers) if run is plain else count)


def _core_seconds() -> float:
    return sum(os.times()[:4])


def alone(*arguments: object) -> Row:
    """:func:`measure` in a new process, with torch's own number of threads."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, __file__, "--measure", *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return Row(**json.loads(done.stdout.splitlines()[-1]))


def timed(name: str, case: Case, repeats: int, loop_parts: int, device: str) -> None:
    """Print a table: the rows in turn, ``repeats`` times; the loop on 1/``loop_parts`` of the teachers each time."""
    ways = list(contenders(case, device))
    rows: dict[str, list[Row]] = {way: [] for way in ways}
    count, work = case.settings.count, multiplications(case)
    for part in range(repeats):
        for way in ways:
            parts = loop_parts if way == "plain loop" else 1
            rows[way].append(alone(name, count, way, part % parts, parts, device))
    each = {way: min(row.seconds / row.teachers for row in found) for way, found in rows.items()}
    rate = matmul_rate(device)
    print(f"\n{case.title}: {count} teachers, {len(case.records.labels):,} records; load {os.getloadavg()[0]:.1f}")
    print(
        f"{'':20}{'of teachers':>12}{'teachers/s':>12}{'s for all':>11}{'core-s':>9}{'plain / it':>12}"
        f"{'of matmul':>11}{'accuracy':>10}{'peak MiB':>10}{'data MiB':>10}"
    )
    for way, found in rows.items():
        seconds = each[way] * count
        best = min(found, key=lambda row: row.seconds / row.teachers)
        share = "" if math.isnan(work) else f"{work / seconds / rate:.0%}"
        trained = min(count, sum(row.teachers for row in found)) if way == "plain loop" else count
        print(
            f"{way:20}{trained:>12}{count / seconds:>12.1f}{seconds:>11.1f}"
            f"{best.core_seconds / best.teachers * count:>9.1f}{each['plain loop'] / each[way]:>12.1f}{share:>11}"
            f"{np.mean([row.right for row in found]):>10.3f}{max(row.peak for row in found):>10,.0f}"
            f"{max(row.data for row in found):>10,.0f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Teachers a second, of a plain loop and of this project")
    parser.add_argument("--quick", action="store_true", help="fewer teachers of the two larger ensembles")
    parser.add_argument("--repeats", type=int, default=2, help="of each row, in turn")
    parser.add_argument("--device", default="cpu", help="of the networks, of both contenders")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="of the ensembles")
    parser.add_argument("--measure", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()

    if options.measure:
        name, count, way, part, parts, device = options.measure
        print(json.dumps(asdict(measure(name, int(count), way, int(part), int(parts), device))))
        return
    rate = matmul_rate(options.device)
    where = f"{os.cpu_count()} cores" if options.device == "cpu" else torch.cuda.get_device_name(options.device)
    print(f"{where}: {rate / 1e9:,.0f} GFLOP/s in a product of matrices; load {os.getloadavg()[0]:.1f}")
    for name in options.only:
        count = 50 if name == "digits" else 20 if options.quick else 250
        try:
            case = CASES[name](count)
        except (OSError, RuntimeError):
            print(f"\n{name}: not under {_root()}, left out")
            continue
        timed(name, case, options.repeats, 1 if options.quick or name == "digits" else 5, options.device)


if __name__ == "__main__":
    main()
