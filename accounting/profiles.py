"""epsilon from the privacy profile of a whole run (accounting.recursion): which events have one, and the cache."""

import decimal
import math

import numpy as np

from accounting import certified_cache
from accounting.events import Event, GNMax, Thresholded
from accounting.recursion import epsilons

# Raised whenever a number changes: older files are then not read.
VERSION = 3
# Processors sum in different orders, which moves epsilon by up to 1e-7 of it. Rounded up to so many digits they agree.
DIGITS = 5
# Caps of a chart of epsilon: those that a run's own computation gives by the way.
CHART_POINTS = 24


def chart_caps(answers: int) -> list[int]:
    """Caps from 1 to ``answers``, at most CHART_POINTS of them, evenly spread."""
    return np.unique(np.linspace(1, answers, min(answers, CHART_POINTS)).round().astype(int)).tolist()


def _numbers(event: Event, delta: float) -> dict[str, float]:
    """epsilon by cap for chart_caps; empty where there is no recursion for the event."""
    if not isinstance(event, GNMax | Thresholded) or not event.answers:
        return {}
    tests = (event.threshold_sigma, event.queries) if isinstance(event, Thresholded) else (None, 0)
    name = f"{event.sigma!r} {event.answers} {tests[0]!r} {tests[1]} {delta!r}"
    stored = certified_cache.read("profiles", name, VERSION)
    caps = chart_caps(event.answers)
    if set(stored) != {str(cap) for cap in caps}:
        found = epsilons(event.sigma, caps, delta, *tests)
        stored = {str(cap): _rounded_up(epsilon) for cap, epsilon in zip(caps, found, strict=True)}
        certified_cache.write("profiles", name, VERSION, stored)
    return stored


def _rounded_up(epsilon: float) -> float:
    context = decimal.Context(prec=DIGITS, rounding=decimal.ROUND_CEILING)
    return float(context.create_decimal(repr(float(epsilon))))


def recursion_epsilon(event: Event, delta: float) -> float:
    """epsilon of the event at its caps, inf where the recursion does not apply (LNMax, no answers)."""
    return _numbers(event, delta).get(str(getattr(event, "answers", 0)), math.inf)


def recursion_chart(event: Event, delta: float) -> dict[int, float]:
    """epsilon at each of chart_caps, all else equal; empty where the recursion does not apply."""
    return {int(cap): epsilon for cap, epsilon in _numbers(event, delta).items()}
