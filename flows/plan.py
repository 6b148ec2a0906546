"""``pate plan``: what a number of answers costs with some noise, or which noise a target ε needs, before any training.

Nothing here reads private data: ε is the worst case at the caps, and a forecast rests on an assumed consensus or on a
public pilot's votes.

Defaults of the threshold test, in proportion to what is known (in the published MNIST runs with 250 teachers T = 200,
σ = 40, σ_T = 150 and 640 queries for some 283 answers):
  σ_T = 4 σ        the tests then cost about a sixteenth of what the answers do
  T   = 0.8 n      four teachers in five agree; for interactive-gnmax n/2, halfway between a student who agrees with all
                   teachers and one who agrees with none
  queries = 2 × answers
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting.events import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax, NoisyMax, Thresholded, event_to_dict
from data.errors import UserError

MECHANISMS = ("gnmax", "lnmax", "confident-gnmax", "interactive-gnmax")
TEST_NOISE = 4.0  # σ_T / σ
QUERIES_AN_ANSWER = 2
THRESHOLD = {"confident-gnmax": 0.8, "interactive-gnmax": 0.5}  # T / n
MOST_NOISE = 1e9


@dataclass(frozen=True)
class Options:
    """The command's options; None where one was not given. Noise and threshold in votes, consensus a share."""

    teachers: int
    classes: int
    delta: float
    answers: int
    mechanism: str = "gnmax"
    epsilon: float | None = None
    sigma: float | None = None
    scale: float | None = None
    queries: int | None = None
    threshold: float | None = None
    threshold_sigma: float | None = None
    consensus: float | None = None
    pilot: Path | None = None
    plot: Path | None = None


def plan(options: Options) -> dict[str, Any]:
    """The plan as one object; a value that the mechanism does not have is None.

    Raises:
        UserError: an option out of range, missing, or not of this mechanism; the message names it.
    """
    _check(options)
    build = _builder(options)
    event = build(_noise(options, build))
    from accounting.cost import guarantee

    with warnings.catch_warnings():
        # Few answers end at the grid's last order: the ε is valid.
        warnings.simplefilter("ignore")
        found = guarantee(event, options.delta)
        if options.plot is not None:
            from flows.plan_figure import write

            write(options.plot, build, event, found.epsilon, options.delta)
    result: dict[str, Any] = {
        "mechanism": event_to_dict(event)["mechanism"],
        "epsilon": found.epsilon,
        "delta": options.delta,
        "sigma": getattr(event, "sigma", None),
        "scale": getattr(event, "scale", None),
        "threshold": getattr(event, "threshold", None),
        "threshold_sigma": getattr(event, "threshold_sigma", None),
        "max_queries": event.queries if isinstance(event, Thresholded) else event.answers,
        "max_answers": event.answers,
        "method": getattr(found, "method", "rdp"),
        "teachers": options.teachers,
        "classes": options.classes,
        "expected_answered": None,
        "label_agreement": None,
        "forecast_from": None,
        "tested": None,
        "plot": None if options.plot is None else str(options.plot.resolve()),
    }
    if options.consensus is not None or options.pilot is not None:
        from flows.forecast import forecast

        result |= forecast(event, options.teachers, options.classes, options.consensus, options.pilot)
    if options.pilot is not None:
        from flows.forecast import tested_release

        result["tested"] = tested_release(event, options.pilot, options.delta, found.epsilon)
    return result


def rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The plan as labelled lines for people. ε is rounded up."""
    from accounting.statement import rounded_up

    lines = [
        ("mechanism", result["mechanism"]),
        ("ε, δ at the caps", f"{rounded_up(result['epsilon'])}, {result['delta']:g} (by {result['method']})"),
    ]
    for key, name in (
        ("sigma", "σ, noise on each count"),
        ("scale", "b, scale of the noise on each count"),
        ("threshold", "T, votes to be answered"),
        ("threshold_sigma", "σ_T, noise of the test"),
        ("max_queries", "most queries asked"),
        ("max_answers", "most answers"),
    ):
        if result[key] is not None:
            lines.append((name, f"{result[key]:g}" if isinstance(result[key], float) else str(result[key])))
    if result["expected_answered"] is not None:
        agreement = result["label_agreement"]
        lines += [
            ("expected answers", f"{result['expected_answered']:.1f}"),
            ("labels that agree with the plurality", "–" if agreement is None else f"{100 * agreement:.1f}%"),
            ("forecast from", result["forecast_from"]),
        ]
    else:
        lines.append(("forecast", "none: give --consensus SHARE, or --pilot with a public pilot's votes"))
    if result["tested"] is not None:
        tested = result["tested"]
        verdict = "pays" if tested["pays"] else "does not pay"
        lines.append(
            (
                "a tested release",
                f"{verdict}: ε {rounded_up(tested['epsilon'])}, released with a chance of "
                f"{100 * tested['pass_probability']:.1f}% where private votes are like the pilot's "
                f"(order {tested['order']:g}, ρ {tested['rho']:g}, σ_d {tested['sigma_d']:g}, "
                f"its δ {tested['test_delta']:.3g})",
            )
        )
    if result["plot"] is not None:
        lines.append(("plot", result["plot"]))
    return lines


def _check(options: Options) -> None:
    from accounting.conversion import checked_delta, checked_epsilon

    for name, count, least in (("teachers", options.teachers, 1), ("classes", options.classes, 2)):
        if count < least:
            raise UserError(f"--{name} = {count}: must be at least {least}")
    for name, number in (("answers", options.answers), ("queries", options.queries)):
        if number is not None and number < 1:
            raise UserError(f"--{name} = {number}: must be at least 1")
    if options.mechanism not in MECHANISMS:
        raise UserError(f"--mechanism = {options.mechanism!r}: must be one of {', '.join(MECHANISMS)}")
    checked_delta(options.delta)
    noise = "scale" if options.mechanism == "lnmax" else "sigma"
    foreign = "sigma" if noise == "scale" else "scale"
    if getattr(options, foreign) is not None:
        raise UserError(f"--{foreign}: is not a parameter of {options.mechanism}; give --{noise}")
    if (options.epsilon is None) == (getattr(options, noise) is None):
        raise UserError(f"--epsilon, --{noise}: give exactly one of them")
    if options.epsilon is not None:
        checked_epsilon(options.epsilon)
    for name, value in ((noise, getattr(options, noise)), ("threshold-sigma", options.threshold_sigma)):
        # `not 0 < value` also refuses NaN.
        if value is not None and not 0 < value <= MOST_NOISE:
            raise UserError(f"--{name} = {value!r}: must be above 0 and at most {MOST_NOISE:g}")
    if options.threshold is not None and not math.isfinite(options.threshold):
        raise UserError(f"--threshold = {options.threshold!r}: must be a finite number")
    if options.mechanism not in THRESHOLD:
        for name, given in (("threshold", options.threshold), ("threshold-sigma", options.threshold_sigma)):
            if given is not None:
                raise UserError(f"--{name}: is not a parameter of {options.mechanism}")
        if options.queries not in (None, options.answers):
            raise UserError(
                f"--queries = {options.queries}: must be --answers = {options.answers}, or left out: "
                f"{options.mechanism} answers every query"
            )
    elif options.queries is not None and options.queries < options.answers:
        raise UserError(f"--queries = {options.queries}: must be at least --answers = {options.answers}")
    if options.consensus is not None and options.pilot is not None:
        raise UserError("--consensus, --pilot: give at most one of them")
    if options.plot is not None and options.plot.suffix not in (".png", ".svg"):
        raise UserError(f"--plot = {str(options.plot)!r}: must end in .png or .svg")


def _builder(options: Options) -> Callable[[float], NoisyMax]:
    """The event of a noise: σ, or b of lnmax. A test's noise that is not given grows with σ."""
    answers = options.answers
    if options.mechanism == "lnmax":
        return lambda noise: LNMax(noise, answers)
    if options.mechanism == "gnmax":
        return lambda noise: GNMax(noise, answers)
    kind = ConfidentGNMax if options.mechanism == "confident-gnmax" else InteractiveGNMax
    share = THRESHOLD[options.mechanism]
    threshold = options.threshold if options.threshold is not None else round(share * options.teachers, 6)
    queries = options.queries or QUERIES_AN_ANSWER * answers

    def build(noise: float) -> NoisyMax:
        test = options.threshold_sigma or float(f"{TEST_NOISE * noise:.6g}")
        return kind(noise, float(threshold), test, queries, answers)

    return build


def _noise(options: Options, build: Callable[[float], NoisyMax]) -> float:
    given = options.scale if options.mechanism == "lnmax" else options.sigma
    if given is not None:
        return given
    from accounting.calibration import sigma_for
    from accounting.mechanism_calibration import noise_for

    assert options.epsilon is not None  # checked: exactly one of the two is given
    if options.mechanism == "gnmax":
        return sigma_for(options.epsilon, options.delta, options.answers)
    try:
        return noise_for(build, options.epsilon, options.delta)
    except UserError as error:
        if options.threshold_sigma is None:
            raise
        raise UserError(
            f"{error}, given --threshold-sigma = {options.threshold_sigma:g}: the tests alone cost more than that"
        ) from None
