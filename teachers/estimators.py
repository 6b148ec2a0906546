"""Any scikit-learn classifier as a teacher or student: ``sklearn:<import path>``."""

import importlib
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from data.errors import UserError

PREFIX = "sklearn:"


def build(path: str, params: dict[str, Any], seed: int) -> Any:
    """An unfitted classifier, e.g. ``sklearn:sklearn.ensemble.RandomForestClassifier``.

    ``random_state`` is set from the seed where the estimator takes it and ``params`` does not; ``n_jobs`` is 1 unless
    ``params`` says otherwise, since teachers run side by side. Raises UserError, in one line, for a path that cannot
    be imported, for something that is no classifier with predict_proba or predict, and for bad parameters.
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
    chosen = {}
    if "random_state" in known and "random_state" not in params:
        chosen["random_state"] = seed % (1 << 32)
    if "n_jobs" in known and "n_jobs" not in params:
        chosen["n_jobs"] = 1
    return estimator.set_params(**chosen)


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
