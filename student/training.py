"""Training the student on released labels and the whole unlabelled public pool.

Neighbouring datasets differ in one private unit. Everything here is a function of public inputs, released labels,
settings and the seed: post-processing, which costs no privacy. No test label is read: nothing is selected by one.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from data.errors import UserError
from data.examples import Examples, as_matrix
from data.streams import stream
from student.consistency import train_consistent
from student.settings import StudentSettings
from student.spreading import neighbour_graph, spread
from student.variation import varied
from teachers import estimators, fitting, networks

Progress = Callable[[int, int], None]
LARGEST_POOL = 30_000
_LARGEST_SET = 60_000
_COPIES = 10
_LEAST_STEPS = 500
_SHARPNESS = 2.0
_IMAGE_NETWORKS = ("cnn", "convnet", "mlp")


def train(
    public: Examples,
    labelled_rows: np.ndarray,
    labels: np.ndarray,
    settings: StudentSettings,
    seed: int,
    classes: int,
    progress: Progress | None = None,
    *,
    encoder: Any | None = None,
) -> Any:
    """A trained network or scikit-learn classifier with ``classes`` outputs.

    labelled_rows, labels: (Q,) rows of the public part and their released labels, negative where the teachers
    abstained (such rows are unlabelled). ``supervised`` uses the labels alone. ``self-training`` starts from that model
    and lets each student label the pool for the next, ``iterations`` times (Lee 2013; Xie et al. 2020): sharpened
    probabilities for a network; for an estimator the surer half at first, then more. ``label-spreading`` labels the
    pool by a neighbour graph (:mod:`student.spreading`) and trains on that, labelled inputs included; ``consistency``
    goes on from there (:mod:`student.consistency`). ``encoder``: one learned from public inputs; neighbours are then
    near in its features, and a convnet starts from its weights. A pool beyond LARGEST_POOL inputs is sampled.
    ``progress(done, total)`` is called after each step. Raises UserError when no label
    was released, or when the model cannot be trained on those that were.
    """
    rows, known = _answered(len(public.features), labelled_rows, labels, classes)
    step = _counter(progress, settings)
    features, rows = _pool(public.features, rows, stream(seed, "pool"))
    draw = stream(seed, "student")
    if settings.method in ("label-spreading", "consistency"):
        points = features if encoder is None else encoder.features(features)
        graph = neighbour_graph(points, settings.neighbours, settings.components)
        belief = spread(graph, rows, known, classes, settings.alpha)
        if settings.method == "consistency":
            network = _started(settings.model, features.shape[1:], classes, draw, encoder)
            return train_consistent(network, features, belief, rows, known, settings, draw, progress)
        step()
        model = _fit_soft(features, belief, settings, draw, classes)
        step()
        return model
    model = _fit(features[rows], known, settings, draw, classes)
    step()
    if settings.method == "supervised":
        return model
    for iteration in range(1, settings.iterations + 1):
        belief = probabilities(model, features, classes).astype(np.float64)
        draw = stream(seed, "student", iteration)
        if isinstance(model, nn.Module):
            model = _fit_soft(features, _sharpened(belief), settings, draw, classes)
        else:
            share = 0.5 + 0.5 * iteration / settings.iterations
            kept, targets = _surest(belief, rows, known, share)
            model = _fit(features[kept], targets, settings, draw, classes)
        step()
    return model


def check(settings: StudentSettings, shape: tuple[int, ...], classes: int) -> None:
    """Refuse a model that could not be built for inputs of a shape, before any label is paid for."""
    estimators.refuse_unused(settings.model, settings.params, settings.precision, "student")
    if settings.model.startswith(estimators.PREFIX):
        try:
            estimators.check(settings.model, settings.params, math.prod(shape), classes)
        except UserError as error:
            raise UserError(f"student.{error}") from None
    else:
        networks.build(settings.model, shape, classes, 0)
    if settings.method == "consistency" and (len(shape) != 3 or settings.model not in _IMAGE_NETWORKS):
        raise UserError(
            f"student.method = 'consistency': is for images and student.model {' or '.join(_IMAGE_NETWORKS)}, "
            f"not for {settings.model!r} on inputs of shape {shape}"
        )


def _started(model: str, shape: tuple[int, ...], classes: int, seed: int, encoder: Any | None) -> nn.Module:
    """A new network; a convnet's backbone has the weights of an encoder that is made like it."""
    network = networks.build(model, shape, classes, seed)
    if encoder is not None and model == "convnet":
        backbone, known = network.get_submodule("0"), encoder.network.state_dict()
        own = {name: value.shape for name, value in backbone.state_dict().items()}
        if own == {name: value.shape for name, value in known.items()}:
            backbone.load_state_dict(known)
    return network


def probabilities(model: Any, features: np.ndarray, classes: int) -> np.ndarray:
    """(N, C) class probabilities of a trained model."""
    if isinstance(model, nn.Module):
        return fitting.probabilities(model, features)
    return estimators.probabilities(model, as_matrix(features), classes)


def _answered(inputs: int, rows: np.ndarray, labels: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    if len(rows) != len(labels) or (len(rows) and not (rows.min() >= 0 and rows.max() < inputs)):
        raise UserError("labels: must be one for each of the rows given, all rows of the public part")
    if len(labels) and not labels.max() < classes:
        raise UserError(f"labels: must be classes 0 to {classes - 1}, or negative for an abstention")
    answered = labels >= 0
    if not answered.any():
        raise UserError(
            "labels: none was released (the teachers abstained on every query), so no student can be trained"
        )
    return np.asarray(rows)[answered].astype(np.int64), np.asarray(labels)[answered].astype(np.int64)


def _counter(progress: Progress | None, settings: StudentSettings) -> Callable[[], None]:
    if settings.method == "consistency":
        return lambda: None
    total = {"supervised": 1, "self-training": 1 + settings.iterations, "label-spreading": 2}[settings.method]
    done = iter(range(1, total + 1))
    return lambda: progress(next(done), total) if progress is not None else None


def _pool(features: np.ndarray, rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The inputs a student learns from, in order, the labelled among them; and where the labelled ones are."""
    if len(features) <= LARGEST_POOL:
        return features, rows
    labelled = np.unique(rows)
    others = np.random.default_rng(seed).permutation(np.setdiff1d(np.arange(len(features)), labelled))
    kept = np.sort(np.concatenate([labelled, others[: max(LARGEST_POOL - len(labelled), 0)]]))
    return features[kept], np.searchsorted(kept, rows)


def _fit(features: np.ndarray, targets: np.ndarray, settings: StudentSettings, seed: int, classes: int) -> Any:
    """A model on targets (N,) classes or, a network only, (N, C) probabilities."""
    copies = 1
    if settings.variations and features.dtype == np.uint8:
        copies = int(np.clip(_LARGEST_SET // len(features), 1, min(_COPIES, settings.epochs)))
        features = varied(features, copies, seed)
        targets = np.concatenate([targets] * copies)
    if settings.model.startswith(estimators.PREFIX):
        estimator = estimators.build(settings.model, settings.params, seed)
        if not estimators.fit(estimator, as_matrix(features), targets):
            raise UserError(
                f"student.model = {settings.model!r}: cannot be trained on {len(targets) // copies} labels "
                f"of {len(np.unique(targets))} classes; choose another model or ask more queries"
            )
        return estimator
    network = networks.build(settings.model, features.shape[1:], classes, seed)
    batch_size = settings.batch_size
    # A convnet's normalisation cannot be told from a last batch of a single input.
    while settings.model == "convnet" and len(features) % batch_size == 1 and batch_size < len(features):
        batch_size += 1
    # An epoch is a pass over the inputs, varied or not: as many steps, on more various images.
    batches = -(-len(features) // batch_size)
    epochs = max(-(-settings.epochs // copies), -(-_LEAST_STEPS // batches))
    trained = fitting.fit(
        network,
        features,
        targets,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        seed=seed,
        mixed=settings.precision == "mixed",
    )
    if not trained:
        raise UserError(f"student.learning_rate = {settings.learning_rate}: training diverged; choose a lower one")
    return network


def _fit_soft(features: np.ndarray, belief: np.ndarray, settings: StudentSettings, seed: int, classes: int) -> Any:
    """A model on probabilities (N, C); an estimator gets the likeliest class of each."""
    soft = not settings.model.startswith(estimators.PREFIX)
    return _fit(features, belief.astype(np.float32) if soft else belief.argmax(1), settings, seed, classes)


def _sharpened(belief: np.ndarray) -> np.ndarray:
    """Probabilities (N, C) made surer: without it each student would be less sure than the last."""
    powers = belief**_SHARPNESS
    return powers / powers.sum(1, keepdims=True)


def _surest(belief: np.ndarray, rows: np.ndarray, labels: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows and classes to learn: what was released, and of every predicted class the ``share`` that is surest."""
    predicted, sure = belief.argmax(1), belief.max(1)
    unlabelled = np.setdiff1d(np.arange(len(belief)), rows)
    chosen = []
    for c in np.unique(predicted[unlabelled]):
        members = unlabelled[predicted[unlabelled] == c]
        ranked = members[np.argsort(-sure[members], kind="stable")]
        chosen.append(ranked[: int(np.ceil(share * len(members)))])
    added = np.concatenate(chosen) if chosen else np.zeros(0, np.int64)
    return np.concatenate([rows, added]), np.concatenate([labels, predicted[added]])
