"""The release report and ``privacy.json``: from released files, the ledger and settings alone.

Nothing here opens a file under ``private/``, with one exception that settings must declare: where the "private" data is
a public benchmark, the non-private accuracy is shown, marked as such. All else is post-processing of what was released.
"""

import dataclasses
import math
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from accounting.conversion import rdp_budget
from accounting.cost import chart, guarantee
from accounting.events import InteractiveGNMax, LNMax, NoisyMax, Thresholded, event_to_dict
from accounting.ledger_rows import Account
from accounting.statement import Statement, privacy_statement, rounded_up
from data.artifacts import read_labels, read_queries
from data.errors import UserError
from data.public import load_public
from data.store import Run, digest, read_json, write_json, write_text
from flows import asked, balance, charges, evaluation_page, evaluation_table, figures, pages, private_report
from flows.context import Context
from flows.settings import Settings
from flows.statement import run_statement
from flows.voting import rows_with_ids
from teachers import saved

_WHAT = {
    "encoder": "the encoder of inputs, from public inputs alone, and what its features are",
    "queries.parquet": "which public inputs the teachers were asked about",
    "queries-first.parquet": "which of them the first of several rounds could ask about",
    "labels.parquet": "the released labels, null where the teachers abstained",
    "student": "the student model and how to load it",
    "baseline": "the DP-SGD baseline model and how to load it",
    "privacy.json": "the privacy statement, for machines",
    "evaluation.parquet": "every number measured on the test part, a row each",
}
# By whether the votes are compared with a student's predictions.
_THRESHOLD = (
    "votes that the noisy largest count must reach to be answered",
    "votes by which the noisy largest count must exceed what the student expects, to be answered",
)


@dataclass(frozen=True)
class Evaluated:
    """A model's accuracy on so many test inputs, with its 95% interval."""

    accuracy: float
    low: float
    high: float
    count: int


def write(context: Context) -> None:
    """Write ``private/report-private.html``, then what is released: evaluation, privacy.json and, last, the report."""
    private_report.write(context)
    write_release(context.settings, context.run)


def write_release(settings: Settings, run: Run) -> None:
    """All that the report stage releases, ``release/report.html`` last: nothing private is needed, nor its folder."""
    ledger, account = charges.open_account(settings)
    statement = run_statement(settings, ledger)
    baseline = _baseline(run.release, statement)
    rows = evaluation_table.rows_of(settings, run.release, saved.load(run.release / "student"), baseline)
    evaluation_table.write(run.release / evaluation_table.NAME, rows, statement)
    write_json(run.release / "privacy.json", privacy_statement(statement))
    write_text(run.release / "report.html", page(settings, run, statement, account))


def page(settings: Settings, run: Run, statement: Statement, account: Account) -> str:
    """The HTML of the release report. The same released files, settings and ledger give the same bytes."""
    release = run.release
    ids, labels = read_labels(release / "labels.parquet")
    loaded = saved.load(release / "student")
    found = evaluation_page.evaluation(
        evaluation_table.read(release / evaluation_table.NAME), settings.data.class_names
    )
    student, baseline = _measured(found, "student"), _measured(found, "baseline")
    nonprivate = _nonprivate(settings, run)
    rounds = asked.by_round(release / "labels.parquet")
    counts = asked.total(rounds)
    recalls = [found and found.get("student", "recall", "class", of=name) for name in settings.data.class_names]
    accuracy = tuple(row.estimate if row else None for row in recalls)
    classes = balance.class_rows(settings.data.class_names, labels, _predicted(settings, ids, loaded), accuracy)
    return pages.render(
        "report.html.j2",
        title=settings.report.title or settings.name,
        settings=settings,
        statement=statement,
        account=account,
        sentences=sentences(read_json(release / "privacy.json")["statement"]),
        chosen=len(read_queries(release / "queries.parquet")),
        asked=counts.asked,
        answered=counts.answered,
        kept=counts.kept,
        rounds=rounds,
        student=student,
        baseline=baseline,
        nonprivate=nonprivate,
        same_epsilon=_same_epsilon(statement),
        accuracy_figure=_accuracy_figure(statement, student, baseline, nonprivate),
        epsilon_figure=epsilon_figure(statement.event, statement.delta, statement.epsilon),
        per_test=isinstance(statement.event, Thresholded),
        laplace=isinstance(statement.event, LNMax),
        classes=classes,
        class_warnings=balance.warnings(classes),
        found=found,
        parameters=_parameters(settings, statement),
        floor=_floor(statement, account.order),
        files=released_files(release),
        odds=_odds(statement.epsilon),
        caught=_caught(statement.epsilon, statement.delta),
    )


def epsilon_figure(event: NoisyMax, delta: float, epsilon: float) -> Markup:
    """ε at caps from 1 answer to this run's, all else equal: the certified bound and the textbook's."""
    exact = chart(event, delta)
    caps = list(exact)
    with warnings.catch_warnings():
        # With few answers the best order is the end of the grid: valid, and close enough for a chart.
        warnings.simplefilter("ignore")
        textbook = [guarantee(dataclasses.replace(event, answers=cap), delta, "textbook").epsilon for cap in caps]
    return figures.epsilon_curve(
        np.array(caps), np.array(list(exact.values())), np.array(textbook), event.answers, epsilon
    )


def sentences(statement: str) -> list[str]:
    """The statement's sentences, for a list; together they are the whole text."""
    return re.split(r"(?<=[a-z)\d]\.) (?=[A-Z])", statement)


def released_files(release: Path) -> list[dict[str, Any]]:
    """Name, size, digest and meaning of each released file but the report itself and the manifest."""
    found = [f for f in sorted(release.iterdir()) if f.is_file() and not f.name.startswith(".")]
    return [
        {
            "name": f.name,
            "size": f.stat().st_size,
            "digest": digest(f),
            "what": _WHAT.get(f.name) or _WHAT.get(f.stem, ""),
        }
        for f in found
        if f.name not in ("report.html", "manifest.json")
    ]


def _baseline(release: Path, statement: Statement) -> saved.Loaded | None:
    """The released baseline, checked to be that of the statement's event."""
    if statement.baseline is None:
        return None
    path = release / "baseline.json"
    if read_json(path)["extra"]["event"] != event_to_dict(statement.baseline.event):
        raise UserError(f"{path}: is of another DP-SGD event than the settings'; rerun `pate baseline`")
    return saved.load(release / "baseline")


def _measured(found: evaluation_page.Evaluation | None, model: str) -> Evaluated | None:
    row = found.get(model, "accuracy") if found is not None else None
    if row is None or row.low is None or row.high is None:
        return None
    return Evaluated(row.estimate, row.low, row.high, row.count)


def _nonprivate(settings: Settings, run: Run) -> Evaluated | None:
    """The only look into ``private/``: what settings declare to be public anyway."""
    path = run.private / "nonprivate.json"
    if not settings.data.public_benchmark or not settings.baseline.enabled or not path.exists():
        return None
    record = read_json(path)["evaluation"]
    return None if record is None else Evaluated(record["accuracy"], record["low"], record["high"], record["count"])


def _same_epsilon(statement: Statement) -> bool:
    """Whether labels and baseline stand at one ε: calibration ends within a per cent below its target."""
    if statement.baseline is None:
        return False
    return math.isclose(statement.baseline.epsilon, statement.epsilon, rel_tol=0.01)


def _accuracy_figure(
    statement: Statement, student: Evaluated | None, baseline: Evaluated | None, nonprivate: Evaluated | None
) -> Markup | None:
    rows = [(f"Student\nε = {rounded_up(statement.epsilon)}", student, figures.BLUE)]
    if statement.baseline is not None:
        rows.append((f"DP-SGD baseline\nε = {rounded_up(statement.baseline.epsilon)}", baseline, figures.ORANGE))
    rows.append(("Without privacy\nno ε", nonprivate, figures.GREY))
    drawn = [figures.Accuracy(name, e.accuracy, e.low, e.high, colour) for name, e, colour in rows if e is not None]
    return figures.accuracies(drawn) if drawn else None


def _predicted(settings: Settings, ids: np.ndarray, loaded: saved.Loaded) -> np.ndarray:
    """The classes (Q,) that the student puts the queries asked in."""
    public = load_public(settings.data, settings.seed)
    return loaded.probabilities(public.features[rows_with_ids(public, ids)]).argmax(1)


def _parameters(settings: Settings, statement: Statement) -> list[tuple[str, str, str]]:
    """Name, value, meaning of what the guarantee rests on."""
    event = event_to_dict(statement.event)
    rows = [("Mechanism", str(event["mechanism"]), "noisy maximum of the teachers' votes")]
    for field, name, meaning in (
        ("sigma", "σ", "standard deviation, in votes, of the noise on each class's count"),
        ("scale", "b", "scale, in votes, of the Laplace noise on each class's count"),
        ("threshold", "T", _THRESHOLD[isinstance(statement.event, InteractiveGNMax)]),
        ("threshold_sigma", "σ_T", "standard deviation, in votes, of the test's noise"),
        ("queries", "Cap on queries", "most queries that could be asked"),
        ("answers", "Cap on answers", "most queries that could be answered; ε is paid for all of them"),
    ):
        if field in event:
            rows.append((name, pages.plain(event[field]), meaning))
    if statement.rounds > 1:
        rows.append(("Rounds", pages.plain(statement.rounds), "of queries, each later one chosen by a student"))
    if isinstance(statement.event, InteractiveGNMax):
        sure = pages.plain(settings.aggregation.sure)
        rows.append(("Confidence", sure, "probability above which the student's label is kept where the test fails"))
    rows.append(
        (
            "Teachers",
            pages.plain(settings.teachers.count),
            "one vote each a query" if statement.votes_given else "each trained on its own shard, one vote a query",
        )
    )
    if statement.order is not None:
        rows.append(("Rényi order", f"{statement.order:.4g}", "at which the labels' ε is smallest"))
    if statement.baseline is not None:
        sgd = statement.baseline.event
        rows += [
            ("DP-SGD noise", f"{sgd.noise_multiplier:.4g}", "noise multiplier of the baseline, in clipping norms"),
            ("DP-SGD sampling", pages.plain(sgd.sampling_rate), "probability that a unit enters a step"),
            ("DP-SGD steps", pages.plain(sgd.steps), "noisy steps"),
        ]
    return rows


def _floor(statement: Statement, order: float) -> float:
    """ε that the ledger shows as soon as anything at all is spent: what conversion adds at its fixed order."""
    limit = statement.ledger.limit
    return max(limit - rdp_budget(order, limit, statement.delta), 0.0)


def _odds(epsilon: float) -> str:
    return f"{math.ceil(math.exp(epsilon) * 10) / 10:,.1f}" if epsilon < 12 else f"e^{rounded_up(epsilon)}"


def _caught(epsilon: float, delta: float) -> str:
    """The most that a test with one false alarm in a hundred can detect, in per cent, rounded up.

    An (ε, δ) bound on a test's power: at most e^ε f + δ and at most 1 − e^(−ε)(1 − δ − f) at false-alarm rate f.
    """
    f = 0.01
    power = min(math.exp(min(epsilon, 50)) * f + delta, 1 - math.exp(-epsilon) * (1 - delta - f))
    return f"{math.ceil(1000 * power) / 10:.1f}"
