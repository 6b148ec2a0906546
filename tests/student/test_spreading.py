"""Spreading released labels over the graph of public inputs."""

import numpy as np
import pytest
from scipy.sparse.linalg import eigsh

from student.components import principal_components
from student.spreading import neighbour_graph, spread
from student.variation import varied
from tests.student.digits_data import noisy, parts


def blobs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(3), 40)
    return (8 * np.eye(5)[cluster] + rng.normal(size=(120, 5))).astype(np.float32), cluster


def test_it_solves_the_equation_of_the_paper() -> None:
    """The scores are (1 − a)(I − aS)⁻¹Y, normalised: what a dense solver finds."""
    points, _ = blobs(0)
    graph = neighbour_graph(points, 5, 5)
    rows, labels = np.array([3, 50, 100, 4]), np.array([0, 1, 2, 1])
    given = np.zeros((120, 3))
    np.add.at(given, (rows, labels), 1.0)
    solved = np.linalg.solve(np.eye(120) - 0.8 * graph.toarray(), 0.2 * given)
    reached = solved.sum(1) > 1e-9
    expected = solved[reached] / solved[reached].sum(1, keepdims=True)
    np.testing.assert_allclose(spread(graph, rows, labels, 3, 0.8)[reached], expected, atol=1e-6)


def test_a_wrong_label_is_outvoted_by_its_neighbours() -> None:
    """Noise that turns one of several labels of a cluster changes no label of that cluster, its own neither."""
    points, cluster = blobs(1)
    graph = neighbour_graph(points, 7, 5)
    rows = np.arange(0, 120, 2)
    labels = cluster[rows].copy()
    labels[4] = 2
    assert np.array_equal(spread(graph, rows, labels, 3).argmax(1), cluster)


def test_a_part_that_no_label_reaches_gets_the_shares_of_the_labels() -> None:
    """Probabilities stay probabilities where the graph falls apart."""
    points, cluster = blobs(2)
    graph = neighbour_graph(points, 3, 5)
    belief = spread(graph, np.array([0, 1, 41]), np.array([0, 0, 1]), 3)
    np.testing.assert_allclose(belief.sum(1), 1.0)
    np.testing.assert_allclose(belief[cluster == 2], [[2 / 3, 1 / 3, 0]] * 40)


def test_the_graph_is_symmetric_and_spreading_converges_on_it() -> None:
    """No input is its own neighbour, weights go both ways, the largest eigenvalue is 1: repeated inputs included."""
    public, _, _ = parts(0)
    images = np.concatenate([public.features, public.features[:30]])
    for graph in (neighbour_graph(images, 5, 40), neighbour_graph(blobs(3)[0], 5, 3)):
        assert abs(graph - graph.T).max() < 1e-12
        assert graph.diagonal().max() == 0
        assert eigsh(graph, 1, which="LM", return_eigenvectors=False)[0] == pytest.approx(1.0, abs=1e-6)
        assert (graph.getnnz(1) >= 5).all()
        assert graph.nnz <= 2 * 5 * graph.shape[0]


def test_neighbours_of_vectors_are_the_nearest() -> None:
    """For a table in all its components, the graph joins each row to the rows that brute force finds nearest."""
    points, _ = blobs(4)
    distance = ((points[:, None].astype(float) - points[None]) ** 2).sum(2)
    np.fill_diagonal(distance, np.inf)
    nearest = np.argsort(distance, 1)[:, :4]
    graph = neighbour_graph(points, 4, 5).toarray()
    joined = np.zeros((120, 120), bool)
    np.put_along_axis(joined, nearest, True, 1)
    assert np.array_equal(graph > 0, joined | joined.T)


def test_small_moves_do_not_separate_images() -> None:
    """On digits, distances that allow small shifts and turns spread labels better than plain ones do."""
    moved, plain = [], []
    for seed in range(4):
        public, labels, _ = parts(seed)
        rows = np.random.default_rng(seed).permutation(400)[:40]
        given = noisy(labels[rows], 0.1, seed)
        for features, out in ((public.features, moved), (public.features.reshape(400, -1) / np.float32(255), plain)):
            out.append(float((spread(neighbour_graph(features, 5, 40), rows, given, 10).argmax(1) == labels).mean()))
    assert np.mean(moved) > np.mean(plain)


def test_principal_components_keep_the_variance_that_an_svd_finds() -> None:
    """Coordinates have the singular values of the centred inputs, whole images as well as table columns."""
    public, _, _ = parts(0)
    # Colour images of 32×32: 3,072 numbers, beyond what is decomposed exactly.
    wide = np.kron(public.features, np.ones((1, 1, 4, 4), np.uint8)).repeat(3, axis=1)
    for features in (public.features, wide, blobs(0)[0]):
        matrix = features.reshape(len(features), -1) / (255.0 if features.dtype == np.uint8 else 1.0)
        values = np.linalg.svd(matrix - matrix.mean(0), compute_uv=False)[:4]
        found = np.linalg.norm(principal_components(features, 4).project(features), axis=0)
        np.testing.assert_allclose(found, values, rtol=1e-4)


def test_variations_move_an_image_a_little() -> None:
    """The first copy is the image itself; the others differ, less than from another digit; the seed repeats them."""
    public, _, _ = parts(0)
    copies = varied(public.features, 3, 7).reshape(3, 400, -1).astype(float)
    assert np.array_equal(copies[0], public.features.reshape(400, -1))
    change = np.linalg.norm(copies[1:] - copies[0], axis=2)
    others = np.linalg.norm(np.roll(copies[0], 1, axis=0) - copies[0], axis=1)
    assert (change > 0).mean() > 0.99
    assert change.mean() < 0.7 * others.mean()
    assert np.array_equal(varied(public.features, 3, 7), varied(public.features, 3, 7))
    assert not np.array_equal(varied(public.features, 3, 7), varied(public.features, 3, 8))
