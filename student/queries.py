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
    """Distinct rows (Q,) int64 of the public part in the order in which they are asked; of several rounds, the first's.

    Those are as many as the first round may ask. Raises :class:`UserError` when there are fewer public inputs than
    queries, of all rounds together.
    """
    rows = len(public.features)
    count = rows if settings.count is None else settings.count
    if count > rows:
        raise UserError(f"queries.count = {count}: must be at most {rows}, the number of public inputs")
    return by_strategy(public.features, settings.strategy, -(-count // settings.rounds), stream(seed, "queries"))


def by_strategy(features: np.ndarray, strategy: str, count: int, draw: int) -> np.ndarray:
    """Rows (count,) of N >= count inputs, without a student.

    ``all`` takes the first in the source's order, ``random`` a random subset in random order, ``prototypes`` the inputs
    nearest to the centres of ``count`` clusters.
    """
    if strategy == "all":
        return np.arange(count, dtype=np.int64)
    if strategy == "random":
        return np.random.default_rng(draw).permutation(len(features))[:count].astype(np.int64)
    return prototypes(features, count, draw)


def prototypes(features: np.ndarray, count: int, draw: int) -> np.ndarray:
    """Rows (count,) of the inputs nearest to the centres of ``count`` clusters of the N inputs.

    k-means on the first principal components, by mini-batches where N is large. Asked from the largest cluster to the
    smallest: whatever prefix is answered speaks for as many inputs as it can.
    """
    points = principal_components(features, COMPONENTS).project(features)
    if count == len(points):
        return np.random.default_rng(draw).permutation(count).astype(np.int64)
    nearest = nearest_to_centres(points, count, draw)
    # Repeated inputs leave clusters empty: the rest comes from inputs not chosen yet.
    spare = np.setdiff1d(np.arange(len(points)), nearest)
    rest = np.random.default_rng(draw).permutation(spare)[: count - len(nearest)]
    return np.concatenate([nearest, rest]).astype(np.int64)


def nearest_to_centres(points: np.ndarray, count: int, draw: int, weights: np.ndarray | None = None) -> np.ndarray:
    """The point nearest to the centre of each of at most ``count`` clusters of (N, D), the heaviest cluster first.

    ``weights`` (N,), positive, say how much each point draws a centre to itself; without them all weigh the same.
    """
    seed = draw % 2**32
    if len(points) <= _WHOLE:
        clusters = KMeans(count, n_init=20 if count <= 100 else 1, max_iter=100, random_state=seed)
    else:
        clusters = MiniBatchKMeans(count, n_init=1, batch_size=_BATCH, max_iter=30, random_state=seed)
    # One thread: k-means sums its centres in the order in which threads finish.
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", ConvergenceWarning)
        owner = clusters.fit_predict(points, sample_weight=weights)
    distance = np.square(points - clusters.cluster_centers_[owner]).sum(1)
    order = np.lexsort((np.arange(len(points)), distance, owner))
    found, first = np.unique(owner[order], return_index=True)
    sizes = np.bincount(owner, weights)[found]
    return order[first][np.argsort(-sizes, kind="stable")]
