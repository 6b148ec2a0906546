"""Label spreading over a graph of nearest neighbours among public inputs.

Zhou, Bousquet, Lal, Weston and Schölkopf, "Learning with local and global consistency" (2003): with S the symmetrically
normalised weights of a k-nearest-neighbour graph and Y the released labels, F = (1 − a) (I − a S)⁻¹ Y. Labelled
inputs are clamped softly (a < 1), so that a released label that noise made wrong is outvoted by its neighbours.
"""

import numpy as np
from scipy import sparse
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from student.components import principal_components
from student.variation import fixed_variations

ALPHA = 0.9
_STEPS = 100


def neighbour_graph(features: np.ndarray, neighbours: int, components: int) -> sparse.csr_matrix:
    """(N, N) symmetrically normalised weights of the graph of the inputs' nearest neighbours.

    Distances are between principal components; between images, the least over small shifts and turns of one of them
    (a tangent distance: Simard, LeCun and Denker 1993). Weights are exp(−d²/2 s_i s_j) with s_i the distance of i to
    its last neighbour, so that dense and thin regions have one scale.
    """
    rows = len(features)
    basis = principal_components(features, components)
    copies = fixed_variations(features) if features.dtype == np.uint8 else [features]
    points = [basis.project(copy) for copy in copies]
    wanted = min(neighbours + 1, rows)
    with threadpool_limits(1):
        index = NearestNeighbors(n_neighbors=wanted)
        found = [index.fit(copy).kneighbors(points[0]) for copy in points]
    distance = np.concatenate([d for d, _ in found], 1)
    near = np.concatenate([n for _, n in found], 1)
    source = np.repeat(np.arange(rows), near.shape[1])
    # Of several copies of one neighbour the nearest stays, and of all neighbours the nearest few.
    order = np.lexsort((distance.ravel(), near.ravel(), source))
    source, target, distance = source[order], near.ravel()[order], distance.ravel()[order]
    first = np.r_[True, (source[1:] != source[:-1]) | (target[1:] != target[:-1])] & (source != target)
    source, target, distance = source[first], target[first], distance[first]
    order = np.lexsort((target, distance, source))
    source, target, distance = source[order], target[order], distance[order]
    starts = np.searchsorted(source, np.arange(rows))
    kept = np.arange(len(source)) - starts[source] < neighbours
    source, target, distance = source[kept], target[kept], distance[kept]
    scale = np.full(rows, 1e-12)
    np.maximum.at(scale, source, distance)
    weight = np.exp(-np.square(distance) / (2 * scale[source] * scale[target]))
    graph = sparse.csr_matrix((weight, (source, target)), shape=(rows, rows))
    graph = graph.maximum(graph.T)
    root = 1 / np.sqrt(np.maximum(np.asarray(graph.sum(1)).ravel(), 1e-12))
    return sparse.csr_matrix(graph.multiply(root[:, None]).multiply(root[None, :]))


def spread(
    graph: sparse.csr_matrix, labelled_rows: np.ndarray, labels: np.ndarray, classes: int, alpha: float = ALPHA
) -> np.ndarray:
    """(N, C) class probabilities of every input; a part of the graph that no label reaches gets the labels' shares."""
    target = np.zeros((graph.shape[0], classes))
    np.add.at(target, (labelled_rows, labels), 1.0)
    scores = target.copy()
    for _ in range(_STEPS):
        scores = alpha * (graph @ scores) + (1 - alpha) * target
    total = scores.sum(1, keepdims=True)
    share = np.bincount(labels, minlength=classes) / len(labels)
    return np.where(total > 1e-12, scores / np.maximum(total, 1e-12), share)
