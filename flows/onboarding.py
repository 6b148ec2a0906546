"""``pate init``: a commented config for a user's own data, from names, types and counts alone.

What cannot be known from those is assumed, and every assumption is said, in the config and on the console. The class
names are never read from private rows: they are given, or those of a public test file, or of folders.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from accounting.statement import rounded_up
from data.errors import UserError
from data.settings import Source
from data.store import atomic
from flows import charges, look
from flows.config import build
from flows.recommend import Recommendation, recommend

_FOREST = "sklearn:sklearn.ensemble.RandomForestClassifier"
_UNKNOWN_PUBLIC = 1_000
# Two datasets of one name would share a budget.
_GENERIC = ("private", "train", "training", "data", "dataset", "records", "table", "images")
_LIMITS = (1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)


@dataclass(frozen=True)
class Wishes:
    """What the user says about the data; None or empty where it is to be found or assumed."""

    file: Path
    public: Path | None = None
    test: Path | None = None
    label: str | None = None
    unit: str | None = None
    classes: tuple[str, ...] = ()
    encoding: str | None = None
    epsilon: float = 1.0


@dataclass
class _Draft:
    """The data section as it grows, with what is said about it."""

    source: Source
    data: dict[str, Any] = field(default_factory=dict)
    units: int = 0
    public: int | None = None
    said: list[str] = field(default_factory=list)


def start(wishes: Wishes, out: Path, *, force: bool = False) -> dict[str, Any]:
    """Write the config to ``out`` and say what was found, assumed and recommended."""
    if out.exists() and not force:
        raise UserError(f"--out = {str(out)!r}: is there already; give another name, or --force")
    if not wishes.epsilon > 0:
        raise UserError(f"--epsilon = {wishes.epsilon!r}: must be above 0")
    source = look.source_of(wishes.file)
    draft = _Draft(source)
    {"imagefolder": _folder, "npz": _archive}.get(source, _table)(wishes, draft)
    classes = draft.data["classes"]
    if len(classes) < 2:
        raise UserError(f"--classes = {','.join(classes)!r}: must name at least 2 classes")
    if draft.public is None:
        draft.said.append(f"The public file is not known yet: {_UNKNOWN_PUBLIC} public inputs were assumed.")
    advice = recommend(draft.units, draft.public or _UNKNOWN_PUBLIC, len(classes), wishes.epsilon)
    record = _with_limit(_settings(wishes, draft, advice), wishes.epsilon)
    text = _commented(record, wishes, draft, advice, out)
    with atomic(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return {
        "config": str(out.resolve()),
        "source": source,
        "units": draft.units,
        "teachers": advice.teachers,
        "sigma": advice.sigma,
        "max_answers": advice.answers,
        "epsilon": advice.epsilon,
        "delta": advice.delta,
        "ledger_limit": record["ledger"]["epsilon"],
        "said": [*draft.said, *advice.doubts],
    }


def rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The result as labelled lines."""
    return [
        ("config", result["config"]),
        ("source, private units", f"{result['source']}, {result['units']}"),
        ("teachers, σ, answers", f"{result['teachers']}, {result['sigma']:g}, {result['max_answers']}"),
        ("published ε, δ", f"{rounded_up(result['epsilon'])}, {result['delta']:g}"),
        ("ledger limit ε", f"{result['ledger_limit']:g} for labels and baseline together"),
    ]


def _place(path: Path | None, kind: str, draft: _Draft) -> str:
    if path is None:
        draft.said.append(f"data.{kind}: not given; put the path in the config.")
        return f"PATH-OF-{kind.upper()}-DATA"
    if not path.exists():
        raise UserError(f"--{kind} = {str(path)!r}: no such file or folder")
    return str(path)


def _table(wishes: Wishes, draft: _Draft) -> None:
    found = look.table(wishes.file, "FILE", wishes.encoding)
    columns = list(found.columns)
    kinds = ", ".join(f"{name} ({kind})" for name, kind in list(found.columns.items())[:40])
    draft.said.append(f"{found.rows} rows of {len(columns)} columns: {kinds}{', ...' if len(columns) > 40 else ''}.")
    label = _label(wishes, columns, draft)
    unit = _unit(wishes, found, label, draft)
    test = None if wishes.test is None else look.table(wishes.test, "--test", wishes.encoding)
    classes = list(wishes.classes)
    if not classes and test is None:
        raise UserError(
            "--classes: must name the classes, e.g. --classes no,yes, in the order of their numbers, or give --test "
            "with labelled public rows; they are never read from private rows"
        )
    if not classes and test is not None:
        classes = look.label_names(test, label)
        draft.said.append(f"Classes from the label column of the test file: {', '.join(classes)}.")
    draft.data |= {"source": draft.source, "private": str(wishes.file)}
    draft.data["public"] = _place(wishes.public, "public", draft)
    if wishes.test is not None:
        draft.data["test"] = _place(wishes.test, "test", draft)
    draft.data |= {"label": label, "classes": classes} | ({"unit": unit} if unit else {})
    dialect = found.file.dialect
    if dialect is not None:
        draft.data |= {"encoding": dialect.encoding, "delimiter": dialect.delimiter, "decimal": dialect.decimal}
        if dialect.encoding != "utf-8" and wishes.encoding is None:
            draft.said.append(f"The file is not UTF-8: {dialect.encoding} is assumed; look at accented letters.")
    draft.units = look.distinct(found, unit) if unit else found.rows
    if wishes.public is not None:
        draft.public = look.table(wishes.public, "--public", wishes.encoding).rows


def _label(wishes: Wishes, columns: list[str], draft: _Draft) -> str:
    if wishes.label is not None:
        if wishes.label not in columns:
            raise UserError(f"--label = {wishes.label!r}: must be a column: {', '.join(columns[:40])}")
        return wishes.label
    named = [name for name in columns if look.looks_like_label(name)]
    if len(named) != 1:
        raise UserError(f"--label: must name the column to be predicted: one of {', '.join(columns[:40])}")
    draft.said.append(f"Label assumed from its name: {named[0]}.")
    return named[0]


def _unit(wishes: Wishes, found: look.Table, label: str, draft: _Draft) -> str | None:
    columns = [name for name in found.columns if name != label]
    if wishes.unit is not None:
        if wishes.unit not in columns:
            raise UserError(f"--unit = {wishes.unit!r}: must be a column: {', '.join(columns[:40])}")
        return wishes.unit
    named = [n for n in columns if look.looks_like_unit(n) and found.columns[n] in ("text", "whole number", "number")]
    if len(named) == 1:
        draft.said.append(f"Unit assumed from its name: {named[0]}; all rows of one {named[0]} are protected together.")
        return named[0]
    why = f"several columns could name it: {', '.join(named)}" if named else "no column names a person"
    draft.said.append(f"Each record is protected by itself: {why}. If people have several rows, set data.unit.")
    return None


def _folder(wishes: Wishes, draft: _Draft) -> None:
    parts = look.parts_of_folder(wishes.file)
    private = parts["private"]
    public, test = wishes.public or parts.get("public"), wishes.test or parts.get("test")
    classes = list(wishes.classes) or look.class_folders(private)
    if not wishes.classes:
        draft.said.append(f"Classes from the names of the folders: {', '.join(classes)}.")
    draft.data |= {"source": "imagefolder", "private": str(private)}
    draft.data["public"] = _place(public, "public", draft)
    if test is not None:
        draft.data["test"] = _place(test, "test", draft)
    draft.data["classes"] = classes
    if wishes.unit is not None:
        draft.data["unit"] = wishes.unit
    else:
        draft.said.append(
            "Each image is protected by itself. If people have several images, set data.unit to a regular expression "
            "whose first group finds the person in a file's name."
        )
    draft.units = look.images(private)
    draft.public = None if public is None else look.images(public)


def _archive(wishes: Wishes, draft: _Draft) -> None:
    found = look.arrays(wishes.file)
    shapes = ", ".join(f"{name} {shape}" for name, shape in found.items())
    draft.said.append(f"Arrays: {shapes}.")
    label = wishes.label or "labels"
    if label not in found:
        raise UserError(f"--label = {label!r}: must be an array: {', '.join(found)}")
    if not wishes.classes:
        raise UserError("--classes: must name the classes, in the order of their numbers in the label array")
    draft.data |= {"source": "npz", "private": str(wishes.file), "label": label, "classes": list(wishes.classes)}
    draft.data["public"] = _place(wishes.public, "public", draft)
    if wishes.test is not None:
        draft.data["test"] = _place(wishes.test, "test", draft)
    if wishes.unit is not None:
        if wishes.unit not in found:
            raise UserError(f"--unit = {wishes.unit!r}: must be an array: {', '.join(found)}")
        draft.data["unit"] = wishes.unit
    draft.units = found[label][0] if found[label] else 0
    if wishes.public is not None:
        draft.public = next((shape[0] for shape in look.arrays(wishes.public).values() if shape), 0)


def _dataset_name(file: Path) -> str:
    """The file's or folder's name, in the ledger's letters; where it names no dataset, with its folder's."""
    path = file.resolve()
    stem = path.stem if path.stem.lower() not in _GENERIC else f"{path.parent.name}-{path.stem}"
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in stem).strip("-._")[:80] or "data"


def _settings(wishes: Wishes, draft: _Draft, advice: Recommendation) -> dict[str, Any]:
    """The whole config as a mapping; the limit is still open."""
    table = draft.source in ("csv", "parquet")
    teachers: dict[str, Any] = {"count": advice.teachers}
    student: dict[str, Any]
    if table:
        teachers |= {"model": _FOREST, "runner": "process"}
        student = {"method": "self-training", "model": _FOREST}
        baseline = {"model": "logistic", "clip": 0.5, "learning_rate": 2, "momentum": 0.9, "averaging": 0.5}
    else:
        model = "mlp" if draft.source == "npz" else "cnn"
        teachers |= {"model": model}
        student = {"method": "label-spreading", "model": model}
        baseline = {}
    baseline |= {"sampling_rate": 0.1, "batch_size": max(round(0.1 * draft.units), 1), "steps": 200}
    name = _dataset_name(wishes.file)
    return {
        "data": {"name": name, **draft.data},
        "ledger": {"epsilon": _LIMITS[-1]},
        "teachers": teachers,
        "queries": {"strategy": "prototypes", "count": advice.answers},
        "aggregation": {"mechanism": "gnmax", "sigma": advice.sigma, "delta": advice.delta},
        "student": student,
        "baseline": baseline,
    }


def _with_limit(record: dict[str, Any], epsilon: float) -> dict[str, Any]:
    """The smallest round limit that holds labels and baseline together, by the ledger's own arithmetic."""
    for limit in (each for each in _LIMITS if each > epsilon):
        limited = {**record, "ledger": {"epsilon": limit}}
        # A ledger that is not there: what this config would do to an account of its own.
        fresh = build({**limited, "ledger": {"epsilon": limit, "url": "sqlite:////nonexistent/ledger.sqlite"}})
        if charges.outlook(fresh).after <= limit:
            return limited
    return record


_WORDS = {
    "data": [
        "name: the dataset's name on the ledger, which owns the budget: keep it when rows are edited.",
        "Private rows are never used for types, vocabularies or scaling: those come from the public file, which needs",
        "the same feature columns and no label. Every setting is described by the form in Prefect's UI and in",
        "data/settings.py, teachers/settings.py and so on.",
    ],
    "ledger": [
        "What everything ever released from this dataset may spend together. Decide it once, before the first run",
        "(docs/choosing-epsilon.md); this one holds the labels and the DP-SGD baseline of one run.",
    ],
    "teachers": [
        "Each is trained on its own shard of the units. More teachers: smaller ε; larger shards: better teachers."
    ],
    "queries": ["How many public inputs the teachers are asked about; each answer costs privacy."],
    "aggregation": [
        "σ: noise on every class's votes, a sixth of the teachers unless the target ε needs more.",
        "δ: well below 1 / number of units.",
    ],
    "student": ["Learns from the released labels and the unlabelled public inputs: costs nothing more."],
    "baseline": ["DP-SGD on the private rows at the same ε, a release of its own; enabled: false leaves it out."],
}


def _commented(record: dict[str, Any], wishes: Wishes, draft: _Draft, advice: Recommendation, out: Path) -> str:
    header = [
        f"Made by `pate init` from names, types and counts. Next: pate check {out}, then pate run {out}",
        f"At these settings the labels are published with ε = {rounded_up(advice.epsilon)}, δ = {advice.delta:g}.",
        *draft.said,
        *advice.doubts,
    ]
    lines = [f"# {line}" for line in header]
    for section, values in record.items():
        lines += ["", *(f"# {line}" for line in _WORDS[section])]
        lines.append(
            yaml.safe_dump({section: values}, sort_keys=False, allow_unicode=True, default_flow_style=False, width=110)
        )
        lines[-1] = lines[-1].rstrip()
    return "\n".join(lines) + "\n"
