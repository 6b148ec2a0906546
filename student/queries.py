"""Which public inputs the teachers are asked about, and in which order.

Neighbouring datasets differ in one private unit. A choice is a function of public inputs, settings and seed alone, so
it costs no privacy. The order matters: a cap on answers stops a run early, and then only a prefix was asked.
"""

import warnings

import numpy as np
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from data.errors import UserError
from data.examples import Examples
from data.streams import stream
from student.components import principal_components
from student.settings import QuerySettings

COMPONENTS = 40
_WHOLE = 20_000
_BATCH = 4_096


def choose(public: Examples, settings: QuerySettings, seed: int) -> np.ndarray:
    """Distinct rows (Q,) int64 of the public part in the order in which they are asked.

    ``all`` takes the first ``count`` in the source's order, ``random`` a random subset in random order, ``prototypes``
    the inputs nearest to the centres of ``count`` clusters. Raises :class:`UserError` when there are fewer public
    inputs than queries.
    """
    rows = len(public.features)
    count = rows if settings.count is None else settings.count
    if count > rows:
        raise UserError(f"queries.count = {count}: must be at most {rows}, the number of public inputs")
    if settings.strategy == "all":
        return np.arange(count, dtype=np.int64)
    draw = stream(seed, "queries")
    if settings.strategy == "random":
        return np.random.default_rng(draw).permutation(rows)[:count].astype(np.int64)
    return prototypes(public.features, count, draw)


def prototypes(features: np.ndarray, count: int, draw: int) -> np.ndarray:
    """Rows (count,) of the inputs nearest to the centres of ``count`` clusters of the N inputs.

    k-means on the first principal components, by mini-batches where N is large. Asked from the largest cluster to the
    smallest: whatever prefix is answered speaks for as many inputs as it can.
    """
    points = principal_components(features, COMPONENTS).project(features)
    if count == len(points):
        return np.random.default_rng(draw).permutation(count).astype(np.int64)
    seed = draw % 2**32
    if len(points) <= _WHOLE:
        clusters = KMeans(count, n_init=20 if count <= 100 else 1, max_iter=100, random_state=seed)
    else:
        clusters = MiniBatchKMeans(count, n_init=1, batch_size=_BATCH, max_iter=30, random_state=seed)
    # One thread: k-means sums its centres in the order in which threads finish.
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", ConvergenceWarning)
        owner = clusters.fit_predict(points)
    distance = np.square(points - clusters.cluster_centers_[owner]).sum(1)
    order = np.lexsort((np.arange(len(points)), distance, owner))
    found, first, sizes = np.unique(owner[order], return_index=True, return_counts=True)
    nearest = order[first][np.argsort(-sizes, kind="stable")]
    # Repeated inputs leave clusters empty: the rest comes from inputs not chosen yet.
    spare = np.setdiff1d(np.arange(len(points)), nearest)
    rest = np.random.default_rng(draw).permutation(spare)[: count - len(found)]
    return np.concatenate([nearest, rest]).astype(np.int64)
