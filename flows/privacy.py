"""``pate privacy``: every number of ACCOUNTING's kinds for anybody's votes. For the curator's eyes.

Two of the numbers are worst cases at the caps and may be published. The others are computed from the votes, and what
they are computed from is private: none of them may be shown to anybody else, the planned ones included. ``--draw``
releases a sanitised figure or a test's outcome under a charge (:mod:`flows.privacy_draw`); then nothing private is
shown beside it, nor computed before it is charged, so that neither output nor an error betrays what was not paid for.
"""

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from accounting.events import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, NoisyMax
from data.errors import UserError
from flows.votes_file import blocks, counts_of

MECHANISMS = ("lnmax", "gnmax", "confident-gnmax", "interactive-gnmax")
CONVERSIONS = ("improved", "classic")
MOST_NOISE = 1e9
_PARAMETERS = {
    "lnmax": ("scale",),
    "gnmax": ("sigma",),
    "confident-gnmax": ("sigma", "threshold", "threshold_sigma"),
    "interactive-gnmax": ("sigma", "threshold", "threshold_sigma", "student"),
}


@dataclass(frozen=True)
class DrawOptions:
    """Where and how a draw is charged; None where an option was not given.

    ``unit``, ``limit`` (ε) and ``tested_delta`` open the dataset's account at first use. ``rho`` and
    ``sigma_log_scale`` are parameters of the releases, ``out`` takes the labels of a passed test.
    """

    dataset: str | None = None
    ledger: str | None = None
    run_root: Path | None = None
    unit: str | None = None
    limit: float | None = None
    tested_delta: float | None = None
    rho: float | None = None
    sigma_log_scale: float | None = None
    out: Path | None = None
    again: bool = False


@dataclass(frozen=True)
class Options:
    """The command's options; None where one was not given. Noise and threshold in votes."""

    votes: Path
    mechanism: str = "confident-gnmax"
    sigma: float | None = None
    scale: float | None = None
    threshold: float | None = None
    threshold_sigma: float | None = None
    queries: int | None = None
    max_answers: int | None = None
    delta: float = 1e-5
    sanitize: bool = False
    tested: bool = False
    order: float | None = None
    sigma_d: float | None = None
    test_delta: float | None = None
    conversion: str = "improved"
    unsound_p18: bool = False
    labels: bool = False
    classes: int | None = None
    student: Path | None = None
    plot: Path | None = None
    draw: bool = False
    drawing: DrawOptions = dataclasses.field(default_factory=DrawOptions)


def privacy(options: Options) -> dict[str, Any]:
    """The numbers as one object; see :func:`check` for what is refused.

    PRIVATE but for the two worst cases; with ``draw`` it holds these and what was drawn alone.

    Raises:
        UserError: an option out of range, missing, or not of this mechanism; or votes that are none. One line that
            names the option, or file and rule, and nothing of the votes.
        RefusedError: a draw that the dataset's budget does not allow.
    """
    check(options)
    from accounting import numbers
    from accounting.numbers import Number

    with _named(options):
        votes = numbers.read(vote_blocks(options), event_of(options, 1, 1))
    if options.queries is not None and votes.queries < options.queries:
        raise UserError(f"--queries = {options.queries}: must be at most the number of rows of VOTES")
    event = event_of(options, votes.queries, _answers(options, votes.queries))
    wanted = numbers.Wanted(
        sanitized=options.sanitize,
        tested=options.tested,
        unsound_p18=options.unsound_p18,
        order=options.order,
        sigma_d=options.sigma_d,
        test_delta=options.test_delta,
        conversion="classic" if options.conversion == "classic" else "improved",
    )
    with warnings.catch_warnings():
        # An order at the end of the grid: valid, and not the reader's concern.
        warnings.simplefilter("ignore")
        answered: float | None = None
        drawn: dict[str, Any] = {"draws": None, "ledger": None}
        if options.draw:
            from flows.privacy_draw import draw

            table = np.concatenate(list(vote_blocks(options))).astype(np.int64)
            found = numbers.worst_cases(event, options.delta, wanted.conversion)
            released, drawn = draw(options, table, event)
            found = {name: {**found, **released}[name] for name in numbers.NAMES if name in {**found, **released}}
        else:
            found = numbers.numbers(votes, event, options.delta, wanted)
            answered = numbers.expected_answered(votes, event)
        if options.plot is not None:
            from flows.privacy_figure import write

            shape = votes.queries, votes.teachers
            write(options.plot, lambda: vote_blocks(options), event, shape, options.delta, wanted.conversion)

    def shown(number: Number) -> dict[str, Any]:
        return {
            "epsilon": number.epsilon if math.isfinite(number.epsilon) else None,
            "order": number.order,
            "publishable": number.publishable,
            **number.more,
        }

    return {
        "queries": votes.queries,
        "max_answers": event.answers,
        "teachers": votes.teachers,
        "classes": votes.classes,
        "delta": options.delta,
        "mechanism": options.mechanism,
        "conversion": options.conversion,
        "expected_answered": answered,
        "epsilon": {name: shown(number) for name, number in found.items()},
        **drawn,
        "plot": None if options.plot is None else str(options.plot.resolve()),
    }


def event_of(options: Options, queries: int, answers: int) -> NoisyMax:
    """The mechanism of checked options at these caps."""
    if options.mechanism == "lnmax":
        return LNMax(float(options.scale or 0), answers)
    if options.mechanism == "gnmax":
        return GNMax(float(options.sigma or 0), answers)
    assert options.sigma is not None
    assert options.threshold is not None
    assert options.threshold_sigma is not None
    kind = ConfidentGNMax if options.mechanism == "confident-gnmax" else InteractiveGNMax
    return kind(float(options.sigma), float(options.threshold), float(options.threshold_sigma), queries, answers)


def _answers(options: Options, queries: int) -> int:
    """The cap on answers: as given, else every query."""
    if options.max_answers is None:
        return queries
    if options.max_answers > queries:
        raise UserError(f"--max-answers = {options.max_answers}: must be at most the number of queries")
    if options.mechanism in ("lnmax", "gnmax") and options.max_answers != queries:
        raise UserError(
            f"--max-answers = {options.max_answers}: must be the number of queries, or left out: "
            f"{options.mechanism} answers every query"
        )
    return options.max_answers


@contextlib.contextmanager
def _named(options: Options) -> Iterator[None]:
    """Errors about votes and predictions name their file."""
    try:
        yield
    except UserError as error:
        for field, file in (("votes", options.votes), ("student", options.student)):
            if str(error).startswith(f"{field}: "):
                name = "VOTES" if field == "votes" else "--student"
                raise UserError(f"{name} = {str(file)!r}{str(error).removeprefix(field)}") from None
        raise


def vote_blocks(options: Options) -> Iterator[Any]:
    """Counts (B, C) in blocks of the queries asked, in order; for Interactive-GNMax with the student's (B, C).

    What it raises of votes begins with ``votes: ``, of predictions with ``student: ``.
    """
    counts = _counts(options)
    if options.student is None:
        yield from counts
        return
    predicted = blocks(options.student, options.queries, "--student")
    left, right = np.zeros((0, 0)), np.zeros((0, 0))
    while True:
        left = left if len(left) else next(counts, left)
        right = right if len(right) else next(predicted, right)
        rows = min(len(left), len(right))
        if not rows:
            break
        yield left[:rows], right[:rows]
        left, right = left[rows:], right[rows:]
    if len(left) or len(right):
        raise UserError("student: must have a row for each query of VOTES, and no other")


def _counts(options: Options) -> Iterator[np.ndarray]:
    for block in blocks(options.votes, options.queries):
        yield block if options.classes is None else counts_of(block, options.classes)


def check(options: Options) -> None:
    """Refuse what is out of range, missing, or not of this mechanism, before any file is read."""
    if options.mechanism not in MECHANISMS:
        raise UserError(f"--mechanism = {options.mechanism!r}: must be one of {', '.join(MECHANISMS)}")
    mechanism = options.mechanism
    for name in ("scale", "sigma", "threshold", "threshold_sigma", "student"):
        given, option = getattr(options, name), f"--{name.replace('_', '-')}"
        if name in _PARAMETERS[mechanism] and given is None:
            raise UserError(f"{option}: {mechanism} needs it")
        if name not in _PARAMETERS[mechanism] and given is not None:
            raise UserError(f"{option}: is not a parameter of {mechanism}")
    for name in ("scale", "sigma", "threshold_sigma"):
        value = getattr(options, name)
        # `not 0 < value` also refuses NaN.
        if value is not None and not 0 < value <= MOST_NOISE:
            raise UserError(f"--{name.replace('_', '-')} = {value!r}: must be above 0 and at most {MOST_NOISE:g}")
    if options.threshold is not None and not math.isfinite(options.threshold):
        raise UserError(f"--threshold = {options.threshold!r}: must be a finite number")
    if not 0 < options.delta < 1:
        raise UserError(f"--delta = {options.delta!r}: must be above 0 and below 1")
    for name, count in (("queries", options.queries), ("max-answers", options.max_answers)):
        if count is not None and count < 1:
            raise UserError(f"--{name} = {count}: must be at least 1")
    if options.queries is not None:
        _answers(options, options.queries)
    if options.conversion not in CONVERSIONS:
        raise UserError(f"--conversion = {options.conversion!r}: must be one of {', '.join(CONVERSIONS)}")
    _check_input(options)
    _check_releases(options)


def _check_input(options: Options) -> None:
    if options.labels != (options.classes is not None):
        raise UserError("--labels, --classes: give both (one label a teacher, and how many classes there are) or none")
    if options.classes is not None and options.classes < 2:
        raise UserError(f"--classes = {options.classes}: must be at least 2")
    if options.plot is not None and options.plot.suffix not in (".png", ".svg"):
        raise UserError(f"--plot = {str(options.plot)!r}: must end in .png or .svg")


def _check_releases(options: Options) -> None:
    for option, given in (
        ("--sanitize", options.sanitize),
        ("--tested", options.tested),
        ("--unsound-p18", options.unsound_p18),
    ):
        if given and options.mechanism not in ("gnmax", "confident-gnmax"):
            raise UserError(f"{option}: is for gnmax and confident-gnmax, for which alone it is proven")
    if options.order is not None and not (options.sanitize or options.tested):
        raise UserError("--order: binds --sanitize and --tested alone; the other numbers take their best order")
    if options.order is not None and not 1 < options.order < math.inf:
        raise UserError(f"--order = {options.order!r}: must be a finite number above 1")
    for option, value in (("--sigma-d", options.sigma_d), ("--test-delta", options.test_delta)):
        if value is not None and not options.tested:
            raise UserError(f"{option}: is a parameter of --tested")
    if options.sigma_d is not None and not 0 < options.sigma_d < math.inf:
        raise UserError(f"--sigma-d = {options.sigma_d!r}: must be a finite number above 0")
    if options.test_delta is not None and not 0 < options.test_delta < options.delta:
        raise UserError(f"--test-delta = {options.test_delta!r}: must be above 0 and below --delta {options.delta!r}")
    if options.draw:
        from flows.privacy_draw import check_draw

        check_draw(options)
        return
    for field in dataclasses.fields(DrawOptions):
        if getattr(options.drawing, field.name) not in (None, False):
            raise UserError(f"--{field.name.replace('_', '-')}: is for --draw alone")
