"""``pate check``: all that can be found wrong, or foreseen, before anything private is trained. The curator's output.

Private records are read once as a run would read them, so that a malformed file is found now; what is told of them,
counts of units, records and classes, is for the curator's eyes and is printed nowhere else.
"""

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from accounting.statement import rounded_up
from data.errors import UserError
from data.examples import PrivateRecords
from data.partition import forecast
from data.private import ignored_columns, load_private
from data.public import load_public, load_test, table_encoder
from data.split import rows_of
from flows import charges
from flows.given_votes import file_of
from flows.settings import Settings

FEW_UNITS_A_SHARD = 10
# Share of the shards without a class from which on it is worth a warning.
MANY_WITHOUT = 0.05
# Share of public inputs that equal a private record from which on it is worth a warning.
MANY_COPIED = 0.1
_BLOCK = 4096


def forecast_run(settings: Settings) -> dict[str, Any]:
    """Units, classes, shard sizes, published ε, what the ledger would hold, disk and device, and warnings."""
    from flows import work

    work.check(settings)
    public = rows_of(settings.data, settings.seed, "public")
    test = rows_of(settings.data, settings.seed, "test")
    if public is None:
        raise UserError("data.public: must be set")
    encoder = table_encoder(settings.data, settings.seed)
    place = _existing(Path(settings.run_root))
    # Large features lie in the run root, where the private zone is, and not in a shared temporary folder.
    try:
        folder = tempfile.TemporaryDirectory(dir=place, prefix=".check-")
    except OSError as error:
        raise UserError(f"run_root = {settings.run_root!r}: cannot be written ({error.strerror})") from None
    with folder as scratch:
        records = load_private(settings.data, settings.seed, encoder, Path(scratch))
        units, classes = _units(records, len(settings.data.class_names))
        shape, record_bytes = records.features.shape[1:], records.features.nbytes
        count = len(records.labels)
        copied = _copied_warnings(settings, records)
        del records
    teachers = settings.teachers.count
    if teachers > units:
        raise UserError(f"teachers.count = {teachers}: must be at most the number of private units")
    shards = forecast(units, teachers)
    without = {
        name: teachers * float(np.exp(number * np.log1p(-1 / teachers))) if teachers > 1 else 0.0
        for name, number in zip(settings.data.class_names, classes, strict=True)
    }
    budget = charges.outlook(settings)
    published = charges.labels_guarantee(settings)
    disk = _disk(settings, shape, record_bytes)
    free = shutil.disk_usage(place).free
    warnings = [
        *_shard_warnings(settings, units, shards.low, shards.expected_empty, without),
        *copied,
        *_ledger_warnings(settings, budget),
    ]
    if disk > free:
        warnings.append(f"run_root = {settings.run_root!r}: about {_size(disk)} are needed, {_size(free)} are free")
    ignored = ignored_columns(settings.data, encoder)
    if ignored:
        warnings.append(f"the public file has no column {', '.join(ignored)}: not used")
    return {
        "run": settings.name,
        "unit": settings.unit,
        "records": count,
        "units_by_class": dict(zip(settings.data.class_names, classes, strict=True)),
        "public": len(public.rows),
        "test": 0 if test is None else len(test.rows),
        "shards": dataclasses.asdict(shards),
        "shards_without_class": without,
        "asked": charges.queries_asked(settings),
        "asked_through": [each.queries for each in charges.labels_rounds(settings)],
        "epsilon": published.epsilon,
        "delta": published.delta,
        "ledger_spent": budget.spent,
        "ledger_after": budget.after,
        "ledger_limit": budget.limit,
        "disk_bytes": disk,
        "disk_free_bytes": free,
        "device": _device(settings.teachers.device),
        "warnings": warnings,
    }


def rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The forecast as labelled lines."""
    shards = result["shards"]
    rarest = min(result["units_by_class"].items(), key=lambda each: each[1])
    return [
        ("private units, records", f"{shards['units']} (one {result['unit']}), {result['records']}"),
        ("rarest class", f"{rarest[0]}: in {rarest[1]} units"),
        ("public inputs, test inputs", f"{result['public']}, {result['test']}"),
        ("units a shard", f"{shards['mean']:.1f} (95% of shards: {shards['low']} to {shards['high']})"),
        *_asked(result),
        ("published ε, δ at the caps", f"{rounded_up(result['epsilon'])}, {result['delta']:g}"),
        (
            "ledger: ε spent, after this run, limit",
            f"{rounded_up(result['ledger_spent'])}, {rounded_up(result['ledger_after'])}, {result['ledger_limit']:g}",
        ),
        ("disk needed, free", f"{_size(result['disk_bytes'])}, {_size(result['disk_free_bytes'])}"),
        ("device", result["device"]),
    ]


def _asked(result: dict[str, Any]) -> list[tuple[str, str]]:
    through = result["asked_through"]
    return [] if len(through) == 1 else [("most queries through each round", ", ".join(map(str, through)))]


def _copied_warnings(settings: Settings, records: PrivateRecords) -> list[str]:
    """Of public parts that look as if they were drawn from the private records: the guarantee is void for those."""
    held = set(_digests(records.features))
    warnings = []
    for name, load in (("public", load_public), ("test", load_test)):
        part = load(settings.data, settings.seed)
        share = 0.0 if part is None else float(np.mean([each in held for each in _digests(part.features)]))
        if share >= MANY_COPIED:
            warnings.append(
                f"data.{name}: {share:.0%} of its inputs equal a private record in every feature; unless features are "
                "so coarse that strangers agree in all of them, it holds private records, which nothing then protects"
            )
    return warnings


def _digests(features: np.ndarray) -> Iterator[bytes]:
    """128 bits of each row, a block at a time: private features may lie on the disk."""
    for start in range(0, len(features), _BLOCK):
        for row in np.ascontiguousarray(features[start : start + _BLOCK]):
            yield blake2b(row.tobytes(), digest_size=16).digest()


def _units(records: PrivateRecords, classes: int) -> tuple[int, list[int]]:
    """Distinct units, and how many of them hold a record of each class."""
    distinct, unit = np.unique(records.units, return_inverse=True)
    held = np.unique(unit.astype(np.int64) * classes + records.labels)
    return len(distinct), np.bincount(held % classes, minlength=classes).tolist()


def _shard_warnings(settings: Settings, units: int, low: int, empty: float, without: dict[str, float]) -> list[str]:
    teachers = settings.teachers.count
    warnings = []
    if settings.aggregation.delta >= 1 / units:
        warnings.append(f"aggregation.delta = {settings.aggregation.delta:g}: should be well below 1/units")
    if low < FEW_UNITS_A_SHARD:
        warnings.append(f"teachers.count = {teachers}: many shards will hold under {FEW_UNITS_A_SHARD} units")
    if empty >= 0.5:
        warnings.append(f"about {empty:.0f} shards will be empty and cast the vote teachers.empty_vote")
    lacking = sorted(
        ((number, name) for name, number in without.items() if number >= MANY_WITHOUT * teachers), reverse=True
    )
    if lacking:
        shown = ", ".join(f"{name!r} in about {number:.0f}" for number, name in lacking[:5])
        warnings.append(
            f"shards without a class, whose teachers never vote for it: {shown}{', ...' if len(lacking) > 5 else ''} "
            f"of {teachers}; fewer teachers, or classes joined, would help"
        )
    return warnings


def _ledger_warnings(settings: Settings, budget: charges.Outlook) -> list[str]:
    warnings = []
    if not budget.after <= budget.limit:
        what = "labels and baseline together exceed" if settings.baseline.enabled else "its labels exceed"
        smaller = budget.limit == settings.ledger.epsilon
        hint = "ledger.epsilon is the smaller limit" if smaller else "`pate ledger limit` raises the stored limit"
        warnings.append(f"the ledger would refuse this run: {what} the limit ({hint})")
    mismatch = charges.account_mismatch(settings)
    if mismatch:
        warnings.append(f"the ledger would refuse this run: {mismatch}")
    return warnings


def _existing(path: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    path = path.expanduser().resolve()
    return path if path.is_dir() else _existing(path.parent)


def _disk(settings: Settings, shape: tuple[int, ...], record_bytes: int) -> int:
    """Bytes of a run: the teachers, the records in order of their shards while they train, and the votes."""
    from teachers.backbones import backbone
    from teachers.trainers import Task, network_of

    if settings.teachers.model.startswith("sklearn:"):
        kept = record_bytes
    elif file_of(settings) is not None:
        kept = 0
    else:
        seen = (settings.pretraining.components,) if settings.pretraining.enabled else shape
        shape_of_model = shape if settings.teachers.pretrained == "none" else seen
        task = Task(settings.teachers, settings.seed, shape_of_model, len(settings.data.class_names))
        numbers = sum(p.numel() for p in network_of(task, 0).parameters())
        if settings.teachers.pretrained == "weights":
            layers = backbone(shape, settings.pretraining.width, settings.pretraining.dimensions, 0)
            numbers += sum(p.numel() for p in layers.parameters())
        kept = settings.teachers.count * 4 * numbers
    return kept + 2 * record_bytes + 4 * charges.queries_asked(settings) * len(settings.data.class_names)


def _device(name: str) -> str:
    """Where networks are trained; one that is not there was refused by then."""
    import torch

    from teachers.fitting import device_of

    device = device_of(name)
    if not device.startswith("cuda"):
        return f"cpu ({os.cpu_count()} cores)"
    return f"{device} ({torch.cuda.get_device_name(int(device.partition(':')[2] or 0))})"


def _size(number: float) -> str:
    """Bytes for people.

    >>> _size(1536), _size(3 * 1024**3)
    ('1.5 KiB', '3.0 GiB')
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
