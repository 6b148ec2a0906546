"""``pate privacy --draw``: a sanitised figure, or labels that pass a test, released under a charge on the ledger.

Neighbours: one teacher's votes changed from any class to any class, in every query: what one unit of the dataset can
do. All parameters of a release (order, ρ, σ_d, δ') are options: they must come from elsewhere than these votes. A test
is charged whether it passes or not. Charges, journals and replays: :mod:`flows.privacy_account`.
"""

import dataclasses
import hashlib
import json
import math
import re
from typing import Any

import numpy as np

from accounting import numbers, sanitized, tested
from accounting.cells import fixed_queries, grid_for
from accounting.cost import guarantee
from accounting.events import NoisyMax, Sanitized, Tested, event_to_dict
from accounting.ledger_rows import COMMITTED
from accounting.numbers import Number
from accounting.statement import ADJACENCY
from aggregation import testing
from aggregation.answering import answer_all, most_asked
from data.artifacts import write_labels
from data.errors import UserError
from flows.privacy import Options
from flows.privacy_account import Desk, Release, charged, commit, desk, drawn, say

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_FIXED = (
    "--draw needs it; what a release is drawn with is fixed beforehand, from a public pilot (pate plan --pilot) or an "
    "earlier dataset, never by looking at these votes"
)


def check_draw(options: Options) -> None:
    """Refuse draws that lack what must be fixed beforehand, or parameters out of range."""
    drawing = options.drawing
    if not (options.sanitize or options.tested):
        raise UserError("--draw: needs --sanitize or --tested: only these are drawn")
    for option, given in (("--dataset", drawing.dataset), ("--ledger", drawing.ledger)):
        if given is None:
            raise UserError(f"{option}: --draw needs it: every draw is charged to the ledger of its dataset")
    fixed = [("--order", options.order)]
    if options.tested:
        fixed += [("--rho", drawing.rho), ("--sigma-d", options.sigma_d)]
    for name, value in fixed:
        if value is None:
            raise UserError(f"{name}: {_FIXED}")
    if not _NAME.fullmatch(drawing.dataset or ""):
        raise UserError(f"--dataset = {drawing.dataset!r}: must be letters, digits, '.', '_' or '-', at most 80")
    for option, wanted in (("--plot", options.plot is not None), ("--unsound-p18", options.unsound_p18)):
        if wanted:
            raise UserError(f"{option}: is private; not with --draw, beside which nothing private is shown")
    if options.conversion != "improved":
        raise UserError(f"--conversion = {options.conversion!r}: a draw is converted by the improved one")
    for flag, with_flag, given_with in (
        ("--tested", options.tested, ("rho", "out", "tested_delta")),
        ("--sanitize", options.sanitize, ("sigma_log_scale",)),
    ):
        for field in given_with:
            if getattr(drawing, field) is not None and not with_flag:
                raise UserError(f"--{field.replace('_', '-')}: is for --draw with {flag}")
    if drawing.out is not None and drawing.out.suffix != ".parquet":
        raise UserError(f"--out = {str(drawing.out)!r}: must end in .parquet")
    events(options)


def events(options: Options) -> dict[str, Sanitized | Tested]:
    """{name: event} of the releases asked for; checked options give every parameter."""
    order, drawing = options.order or 0.0, options.drawing
    found: dict[str, Sanitized | Tested] = {}
    if options.tested:
        # In decimals, so that ten of them are what ten times the option sets aside.
        share = float(f"{tested.SHARE * options.delta:.6g}")
        fails = share if options.test_delta is None else options.test_delta
        found["tested"] = Tested(order, drawing.rho or 0.0, options.sigma_d or 0.0, fails)
    if options.sanitize:
        found["sanitized"] = sanitized.event(order, sigma_log_scale=drawing.sigma_log_scale)
    return found


def draw(options: Options, table: np.ndarray, event: NoisyMax) -> tuple[dict[str, Number], dict[str, Any]]:
    """({name: the number as released}, {draws, ledger}) of checked options.

    Args:
        options: with ``draw``.
        table: (Q, C) whole numbers of votes, all asked.
        event: the mechanism at its caps.

    Raises:
        UserError: the account cannot be opened or does not match, a vacuous test, or a parameter out of range.
        RefusedError: the budget would be exceeded: nothing was charged or drawn.
    """
    mechanism, wanted = fixed_queries(event), events(options)
    if len(table) != most_asked(mechanism):
        raise UserError("VOTES: changed while it was read; run the command again")
    votes = numbers.read([table], mechanism)
    where = numbers.positions(votes, mechanism)
    for each in wanted.values():
        # Whatever fails from here on must not depend on votes; what can fail for other reasons, fails uncharged.
        if isinstance(each, Tested):
            tested.check(each, mechanism, votes.teachers, votes.classes, votes.queries)
        else:
            grid_for(mechanism, votes.teachers, votes.classes, each.order)
    found, told = {}, []
    with desk(options.drawing, options.delta, options.tested) as at:
        releases = [at.release(name, each, options.votes, mechanism) for name, each in wanted.items()]
        digest = at.keyed("votes", hashlib.sha256(table.tobytes()).hexdigest())
        charges = charged(at, releases, options.drawing.again, digest)
        for release in releases:
            held = charges[release.name]
            replayed = held.state == COMMITTED
            if not replayed:
                if isinstance(release.event, Sanitized):
                    testing.publish(sanitized.figure(where, mechanism, release.event), release.event, release.journal)
                elif testing.passes(tested.distance(where, mechanism, release.event), release.event, release.journal):
                    answer_all(table, mechanism, release.labels)
                held = commit(at, release, held)
            found[release.name] = _number(options, at, release, votes.classes, mechanism)
            told.append(
                {"number": release.name, "run": held.run, "epsilon": held.epsilon, "when": held.when}
                | {"replayed": replayed}
            )
        standing = at.ledger.standing(at.account.name)
    ledger = dataclasses.asdict(standing)
    return found, {"draws": told, "ledger": {name: ledger[name] for name in ("dataset", "spent", "limit")}}


def _number(options: Options, at: Desk, release: Release, classes: int, mechanism: NoisyMax) -> Number:
    """The number as released, read from the journals of a committed draw."""
    held, labels = drawn(release)
    event = release.event
    if isinstance(event, Sanitized):
        epsilon = sanitized.estimate(float(held[0]) * testing.STEP, event, options.delta)
        # The noise's scale is private itself: known only where its logarithm was released too.
        known = len(held) > 1
        # The noise may have made it larger than floats hold.
        noise = math.exp(min(float(held[1]) * testing.STEP, 300.0)) * event.sigma_ss if known else None
        return Number(epsilon, event.order, True, {"noise_std": noise, "beta": event.beta, "sigma_ss": event.sigma_ss})
    found = guarantee(event, options.delta)
    passed, out = bool(held[0]), options.drawing.out
    if passed and out is not None:
        metadata = {
            "pate.epsilon": repr(found.epsilon),
            "pate.delta": repr(float(options.delta)),
            "pate.unit": at.account.unit,
            "pate.adjacency": ADJACENCY,
            "pate.mechanism": event_to_dict(mechanism)["mechanism"],
            "pate.number": "tested",
            "pate.run": release.run,
            "pate.classes": json.dumps([str(k) for k in range(classes)]),
        }
        write_labels(out, np.arange(len(labels)), labels, metadata)
    elif passed:
        say("tested: passed; give --out FILE.parquet, with the same options, for the labels")
    more = {
        "rho": event.rho,
        "sigma_d": event.sigma_d,
        "test_delta": event.delta,
        "passed": passed,
        "labels": str(out.resolve()) if passed and out is not None else None,
    }
    return Number(found.epsilon, event.order, True, more)
