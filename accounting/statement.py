"""The privacy statement of a release: ``release/privacy.json`` and the keys that travel inside labels.parquet.

It holds the one number that may be published, the worst case at the caps (``data_independent``; never a figure that
depends on the votes), with everything needed to recompute it. Its plain words follow NIST SP 800-226: unit of privacy,
neighbouring datasets, (ε, δ), trust model, what is covered and what is not.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any, Literal

from accounting.events import (
    DPSGD,
    ConfidentGNMax,
    GNMax,
    InteractiveGNMax,
    LNMax,
    NoisyMax,
    Thresholded,
    event_from_dict,
    event_to_dict,
)
from accounting.ledger_rows import Standing
from data.errors import UserError

MECHANISMS = ("lnmax", "gnmax", "confident-gnmax", "interactive-gnmax")
METHODS = ("rdp", "recursion")
CONVERSION = "improved"
ADJACENCY = "add-remove"


@dataclass(frozen=True)
class Baseline:
    """The DP-SGD model released beside the labels: a guarantee of its own, at the same δ and for the same unit."""

    event: DPSGD
    epsilon: float
    delta: float


_ENCODERS = {
    "learned": "Features of inputs come from an encoder that was made from public inputs and settings alone, whatever "
    "the private records are: it costs nothing.",
    "given": "Features of inputs come from an encoder that was made elsewhere and taken as it was given: the figures "
    "hold if it does not depend on the private records, which was not checked here.",
}


@dataclass(frozen=True)
class Statement:
    """What is said of a release. ``epsilon`` is that of the labels alone, at the caps of ``event``.

    ``order`` is the Rényi order that gave it, None for the recursion, which has none. ``classes`` names the classes
    in the order of the integer labels; they come from settings or public data, never from private records.
    ``votes_given``: the votes were made elsewhere, so nothing can be said of who changes which. ``rounds``: of queries.
    ``encoder``: "learned" from public inputs by the run itself, "given" as a module of the user's own, or None.
    """

    run: str
    unit: str
    classes: tuple[str, ...]
    event: NoisyMax
    epsilon: float
    delta: float
    method: str
    order: float | None
    ledger: Standing
    baseline: Baseline | None = None
    votes_given: bool = False
    rounds: int = 1
    encoder: Literal["learned", "given"] | None = None


def privacy_statement(statement: Statement) -> dict[str, Any]:
    """The object of ``privacy.json``: strict JSON, every key always present, null where a mechanism has no such value.

    Errors: :class:`UserError` when a value could not stand in a statement (see :func:`validate_statement`).
    """
    event, baseline = statement.event, statement.baseline
    record: dict[str, Any] = {
        "run": statement.run,
        "epsilon": statement.epsilon,
        "delta": statement.delta,
        "unit": statement.unit,
        "adjacency": ADJACENCY,
        "mechanism": event_to_dict(event)["mechanism"],
        "sigma": getattr(event, "sigma", None),
        "threshold": getattr(event, "threshold", None),
        "threshold_sigma": getattr(event, "threshold_sigma", None),
        "scale": getattr(event, "scale", None),
        "max_queries": event.queries if isinstance(event, Thresholded) else event.answers,
        "max_answers": event.answers,
        "classes": list(statement.classes),
        "number": "data_independent",
        "method": statement.method,
        "order": statement.order,
        "conversion": CONVERSION if statement.method == "rdp" else None,
        "baseline": None,
        "ledger": {
            "dataset": statement.ledger.dataset,
            "spent": statement.ledger.spent,
            "limit": statement.ledger.limit,
        },
        "statement": _plain_words(statement),
    }
    if baseline is not None:
        record["baseline"] = {
            "epsilon": baseline.epsilon,
            "delta": baseline.delta,
            **event_to_dict(baseline.event),
        }
    validate_statement(record)
    return record


def validate_statement(record: Mapping[str, Any]) -> None:
    """Refuse a record that is not a complete and consistent statement; :class:`UserError` names key, value and rule.

    It checks form and consistency. That ε is what the mechanism costs at those caps is checked by recomputing it
    from :func:`event_of`.
    """
    missing = sorted(set(_RULES) - set(record))
    if missing:
        raise UserError(f"privacy.json: {missing[0]}: missing")
    unknown = sorted(set(record) - set(_RULES))
    if unknown:
        raise UserError(f"privacy.json: {unknown[0]}: not a key of a privacy statement")
    for key, (holds, allowed) in _RULES.items():
        _require(holds(record[key]), key, record[key], allowed)
    event_of(record)
    _require(
        (record["order"] is not None) == (record["method"] == "rdp"),
        "order",
        record["order"],
        "a number for method rdp, null for the recursion",
    )
    for part, keys in (("baseline", ("epsilon", "delta")), ("ledger", ("spent", "limit"))):
        for key in keys if record[part] is not None else ():
            value = record[part].get(key)
            _require(_is_amount(value), f"{part}.{key}", value, "a finite number, at least 0")
    if record["baseline"] is not None:
        _check_baseline(record)
    promised = _guarantee(record["epsilon"], record["delta"])
    _require(promised in record["statement"], "statement", record["statement"], f"words that say {promised}")


def _check_baseline(record: Mapping[str, Any]) -> None:
    baseline = dict(record["baseline"])
    del baseline["epsilon"]
    delta = baseline.pop("delta", None)
    _require(delta == record["delta"], "baseline.delta", delta, f"the statement's {record['delta']!r}")
    try:
        event = event_from_dict(baseline)
    except TypeError:  # a key too many or too few
        event = None
    _require(isinstance(event, DPSGD), "baseline", baseline, "a DP-SGD event with its epsilon and delta")


def event_of(record: Mapping[str, Any]) -> NoisyMax:
    """The mechanism at its caps that a statement names: what a verifier recomputes ε from."""
    used = {
        "lnmax": ("scale",),
        "gnmax": ("sigma",),
        "confident-gnmax": ("sigma", "threshold", "threshold_sigma"),
        "interactive-gnmax": ("sigma", "threshold", "threshold_sigma"),
    }[record["mechanism"]]
    for key in ("sigma", "threshold", "threshold_sigma", "scale"):
        allowed = "a finite number" if key in used else f"null for {record['mechanism']}"
        _require(_is_number(record[key]) if key in used else record[key] is None, key, record[key], allowed)
    queries, answers = record["max_queries"], record["max_answers"]
    if record["mechanism"] == "confident-gnmax":
        return ConfidentGNMax(record["sigma"], record["threshold"], record["threshold_sigma"], queries, answers)
    if record["mechanism"] == "interactive-gnmax":
        return InteractiveGNMax(record["sigma"], record["threshold"], record["threshold_sigma"], queries, answers)
    _require(queries == answers, "max_queries", queries, f"max_answers = {answers!r}: every query is answered")
    if record["mechanism"] == "lnmax":
        return LNMax(record["scale"], answers)
    return GNMax(record["sigma"], answers)


def parquet_metadata(statement: Statement) -> dict[str, str]:
    """The essentials as Parquet key-value metadata, so that labels copied away from their run still say what they are.

    Numbers are written so that ``float()`` gives them back exactly; ``pate.classes`` is a JSON list of names.
    """
    return {
        "pate.epsilon": repr(float(statement.epsilon)),
        "pate.delta": repr(float(statement.delta)),
        "pate.unit": statement.unit,
        "pate.adjacency": ADJACENCY,
        "pate.mechanism": event_to_dict(statement.event)["mechanism"],
        "pate.run": statement.run,
        "pate.classes": json.dumps(list(statement.classes), ensure_ascii=False),
    }


def _plain_words(statement: Statement) -> str:
    unit, ledger = statement.unit, statement.ledger
    sentences = [
        f"Unit of privacy: one {unit}.",
        f"Two private datasets are neighbours when one is the other with one {unit}, with all its records, added or "
        "removed (add/remove, or unbounded, adjacency).",
        _partition(statement),
        f"The labels of run {statement.run} were released by {_mechanism(statement.event)}, and satisfy "
        f"{_guarantee(statement.epsilon, statement.delta)} (epsilon, delta) in the central model: the curator sees the "
        "data, whoever receives the release does not.",
        "This is a worst-case guarantee that holds for every private dataset: it depends on the mechanism, its noise "
        "and caps fixed before the first query, not on votes or data, and was not refined by looking at them.",
        _method(statement),
        *_rounds(statement),
        "Covered: the labels, which queries were answered and which abstained, and all that is computed from them and "
        "from public data, such as the student model and its report.",
        "Not covered: the private records, teachers and votes themselves, which are not released; releases made "
        "outside the ledger; and what the data teach about a population, which is learned whether or not any one "
        f"{unit} takes part.",
    ]
    if statement.encoder is not None:
        sentences.append(_ENCODERS[statement.encoder])
    if statement.baseline is not None:
        sgd = statement.baseline.event
        sentences += [
            f"A baseline model trained by DP-SGD (noise multiplier {sgd.noise_multiplier:g}, sampling rate "
            f"{sgd.sampling_rate:g}, {sgd.steps} steps) is a release of its own with "
            f"{_guarantee(statement.baseline.epsilon, statement.baseline.delta)} for the "
            "same unit and adjacency; labels and baseline together are bounded by the ledger.",
            "Its noise and samples are drawn in floating point from generators seeded by the operating system: that "
            "part does not withstand attacks on floating-point noise and cannot be repeated.",
        ]
    sentences.append(_ledger(ledger, statement.delta))
    return " ".join(sentences)


def _partition(statement: Statement) -> str:
    unit = statement.unit
    if statement.votes_given:
        return (
            "The teachers' votes were made elsewhere and taken as they were given: the figures of the labels hold if "
            f"adding or removing one {unit} changes the votes of at most one of a fixed number of teachers, which was "
            "not checked here."
        )
    return (
        f"A keyed hash of its stable id assigns each {unit} to one of a fixed number of teachers, so adding or "
        "removing one changes at most one teacher, hence one vote of every query; replacing one is a removal and an "
        "addition, which this figure alone does not bound."
    )


def _ledger(ledger: Standing, delta: float) -> str:
    limits = ledger.limits or (ledger.limit,)
    spent = f"when this was written {rounded_up(ledger.spent)} of its limit {rounded_up(ledger.limit)} was spent."
    if len(limits) == 1:
        return (
            f"All charged releases from the private dataset {ledger.dataset}, this one included, are held by its "
            f"ledger to a total of {_guarantee(ledger.limit, delta)}, as long as its curator keeps that limit; {spent}"
        )
    shown = ", ".join(rounded_up(limit) for limit in limits)
    return (
        f"The limit of the private dataset {ledger.dataset} was changed after releases (epsilon {shown}); "
        f"what was charged under one limit is within it; all charged releases together, this one included, satisfy "
        f"{_guarantee(math.fsum(limits), len(limits) * delta)}; {spent}"
    )


def _mechanism(event: NoisyMax) -> str:
    if isinstance(event, LNMax):
        return (
            f"the Laplace noisy maximum of the teachers' votes (LNMax, scale {event.scale:g}), "
            f"at most {event.answers} answers"
        )
    if isinstance(event, GNMax):
        return (
            f"the Gaussian noisy maximum of the teachers' votes (GNMax, sigma {event.sigma:g}), "
            f"at most {event.answers} answers"
        )
    name = "Confident-GNMax" if isinstance(event, ConfidentGNMax) else "Interactive-GNMax"
    return (
        f"the {name} mechanism (sigma {event.sigma:g}, threshold {event.threshold:g}, threshold sigma "
        f"{event.threshold_sigma:g}), at most {event.queries} queries asked and {event.answers} answered"
    )


def _method(statement: Statement) -> str:
    if statement.order is not None:
        return f"It was computed by Rényi differential privacy at order {statement.order:g}."
    return (
        "It was computed from the privacy profile of the whole run: a certified recursion over the released prefix, or "
        "the exact profile of all Gaussian noise where that is smaller."
    )


def _rounds(statement: Statement) -> list[str]:
    """What a run of several rounds owes its reader: what was chosen by what, and that the figure allows for it."""
    if statement.rounds == 1:
        return []
    interactive = isinstance(statement.event, InteractiveGNMax)
    sentences = [
        f"Queries were asked in {statement.rounds} rounds under this one guarantee: those of a later round"
        + (", and the student's predictions that the test compares the votes with," if interactive else "")
        + " were computed from public data and from what earlier rounds released, and the figure holds for queries so "
        "chosen."
    ]
    if interactive:
        sentences.append(
            "A label whose source is the student is its own prediction, kept where the test found no disagreement: it "
            "costs what the test costs, which is in the figure."
        )
    return sentences


def _guarantee(epsilon: float, delta: float) -> str:
    return f"({rounded_up(epsilon)}, {float(delta)!r})-differential privacy"


def rounded_up(epsilon: float) -> str:
    """ε to four decimals, rounded up: what is shown never promises more than the number.

    >>> rounded_up(2.14291), rounded_up(0.1), rounded_up(100.0)
    ('2.143', '0.1', '100')
    """
    if not math.isfinite(epsilon):
        return "∞" if epsilon > 0 else str(epsilon)
    # Through repr: the decimal that was written, not the binary digits behind it (0.1 stays 0.1).
    up = Decimal(repr(float(epsilon))).quantize(Decimal("0.0001"), ROUND_CEILING)
    return f"{up.normalize():f}" if up else "0"


def _require(holds: bool, key: str, value: Any, allowed: str) -> None:
    if not holds:
        raise UserError(f"privacy.json: {key} = {value!r}: must be {allowed}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_amount(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_classes(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) >= 2
        and all(isinstance(name, str) for name in value)
        and len(set(value)) == len(value)
    )


_TEXT = (_is_text, "text, not empty")
_AMOUNT = (_is_amount, "a finite number, at least 0")
_COUNT = (_is_count, "a whole number, at least 0")
_NUMBER_OR_NULL = (lambda value: value is None or _is_number(value), "a finite number or null")

_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "run": _TEXT,
    "epsilon": _AMOUNT,
    "delta": (lambda value: _is_number(value) and 0 < value < 1, "between 0 and 1"),
    "unit": _TEXT,
    "adjacency": (lambda value: value == ADJACENCY, repr(ADJACENCY)),
    "mechanism": (lambda value: value in MECHANISMS, ", ".join(MECHANISMS)),
    "sigma": _NUMBER_OR_NULL,
    "threshold": _NUMBER_OR_NULL,
    "threshold_sigma": _NUMBER_OR_NULL,
    "scale": _NUMBER_OR_NULL,
    "max_queries": _COUNT,
    "max_answers": _COUNT,
    "classes": (_is_classes, "a list of at least two different names"),
    "number": (lambda value: value == "data_independent", "data_independent, the only one that is published"),
    "method": (lambda value: value in METHODS, " or ".join(METHODS)),
    "order": (lambda value: value is None or (_is_number(value) and value > 1), "a number above 1, or null"),
    "conversion": (lambda value: value in (CONVERSION, None), f"{CONVERSION}, or null"),
    "baseline": (lambda value: value is None or isinstance(value, dict), "an object or null"),
    "ledger": (lambda value: isinstance(value, dict) and _is_text(value.get("dataset")), "an object with a dataset"),
    "statement": _TEXT,
}
