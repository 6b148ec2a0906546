"""What each stage does: read its inputs, call the room, write its artifacts. One function a stage."""

import dataclasses
from typing import Any

import numpy as np

from accounting.cost import guarantee
from accounting.events import DPSGD, NoisyMax, event_to_dict
from accounting.ledger import Ledger
from accounting.ledger_rows import COMMITTED, DRAWING, Reservation
from accounting.statement import parquet_metadata
from aggregation import journal
from aggregation.answering import answer_all
from data.artifacts import read_labels, read_queries, read_votes, write_labels, write_queries, write_votes
from data.errors import UserError
from data.examples import Examples, PrivateRecords
from data.partition import partition as make_partition
from data.partition import read_partition, write_partition
from data.private import ignored_columns, load_private
from data.public import image_form, load_public, load_test, table_encoder
from data.store import digest, read_json, write_json
from flows import charges, encoding, given_votes, rounds
from flows.context import Context
from flows.settings import Settings
from flows.statement import labels_statement
from flows.voting import rows_with_ids, votes_on


def _private_records(context: Context) -> PrivateRecords:
    settings = context.settings
    encoder = table_encoder(settings.data, settings.seed)
    return load_private(settings.data, settings.seed, encoder, scratch=context.run.private)


def _public(context: Context) -> Examples:
    return load_public(context.settings.data, context.settings.seed)


def check(settings: Settings) -> None:
    """What can be found wrong with public data and settings, before anything is charged."""
    from baseline.networks import build as build_baseline
    from student.evaluation import check_groups
    from student.training import check as check_student
    from teachers.ensemble import check as check_teachers

    # How many units there are is private, but that there are fewer than teachers makes no sense.
    if settings.ledger_delta * settings.teachers.count >= 1:
        raise UserError(
            f"aggregation.delta = {settings.ledger_delta:g}: must be below 1/teachers.count, and well below 1/units: "
            "at 1/units one record may be published whole"
        )
    classes = len(settings.data.class_names)
    public = load_public(settings.data, settings.seed)
    test = load_test(settings.data, settings.seed)
    if test is not None:
        check_groups(test.groups)
    asked = charges.queries_asked(settings)
    if asked > len(public.ids):
        raise UserError(f"queries.count = {asked}: must be at most the {len(public.ids)} public inputs")
    if settings.queries.rounds > asked:
        raise UserError(f"queries.rounds = {settings.queries.rounds}: must be at most the {asked} queries")
    shape, seen = public.features.shape[1:], encoding.shape_seen(settings, public)
    votes = given_votes.file_of(settings)
    if votes is None:
        check_teachers(settings.teachers, shape if settings.teachers.pretrained == "none" else seen, classes)
    else:
        given_votes.counts(settings, votes)
    check_student(settings.student, shape, classes)
    if settings.baseline.enabled:
        build_baseline(settings.baseline, seen if settings.baseline.features else shape, classes, 0)


def pretrain(context: Context) -> None:
    """Public inputs → encoder: the same for neighbouring datasets. Released at no cost: encoder.*."""
    from student.pretraining import pretrain as learn
    from teachers.encoders import save

    settings = context.settings
    if not settings.pretraining.enabled:
        for suffix in (".safetensors", ".json"):
            context.encoder.with_suffix(suffix).unlink(missing_ok=True)
        return
    encoder = learn(_public(context), settings.pretraining, settings.seed, context.console.bar("pretrain"))
    save(context.encoder, encoder)


def partition(context: Context) -> None:
    """Private records → units → teachers. Released: nothing."""
    settings = context.settings
    records = _private_records(context)
    ignored = ignored_columns(settings.data, table_encoder(settings.data, settings.seed))
    if ignored:
        context.console.say(f"partition: the public file has no column {', '.join(ignored)}: not used")
    write_partition(
        context.run.private / "partition.parquet", make_partition(records, settings.teachers.count, settings.seed)
    )


def teach(context: Context) -> None:
    """One teacher a shard; of votes made elsewhere, all of them as counts. Released: nothing."""
    from teachers.ensemble import described, train_ensemble

    settings = context.settings
    votes = given_votes.file_of(settings)
    if votes is not None:
        context.console.say(f"teach: {settings.teachers.count} teachers' votes were made elsewhere; nothing to train")
        write_votes(context.run.private / "teachers" / "votes.parquet", given_votes.counts(settings, votes))
        return
    records = _private_records(context)
    shape, classes = records.features.shape[1:], len(settings.data.class_names)
    pretrained = settings.pretraining.enabled and settings.teachers.pretrained != "none"
    encoder = context.encoder if pretrained else None
    start = encoder if settings.teachers.pretrained == "weights" else None
    context.console.say(f"teach: {described(settings.teachers, shape, classes, start)}")
    train_ensemble(
        context.run.private / "teachers",
        records,
        read_partition(context.run.private / "partition.parquet"),
        settings.teachers,
        settings.seed,
        classes,
        key=context.draw_key,
        mapper=context.mapper,
        progress=context.console.bar("teach"),
        encoder=encoder,
    )


def queries(context: Context) -> None:
    """Which public inputs are asked about, from public data alone; of several rounds, what the first asks."""
    from student.queries import choose

    settings = context.settings
    public = _public(context)
    rows = choose(encoding.for_queries(settings, context.encoder, public), settings.queries, settings.seed)
    charges.queries_asked(settings)
    name = rounds.FIRST_QUERIES if _several(context) else "queries.parquet"
    write_queries(context.run.release / name, public.ids[rows])


def vote(context: Context) -> None:
    """Every teacher on every chosen query; of several rounds, on the first's. Released: nothing."""
    asked, votes = "queries.parquet", "votes.parquet"
    if _several(context):
        asked, votes = rounds.FIRST_QUERIES, rounds.FIRST_VOTES
    public = _public(context)
    rows = rows_with_ids(public, read_queries(context.run.release / asked))
    write_votes(context.run.private / votes, votes_on(context, public, rows))


def aggregate(context: Context) -> None:
    """Votes → labels by noisy max. Neighbours: one unit, hence one teacher's votes. The labels' event pays.

    Draw → journal → commit → release: under a charge that is not committed nothing was released but the rounds that it
    names, and a committed one names its outcome, so whatever crashed or was copied, one charge pays for one outcome.
    """
    run = context.run
    journal_path = run.private / "outcomes.journal"
    event = charges.labels_event(context.settings)
    binding = charges.binding_of(context, "aggregate", context.draw_key, event)
    ledger, bound = charges.drawn_before(context, "aggregate", binding)
    state = journal.read_rounds(journal_path)
    held = next((r for r in bound if state and r.id == state[0].reservation), None)
    if held is not None and state is not None and not _pays_for(context, held, state[1]):
        held = None
    # Read before anything is charged: a file that is missing must not cost a charge.
    inputs = rounds.read_first(context) if _several(context) else _read_votes(context)
    if held is None:
        ledger, held = charges.charge(context, "aggregate", event)
        # Header before bind: a crash between them leaves a reservation that is still free to be used.
        journal.start(journal_path, journal.Header(held.id, binding, event_to_dict(event)))
        held = ledger.bind(held.id, binding)
    elif state is not None:
        drawn = sum(len(each.outcomes) for each in state[1])
        context.console.say(f"aggregate: resumes under its charge; {drawn} journalled outcomes are replayed")
    if isinstance(inputs, rounds.First):
        rounds.answer(context, inputs, event, ledger, held)
    else:
        _answer(context, *inputs, event, ledger, held)


def _several(context: Context) -> bool:
    return context.settings.queries.rounds > 1


def _pays_for(context: Context, held: Reservation, drawn: tuple[journal.Round, ...]) -> bool:
    """Whether a charge pays for what the journal holds: nothing may have been shown under it but that."""
    if held.state == COMMITTED and context.redo:
        return False
    if _several(context):
        return rounds.known(context, held, drawn) is not None
    return held.state != COMMITTED or held.outcome == _outcome(context, held.id, drawn[0].outcomes)


def _read_votes(context: Context) -> tuple[np.ndarray, np.ndarray]:
    votes = read_votes(context.run.private / "votes.parquet")
    return votes, read_queries(context.run.release / "queries.parquet")


def _answer(
    context: Context, votes: np.ndarray, ids: np.ndarray, event: NoisyMax, ledger: Ledger, held: Reservation
) -> None:
    """A run of one round: draw, or replay, commit and release."""
    journal_path = context.run.private / "outcomes.journal"
    if held.state != COMMITTED:
        answer_all(votes, event, journal_path, progress=context.console.bar("aggregate"))
        state = journal.read(journal_path)
        ledger.commit(held.id, "" if state is None else _outcome(context, held.id, state[1]))
    drawn = journal.read(journal_path)
    outcomes = drawn[1] if drawn is not None else np.zeros(0, np.int32)
    write_labels(
        context.run.release / "labels.parquet",
        ids,
        outcomes,
        parquet_metadata(labels_statement(context.settings, ledger)),
    )


def _outcome(context: Context, reservation: str, outcomes: np.ndarray) -> str:
    """A keyed digest of the journalled outcomes: what the charge is committed for."""
    return context.keyed("outcomes", reservation, outcomes.tolist())


def _facts(context: Context) -> dict[str, Any]:
    """What a released model carries besides its weights: class names and the encoder that its inputs need."""
    settings = context.settings
    encoder = table_encoder(settings.data, settings.seed) or image_form(settings.data, settings.seed).vectors
    return {"classes": list(settings.data.class_names), "encoder": encoder.to_dict() if encoder else None}


def _evaluation(context: Context, model: Any, *, baseline: bool = False) -> dict[str, Any] | None:
    """Accuracy on the public test part, as the ``baseline`` or any other model sees it; None without a test part."""
    from student.evaluation import as_record, evaluate

    test = load_test(context.settings.data, context.settings.seed)
    if test is None or test.labels is None:
        return None
    features = test.features
    if baseline:
        features = encoding.inputs_for_baseline(context.settings, context.encoder, features)
    return as_record(evaluate(model.probabilities(features), test.labels, test.groups))


def student(context: Context) -> None:
    """Released labels and public inputs → student. Post-processing of what the labels' event paid for."""
    from student.release import save_student
    from student.training import check as check_student
    from student.training import train
    from teachers.saved import Description, Loaded

    settings = context.settings
    classes = len(settings.data.class_names)
    public = _public(context)
    check_student(settings.student, public.features.shape[1:], classes)
    ids, labels = read_labels(context.run.release / "labels.parquet")
    answered = labels >= 0
    model = train(
        public,
        rows_with_ids(public, ids[answered]),
        labels[answered],
        settings.student,
        settings.seed,
        classes,
        progress=context.console.bar("student"),
        encoder=encoding.encoder_of(settings, context.encoder),
    )
    shape = public.features.shape[1:]
    facts = _facts(context) | {
        "method": settings.student.method,
        "evaluation": _evaluation(context, Loaded(Description(settings.student.model, shape, classes), model)),
    }
    save_student(context.run.release, model, Description(settings.student.model, shape, classes, facts))


def baseline(context: Context) -> None:
    """Private records → DP-SGD model. Neighbours: one unit (one record of it is used). The DP-SGD event pays.

    The trained model is kept in ``private/baseline`` with its charge, the charge committed for that model, then the
    model released: a crash never releases two models under one charge.
    """
    from baseline.release import save_baseline
    from teachers import saved

    settings, run = context.settings, context.run
    if not settings.baseline.enabled:
        return
    event = charges.baseline_event(settings)
    binding = charges.binding_of(context, "baseline", context.draw_key, event)
    ledger, bound = charges.drawn_before(context, "baseline", binding)
    kept, outcome = _kept_baseline(context)
    held = next(
        (
            r
            for r in reversed(bound)
            if r.state == DRAWING or (r.id == kept and r.outcome == outcome and not context.redo)
        ),
        None,
    )
    # Read before anything is charged: a fault in the records must not cost a charge.
    records = None if held is not None and held.id == kept else _private_records(context)
    if held is None:
        ledger, held = charges.charge(context, "baseline", event)
        held = ledger.bind(held.id, binding)
    if records is not None:
        _train_baseline(context, event, held.id, records)
    ledger.commit(held.id, _kept_baseline(context)[1])
    model = saved.load(run.private / "baseline")
    facts = {name: value for name, value in model.description.extra.items() if name != "reservation"}
    facts["evaluation"] = _evaluation(context, model, baseline=True)
    save_baseline(run.release, model.model, dataclasses.replace(model.description, extra=facts))
    if settings.data.public_benchmark:
        _train_nonprivate(context)


def _kept_baseline(context: Context) -> tuple[str, str]:
    """The charge under which ``private/baseline`` was trained and a keyed digest of its weights; empty without one."""
    weights, page = context.run.private / "baseline.safetensors", context.run.private / "baseline.json"
    if not weights.exists() or not page.exists():
        return "", ""
    record = read_json(page)
    if record["weights"]["sha256"] != digest(weights):
        return "", ""
    return str(record["extra"].get("reservation", "")), context.keyed("weights", digest(weights))


def _train_baseline(context: Context, event: DPSGD, reservation: str, records: PrivateRecords) -> None:
    """DP-SGD's model, into ``private/baseline``, with the charge that it was drawn under."""
    from baseline.dpsgd import DISCLOSURE, train
    from baseline.networks import name_of
    from teachers import saved

    settings = context.settings
    classes = len(settings.data.class_names)
    records = encoding.records_for_baseline(settings, context.encoder, records)
    shape = records.features.shape[1:]
    model = train(
        records, event, settings.baseline, settings.seed, shape, classes, progress=context.console.bar("baseline")
    )
    name = name_of(settings.baseline, shape)
    facts = _facts(context) | {
        "reservation": reservation,
        "epsilon": guarantee(event, settings.ledger_delta).epsilon,
        "delta": settings.ledger_delta,
        "event": event_to_dict(event),
        "disclosure": DISCLOSURE,
    }
    saved.save(context.run.private / "baseline", model, saved.Description(name, shape, classes, facts))


def _train_nonprivate(context: Context) -> None:
    """What the same data give without privacy. Stays in ``private/``; shown only for a declared public benchmark."""
    from baseline import nonprivate

    settings = context.settings
    records = _private_records(context)
    classes = len(settings.data.class_names)
    loaded = nonprivate.train(records, settings.baseline, settings.seed, records.features.shape[1:], classes)
    write_json(context.run.private / "nonprivate.json", {"evaluation": _evaluation(context, loaded)})


def report(context: Context) -> None:
    """Released files, settings and ledger → report; the private report beside it stays in ``private/``."""
    from flows.report import write

    write(context)
