"""A sweep that releases nothing: for data that are declared to be a public benchmark, and for nothing else.

Teachers are trained once; the votes are then answered at every ε, and student and baseline trained on what came out, as
often as asked. Noise is that of a release (:mod:`aggregation.noise`, the operating system's entropy). There is no
charge, no journal and no release folder, so nothing of it may ever be released: neighbouring private datasets are not
protected here. Everything lies in ``<run_root>/<name>-sweep/private`` (0700). A finished trial is kept there under a
digest of its settings and inputs, so that a sweep that was interrupted goes on.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from accounting.events import NoisyMax
from aggregation.answering import most_asked
from aggregation.mechanisms import answer
from data.artifacts import read_votes, write_votes
from data.errors import UserError
from data.examples import Examples, PrivateRecords
from data.public import load_public, load_test, table_encoder
from data.store import Manifest, Run, read_json, stage_key, write_json
from data.streams import stream
from flows import work
from flows.console import Console
from flows.context import Context, key_of, run_of
from flows.encoding import encoder_of, for_queries, inputs_for_baseline, records_for_baseline
from flows.exclusive import file_held
from flows.freshness import Status, survey
from flows.settings import Settings
from flows.sharing import holder
from flows.stages import STAGES, scrubbed
from flows.sweep_points import Measured, Outcome, Point, require_public, score
from flows.voting import votes_on

VERSION = 1
# Of trials: a trial is one student, or one baseline, at one ε.
_STUDENT, _BASELINE, _NONPRIVATE = "student", "baseline", "nonprivate"
Record = dict[str, Any]


def simulate(settings: Settings, points: Sequence[Point], repetitions: int, run: Run, console: Console) -> Outcome:
    """Measure every point ``repetitions`` times in ``run``, which is a folder of the sweep and of no run.

    Raises:
        UserError: the settings do not declare the data to be a public benchmark.
    """
    require_public(settings)
    _make(run, settings)
    busy = f"another sweep of {settings.name!r} is simulated"
    with file_held(run.private / ".lock", console.say, busy), scrubbed(run, "sweep"):
        for left in run.private.rglob(".*.tmp"):
            left.unlink(missing_ok=True)
        work.check(settings)
        context = Context(settings, run, key_of(settings), "", console)
        return _measure(context, points, repetitions)


def _make(run: Run, settings: Settings) -> None:
    try:
        run.root.mkdir(parents=True, exist_ok=True)
        run.private.mkdir(mode=0o700, exist_ok=True)
        run.private.chmod(0o700)
    except OSError as error:
        raise UserError(f"run_root = {settings.run_root!r}: cannot be written ({error.strerror})") from None


def _measure(context: Context, points: Sequence[Point], repetitions: int) -> Outcome:
    keys = [survey(dataclasses.replace(context, settings=point.settings), Manifest(), STAGES) for point in points]
    trials = [
        *(((_STUDENT, at, k), keys[at]["student"].key) for at in range(len(points)) for k in range(repetitions)),
        *(
            ((_BASELINE, at, k), keys[at]["baseline"].key)
            for at, point in enumerate(points)
            for k in range(repetitions)
            if point.baseline is not None
        ),
        ((_NONPRIVATE, 0, 0), stage_key({"baseline": keys[0]["partition"].key}, [_test_of(keys[0])], VERSION)),
    ]
    pages = {trial: _page(context.run, trial[0], key, trial[2]) for trial, key in trials}
    missing = [trial for trial, page in pages.items() if not page.exists()]
    if missing:
        _run(context, points, keys[0], {trial: pages[trial] for trial in missing}, len(pages))
    else:
        context.console.say("sweep: every trial was simulated before: reused")
    found = {trial: read_json(page) for trial, page in pages.items()}
    measured = []
    for at, point in enumerate(points):
        students = [found[_STUDENT, at, k] for k in range(repetitions)]
        baselines = [found[_BASELINE, at, k] for k in range(repetitions) if point.baseline is not None]
        asked, answered = (float(np.mean([each[name] for each in students])) for name in ("asked", "answered"))
        measured.append(Measured(point, asked, answered, score(students), score(baselines)))
    return Outcome(tuple(measured), score([found[_NONPRIVATE, 0, 0]]))


def _test_of(statuses: Mapping[str, Status]) -> str:
    return dict(statuses["student"].inputs).get("test", "")


def _page(run: Run, kind: str, key: str, repetition: int) -> Path:
    name = stage_key({kind: key}, [repetition], VERSION)
    return run.private / "trials" / f"{kind}-{name[:32]}.json"


def _run(
    context: Context,
    points: Sequence[Point],
    statuses: Mapping[str, Status],
    missing: Mapping[tuple[str, int, int], Path],
    total: int,
) -> None:
    """Run the trials that are missing and keep each."""
    settings = context.settings
    public, test = load_public(settings.data, settings.seed), load_test(settings.data, settings.seed)
    if test is None or test.labels is None:
        raise UserError("data.test: must be labelled")
    kinds = {kind for kind, _, _ in missing}
    # Learned once; the same for every repetition, which differ in what follows it.
    context = _pretrained(context, statuses)
    rows, votes = np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
    if _STUDENT in kinds:
        runs = [run_of(each) for each in (settings, *(point.settings for point in points))]
        rows, votes = _votes(context, public, statuses, runs)
    records = None
    if kinds - {_STUDENT}:
        from data.private import load_private

        table = table_encoder(settings.data, settings.seed)
        records = load_private(settings.data, settings.seed, table, scratch=context.run.private)
    progress = context.console.bar("sweep")
    done = total - len(missing)
    progress(done, total)
    for (kind, at, k), page in missing.items():
        # The first repetition is trained as `pate run` trains; the others differ in their streams.
        seed = settings.seed if k == 0 else stream(settings.seed, "sweep", k)
        if kind == _STUDENT:
            point = points[at]
            record = _student(context, point, answered(votes, point.event), public, rows, test, seed)
        else:
            assert records is not None
            record = _rival(context, points[at], records, test, seed, private=kind == _BASELINE)
        write_json(page, record)
        done += 1
        progress(done, total)


def _pretrained(context: Context, statuses: Mapping[str, Status]) -> Context:
    """The context with the encoder that the settings ask for, learned here unless an earlier sweep left it."""
    context = dataclasses.replace(context, encoder_at=context.run.private / f"encoder-{statuses['pretrain'].key[:32]}")
    if context.settings.pretraining.enabled and not context.encoder.with_suffix(".json").exists():
        work.pretrain(context)
    return context


def answered(votes: np.ndarray, event: NoisyMax) -> np.ndarray:
    """Outcomes of one drawing of the mechanism on votes (Q, C): labels, -1 for an abstention. Not journalled."""
    return answer(votes[: most_asked(event)], event, event.answers)


def _student(
    context: Context, point: Point, outcomes: np.ndarray, public: Examples, rows: np.ndarray, test: Examples, seed: int
) -> Record:
    from student.training import train
    from teachers.saved import Description, Loaded

    settings = point.settings
    classes = len(settings.data.class_names)
    known = outcomes >= 0
    counts = {"asked": len(outcomes), "answered": int(known.sum())}
    try:
        model = train(
            public,
            rows[: len(outcomes)][known],
            outcomes[known],
            settings.student,
            seed,
            classes,
            encoder=encoder_of(settings, context.encoder),
        )
    except UserError as error:
        context.console.say(f"ε = {point.target:g}: no student: {error}")
        return {"accuracy": None} | counts
    described = Description(settings.student.model, public.features.shape[1:], classes)
    return _evaluated(Loaded(described, model).probabilities, test) | counts


def _rival(
    context: Context, point: Point, records: PrivateRecords, test: Examples, seed: int, *, private: bool
) -> Record:
    """The DP-SGD baseline, or the model without privacy."""
    from baseline import dpsgd, nonprivate
    from baseline.networks import name_of
    from teachers.saved import Description, Loaded

    settings = point.settings
    shape, classes = records.features.shape[1:], len(settings.data.class_names)
    if not private:
        return _evaluated(nonprivate.train(records, settings.baseline, seed, shape, classes).probabilities, test)
    assert point.baseline is not None
    records = records_for_baseline(settings, context.encoder, records)
    seen = inputs_for_baseline(settings, context.encoder, test.features)
    shape, test = records.features.shape[1:], dataclasses.replace(test, features=seen)
    model = dpsgd.train(records, point.baseline, settings.baseline, seed, shape, classes)
    return _evaluated(Loaded(Description(name_of(settings.baseline, shape), shape, classes), model).probabilities, test)


def _evaluated(probabilities: Callable[[np.ndarray], np.ndarray], test: Examples) -> Record:
    from student.evaluation import as_record, evaluate

    assert test.labels is not None
    return as_record(evaluate(probabilities(test.features), test.labels, test.groups))


def _votes(
    context: Context, public: Examples, statuses: Mapping[str, Status], runs: Sequence[Run]
) -> tuple[np.ndarray, np.ndarray]:
    """Rows (Q,) of the public part that are asked about, and their votes (Q, C): of one of the runs, or made here."""
    from student.queries import choose

    settings, run = context.settings, context.run
    rows = choose(for_queries(settings, context.encoder, public), settings.queries, settings.seed)
    path = run.private / f"votes-{statuses['vote'].key[:32]}.parquet"
    if path.exists():
        return rows, read_votes(path)
    other = holder(context, statuses, runs)
    if other is not None:
        context.console.say(f"sweep: the votes are those of run {other.name}")
        return rows, read_votes(other.private / "votes.parquet")
    work.partition(context)
    work.teach(dataclasses.replace(context, draw_key=statuses["teach"].draw_key))
    votes = votes_on(context, public, rows)
    write_votes(path, votes)
    return rows, votes
