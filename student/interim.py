"""The student between two rounds: trained on the labels so far, it says what to ask next and what it predicts there.

Neighbouring datasets differ in one private unit. All is a function of public inputs, released labels, settings and the
seed: what follows is adaptive composition of mechanisms that are accounted for (docs/accounting.md, section 17). This
room cannot read votes or private records (the import contracts), so neither can a choice of queries.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from aggregation.journal import Asked
from aggregation.mechanisms import parts
from data.errors import UserError
from data.examples import Examples
from data.streams import stream
from student.queries import by_strategy
from student.settings import QuerySettings, StudentSettings
from student.training import probabilities, train
from student.uncertainty import unsure_and_diverse
from teachers.encoders import Encoder

Progress = Callable[[int, int], None]


def next_round(
    public: Examples,
    rows: np.ndarray,
    labels: np.ndarray,
    number: int,
    count: int,
    queries: QuerySettings,
    settings: StudentSettings,
    seed: int,
    classes: int,
    *,
    predictions: bool,
    progress: Progress | None = None,
    encoder: Encoder | None = None,
) -> Asked:
    """What round ``number`` asks: at most ``count`` rows of the public part, none of those in ``rows``.

    rows, labels: (Q,) asked in earlier rounds and what was said of them, -1 for no label. Chosen by
    :func:`student.uncertainty.unsure_and_diverse`; where no student can be trained yet (no label, say, or a single
    class), by the strategy of the first round. ``predictions``: the student's probabilities come along, as parts.
    ``encoder``: in whose features inputs are compared, and which the student is given.
    """
    left = np.setdiff1d(np.arange(len(public.features)), rows)
    count, draw = min(count, len(left)), stream(seed, "queries", number)
    features = public.features[left]
    belief = _belief(public, features, rows, labels, settings, seed, classes, progress, encoder)
    if encoder is not None:
        features = encoder.features(features)
    if belief is None:
        return Asked(number, left[by_strategy(features, queries.strategy, count, draw)])
    chosen = unsure_and_diverse(features, belief, count, draw)
    return Asked(number, left[chosen], parts(belief[chosen]) if predictions else None)


def _belief(
    public: Examples,
    features: np.ndarray,
    rows: np.ndarray,
    labels: np.ndarray,
    settings: StudentSettings,
    seed: int,
    classes: int,
    progress: Progress | None,
    encoder: Encoder | None,
) -> np.ndarray | None:
    """The student's (N, C) probabilities of the inputs; None where none can be trained on these labels."""
    try:
        model: Any = train(public, rows, labels, settings, seed, classes, progress=progress, encoder=encoder)
    except UserError:
        return None
    belief = np.asarray(probabilities(model, features, classes), dtype=np.float64)
    # A share may exceed 1 by its last digit.
    return np.clip(belief, 0.0, 1.0) if np.isfinite(belief).all() else None
