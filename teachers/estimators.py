"""Any scikit-learn classifier as a teacher or student: ``sklearn:<import path>``."""

import contextlib
import importlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils._param_validation import InvalidParameterError

from data.errors import UserError
from data.examples import as_matrix
from teachers.settings import MODULE

PREFIX = "sklearn:"
_FILTERS = threading.Lock()


def build(path: str, params: dict[str, Any], seed: int) -> Any:
    """An unfitted classifier, e.g. ``sklearn:sklearn.ensemble.RandomForestClassifier``.

    ``random_state`` is set from the seed where the estimator takes it and ``params`` does not; ``n_jobs`` stays at
    scikit-learn's default, one core, since teachers run side by side. Raises UserError, in one line, for a path that
    cannot be imported, for something that is no classifier, and for bad parameters.
    """
    module_name, _, name = path.removeprefix(PREFIX).rpartition(".")
    shown = f"model = {path!r}"
    if module_name.partition(".")[0] != "sklearn":
        raise UserError(
            f"{shown}: must be a class of scikit-learn, e.g. sklearn:sklearn.linear_model.LogisticRegression"
        )
    try:
        kind = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError):
        raise UserError(f"{shown}: cannot be imported; give sklearn:<module>.<class>") from None
    if not isinstance(kind, type):
        raise UserError(f"{shown}: must be a class")
    try:
        estimator = kind(**params)
    except TypeError as error:
        raise UserError(f"params: {shown} does not take them ({error})") from None
    if not is_classifier(estimator) or not hasattr(estimator, "get_params"):
        raise UserError(f"{shown}: must be a classifier")
    known = estimator.get_params()
    for parameter, value in known.items():
        # What a fit prints (losses, iterations) is computed from a private shard.
        if parameter.rpartition("__")[2] == "verbose" and value:
            raise UserError(f"params: {parameter} = {value!r}: must be 0; what a fit prints would show private records")
    if "random_state" in known and "random_state" not in params:
        estimator.set_params(random_state=seed % (1 << 32))
    try:
        estimator._validate_params()
    except InvalidParameterError as error:
        raise UserError(f"params: {error}") from None
    return estimator


def refuse_unused(model: str, params: dict[str, Any], precision: str, field: str) -> None:
    """Refuse settings of ``field`` (teachers or student) that its model would ignore."""
    if model.startswith(PREFIX) and precision != "full":
        raise UserError(f"{field}.precision = {precision!r}: is for networks; {field}.model = {model!r} takes full")
    if params and not model.startswith((PREFIX, MODULE)):
        raise UserError(f"{field}.params: are for estimators and modules; {field}.model = {model!r} takes none")


def check(path: str, params: dict[str, Any], width: int, classes: int) -> None:
    """Refuse settings that no shard could be trained with, by a fit on made-up records (never on private ones).

    Without it a solver that does not go with a penalty would make every teacher untrainable, in silence. Raises
    UserError with the estimator's own first line.
    """
    generator = np.random.default_rng(0)
    rows = min(max(20 * classes, 2 * width), 2000)
    matrix = generator.random((rows, width), dtype=np.float32)
    labels = np.arange(rows) % classes
    estimator = build(path, params, 0)
    try:
        with _silent():
            estimator.fit(matrix, labels)
    except MemoryError:
        raise
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"model = {path!r}, params: does not train even on made-up records ({reason})") from None


def fit(estimator: Any, matrix: np.ndarray, labels: np.ndarray) -> bool:
    """Fit in place; False where these very records cannot be fitted. Faults of memory or disk propagate.

    One thread of a process at a time (see ``_silent``): processes, not threads, fit estimators side by side.
    """
    try:
        with _silent():
            estimator.fit(matrix, labels)
    except (MemoryError, OSError):
        raise
    except Exception:
        # The text may quote private values, and which shard it was is private too: the caller's fixed vote stands in.
        return False
    return True


def probabilities(estimator: Any, matrix: np.ndarray, classes: int) -> np.ndarray:
    """(N, C) float32 probabilities of a fitted classifier; a class it never saw has 0.

    A classifier without predict_proba gives 1 to the class it predicts.
    """
    seen = np.asarray(estimator.classes_, dtype=int)
    result = np.zeros((len(matrix), classes), dtype=np.float32)
    if not len(matrix):
        return result
    if hasattr(estimator, "predict_proba"):
        result[:, seen] = estimator.predict_proba(matrix)
    else:
        result[np.arange(len(matrix)), np.asarray(estimator.predict(matrix), dtype=int)] = 1.0
    return result


def scores(estimator: Any, features: np.ndarray, classes: int, batch: int) -> np.ndarray:
    """Probabilities (Q, C) of features (Q, *shape), ``batch`` rows at a time; NaN where it cannot predict."""
    parts = [np.zeros((0, classes), dtype=np.float32)]
    for start in range(0, len(features), batch):
        rows = as_matrix(features[start : start + batch])
        try:
            with _silent():
                parts.append(probabilities(estimator, rows, classes))
        except (MemoryError, OSError):
            raise
        except Exception:
            parts.append(np.full((len(rows), classes), np.nan, dtype=np.float32))
    return np.concatenate(parts)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """No warnings: they would tell the console about a private shard (a fit that did not converge, a rare class).

    Warning filters belong to the whole process and scikit-learn changes them itself, so threads take turns.
    """
    with _FILTERS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
