"""The charts of ``pate privacy --plot``: ε against the number of queries, and what one query costs by its gap.

PRIVATE, but for the two worst cases: the curves are computed from votes, and the file says so. .png or .svg, in the
colours of the reports' light page; mode 0600.
"""

import io
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from numpy.typing import NDArray

from accounting import conversion as convert
from accounting import curves, exact, one_atom, outcomes, p18
from accounting.conversion import Conversion
from accounting.events import InteractiveGNMax, NoisyMax, Thresholded
from flows.plan_figure import BLUE, GREY, INK, LINE, MUTED

Array = NDArray[np.float64]
ORANGE, GREEN = "#b3541e", "#2f7d4f"
_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "pate", "font.family": "sans-serif", "font.size": 11}
# ε of a part of the queries at the best of these: any set of orders gives valid numbers.
ORDERS = np.array([1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 14.0, 17.0, 20.0, 25.0, 32.0, 45.0, 64.0, 100.0])
_POINTS = 200
_NAMES = ("data_dependent_p18", "data_dependent", "data_dependent_exact")
_COLOURS = dict(zip(_NAMES, (GREEN, ORANGE, BLUE), strict=True))


@dataclass(frozen=True)
class Curves:
    """At (P,) numbers of queries ``asked``, in order: {name: (P,) ε}. By gap g = 0, 1, …: {name: (G,) mean cost}."""

    asked: NDArray[np.int64]
    epsilon: dict[str, Array]
    cost: dict[str, Array]


def curves_of(
    blocks: Callable[[], Iterator[Any]],
    event: NoisyMax,
    queries: int,
    teachers: int,
    delta: float,
    conversion: Conversion,
) -> Curves:
    """The data-dependent curves of the votes in their order, block by block."""
    asked = np.unique(np.linspace(1, queries, min(queries, _POINTS)).astype(np.int64))
    sums = {name: np.zeros(len(ORDERS)) for name in _NAMES}
    at = {name: np.zeros((len(asked), len(ORDERS))) for name in _NAMES}
    gaps, total = np.zeros(teachers + 1), {name: np.zeros((teachers + 1, len(ORDERS))) for name in _NAMES}
    done = 0
    for block in blocks():
        votes, student = block if isinstance(event, InteractiveGNMax) else (block, None)
        gap = _gap(votes)
        gaps += np.bincount(gap, minlength=teachers + 1)
        inside = np.flatnonzero((asked > done) & (asked <= done + len(votes)))
        for name, costs in _costs(votes, event, student).items():
            reached = sums[name] + np.cumsum(costs, axis=0)
            at[name][inside] = reached[asked[inside] - done - 1]
            sums[name] = reached[-1]
            np.add.at(total[name], gap, costs)
        done += len(votes)
    epsilon = {
        name: np.array([convert.epsilon(row, ORDERS, delta, conversion, warn=False)[0] for row in rows])
        for name, rows in at.items()
    }
    _, order = convert.epsilon(sums[_NAMES[2]], ORDERS, delta, conversion, warn=False)
    best = int(np.flatnonzero(order == ORDERS)[0])
    with np.errstate(invalid="ignore", divide="ignore"):
        cost = {name: total[name][:, best] / gaps for name in _NAMES}
    return Curves(asked, epsilon, cost)


def _gap(votes: Array) -> NDArray[np.int64]:
    """The winner's votes less the runner-up's, (Q,)."""
    top = np.partition(votes, -2, axis=1)[:, -2:]
    return np.asarray(top[:, 1] - top[:, 0]).astype(np.int64)


def _costs(votes: Array, event: NoisyMax, student: Any) -> dict[str, Array]:
    """{name: (Q, O)} of one block."""
    rows, at = votes, np.arange(len(votes))
    if student is None:
        # The order of classes does not matter: equal histograms are looked at once.
        rows, inverse = np.unique(np.sort(votes, axis=1), axis=0, return_inverse=True)
        at = inverse.reshape(-1)
    compared = outcomes.statistic(rows, event, student) if isinstance(event, Thresholded) else None
    return {
        _NAMES[0]: p18.per_query_rdp(rows, event, ORDERS, compared)[at],
        _NAMES[1]: one_atom.query_cost(rows, event, ORDERS, True, compared)[at],
        _NAMES[2]: exact.query_cost(rows, event, ORDERS, student)[0][at],
    }


def _worst(
    event: NoisyMax, asked: NDArray[np.int64], number: curves.Number, delta: float, conversion: Conversion
) -> Array:
    """ε of the worst case if the first so many queries are asked, (P,): the caps, as far as these queries reach."""
    answer = curves.rdp_per_answer(event, ORDERS, number)
    total = np.minimum(asked, event.answers)[:, None] * answer
    if isinstance(event, Thresholded):
        total = total + asked[:, None] * curves.rdp_per_test(event, ORDERS, number)
    return np.array([convert.epsilon(row, ORDERS, delta, conversion, warn=False)[0] for row in total])


def write(
    path: Path,
    blocks: Callable[[], Iterator[Any]],
    event: NoisyMax,
    shape: tuple[int, int],
    delta: float,
    conversion: Conversion,
) -> None:
    """Write both charts of the votes that ``blocks()`` gives in their order; ``shape`` is (queries, teachers)."""
    found = curves_of(blocks, event, shape[0], shape[1], delta, conversion)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(10.4, 4.0), dpi=160, layout="constrained")
        left, right = figure.subplots(1, 2)
        worst: tuple[tuple[curves.Number, str], ...] = (("textbook", GREY), ("data_independent", INK))
        for number, colour in worst:
            values = _worst(event, found.asked, number, delta, conversion)
            left.plot(found.asked, values, color=colour, linewidth=2, linestyle=(0, (5, 2)), label=number)
        for name in _NAMES:
            left.plot(found.asked, found.epsilon[name], color=_COLOURS[name], linewidth=2, label=name)
            known = np.flatnonzero(found.cost[name] > 0)
            right.plot(known, found.cost[name][known], ".", markersize=4, color=_COLOURS[name], label=name)
        _labelled(left, "queries asked, in the order of the file", f"ε at δ = {delta:g}")
        _labelled(right, "gap: the winner's votes less the runner-up's", "mean Rényi cost of a query")
        left.set_ylim(bottom=0)
        handles, names = left.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False, fontsize=9, labelcolor=INK)
        right.set_yscale("log")
        title = "Private: computed from votes, but for the worst cases at the caps (dashed)"
        figure.suptitle(title, color=MUTED, fontsize=11)
        drawn = io.BytesIO()
        if path.suffix == ".svg":
            FigureCanvasSVG(figure).print_svg(drawn, metadata={"Creator": None, "Date": None})
        else:
            FigureCanvasAgg(figure).print_png(drawn, metadata={"Software": None})
    _write_private(path, drawn.getvalue())


def _write_private(path: Path, content: bytes) -> None:
    """Replace the file whole, never open to others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as stream:
        try:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
            Path(stream.name).replace(path)
        except BaseException:
            Path(stream.name).unlink(missing_ok=True)
            raise


def _labelled(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(color=LINE)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(MUTED)
    axes.tick_params(which="both", colors=MUTED, labelcolor=MUTED)
