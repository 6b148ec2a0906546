"""What the private records would give without privacy: the ceiling that both rivals are measured against.

No differential privacy at all. Only for data that are really public (``data.public_benchmark: true``); the caller
checks that, and nothing trained here is ever released.
"""

import numpy as np

from baseline.settings import BaselineSettings
from data.examples import PrivateRecords, as_matrix
from data.streams import stream
from teachers import estimators, fitting, networks
from teachers.saved import Description, Loaded

BOOSTING = "sklearn:sklearn.ensemble.HistGradientBoostingClassifier"
_BOOSTING_PARAMS = {"learning_rate": 0.06, "max_iter": 250, "l2_regularization": 1.0}
_EXAMPLES_SEEN = 300_000
_EPOCHS = (4, 40)


def model_name(settings: BaselineSettings, shape: tuple[int, ...]) -> str:
    """``cnn`` for images, gradient boosting for tables: the stronger kind, whatever the private baseline uses.

    >>> model_name(BaselineSettings(), (104,))
    'sklearn:sklearn.ensemble.HistGradientBoostingClassifier'
    """
    return "cnn" if len(shape) == 3 and min(shape[1:]) >= 4 else BOOSTING


def train(
    records: PrivateRecords, settings: BaselineSettings, seed: int, shape: tuple[int, ...], classes: int
) -> Loaded:
    """A model fitted to all N records without privacy; ``.probabilities(features)`` gives (N, C)."""
    name = model_name(settings, shape)
    seed = stream(seed, "nonprivate")
    description = Description(name, shape, classes)
    if name == BOOSTING:
        estimator = estimators.build(BOOSTING, dict(_BOOSTING_PARAMS), seed)
        estimators.fit(estimator, as_matrix(records.features), records.labels)
        return Loaded(description, estimator)
    network = networks.build(name, shape, classes, seed)
    least, most = _EPOCHS
    fitting.fit(
        network,
        records.features,
        records.labels,
        epochs=int(np.clip(_EXAMPLES_SEEN // max(len(records.labels), 1), least, most)),
        batch_size=64,
        learning_rate=2e-3,
        weight_decay=1e-4,
        seed=stream(seed, "shuffle"),
    )
    return Loaded(description, network)
