"""What queries, teachers and the baseline see of their inputs where ``pretraining`` gives an encoder: its features.

Neighbouring datasets differ in one private unit. The encoder is a function of public inputs, settings and the seed, and
is applied to each record by itself, so that what follows is as private as it is on the records themselves.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from data.examples import Examples, PrivateRecords
from flows.settings import Settings

if TYPE_CHECKING:
    from teachers.encoders import Encoder


def encoder_of(settings: Settings, at: Path) -> "Encoder | None":
    """The encoder that the pretrain stage left in the files ``at``; None where the settings ask for none."""
    from teachers.encoders import load

    if not settings.pretraining.enabled:
        return None
    return load(at, settings.seed, settings.pretraining.device)


def shape_seen(settings: Settings, public: Examples) -> tuple[int, ...]:
    """The shape of one input as whoever sees features sees it: (K,), or the input's own without an encoder.

    Raises UserError for a pre-training that cannot be done.
    """
    from student.pretraining import check

    shape = public.features.shape[1:]
    if not settings.pretraining.enabled:
        return shape
    return (check(settings.pretraining, shape, len(public.features), settings.seed),)


def for_queries(settings: Settings, at: Path, public: Examples) -> Examples:
    """The public inputs as queries are chosen among them."""
    encoder = encoder_of(settings, at) if settings.queries.strategy == "prototypes" else None
    return public if encoder is None else dataclasses.replace(public, features=encoder.features(public.features))


def teachers_see_features(settings: Settings) -> bool:
    """Whether the teachers see features in place of inputs."""
    return settings.pretraining.enabled and settings.teachers.pretrained == "features"


def for_votes(settings: Settings, at: Path, features: np.ndarray) -> np.ndarray:
    """Public inputs (Q, *shape) as the teachers vote on them."""
    encoder = encoder_of(settings, at) if teachers_see_features(settings) else None
    return features if encoder is None else encoder.features(features)


def baseline_sees_features(settings: Settings) -> bool:
    """Whether the DP-SGD baseline sees features in place of inputs."""
    return settings.pretraining.enabled and settings.baseline.features


def records_for_baseline(settings: Settings, at: Path, records: PrivateRecords) -> PrivateRecords:
    """Private records as the baseline trains on them."""
    from teachers.encoders import encoded

    encoder = encoder_of(settings, at) if baseline_sees_features(settings) else None
    return records if encoder is None else encoded(records, encoder)


def inputs_for_baseline(settings: Settings, at: Path, features: np.ndarray) -> np.ndarray:
    """Public inputs as the baseline predicts on them."""
    encoder = encoder_of(settings, at) if baseline_sees_features(settings) else None
    return features if encoder is None else encoder.features(features)
