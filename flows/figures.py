"""Charts of the reports as inline SVG: no global state, no dates or random ids, colours from the page's own palette.

Text stays text (the page's font, selectable). Colours are written as CSS variables, so that a chart follows the page
into dark mode. No text that a user chose is drawn here: class names and titles stand in HTML, where they are escaped.
"""

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Colours that only stand for variables of the page's style sheet.
_VARIABLES = {
    "#010101": "var(--ink)",
    "#020202": "var(--muted)",
    "#030303": "var(--line)",
    "#040404": "var(--blue)",
    "#050505": "var(--orange)",
    "#060606": "var(--grey)",
    "#070707": "var(--page)",
}
INK, MUTED, LINE, BLUE, ORANGE, GREY, PAGE = _VARIABLES
_WIDTH = 5.6  # inches; at a phone's width 11 pt text is still some 9 px high
_SIZE = 11
# Read by matplotlib while a figure is made and written; set for that long only.
_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "pate", "font.family": "sans-serif", "font.size": _SIZE}


@dataclass(frozen=True)
class Accuracy:
    """One row of the chart of accuracies: in [0, 1], with its interval. ``colour`` is one of this module's."""

    name: str
    accuracy: float
    low: float
    high: float
    colour: str


def accuracies(rows: Sequence[Accuracy]) -> Markup:
    """Accuracies with their intervals, one below the other on one axis."""
    figure, axes = _axes(0.75 + 0.55 * len(rows))
    for at, row in enumerate(rows):
        axes.plot([row.low, row.high], [at, at], color=row.colour, linewidth=3, alpha=0.45, solid_capstyle="round")
        axes.plot([row.accuracy], [at], "o", color=row.colour, markersize=8)
    lowest = min(row.low for row in rows)
    highest = max(row.high for row in rows)
    pad = max(0.12 * (highest - lowest), 0.005)
    axes.set_xlim(max(lowest - pad, 0.0), min(highest + pad, 1.0) + 0.002)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.6g}%"))
    axes.grid(axis="x", color=LINE)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.set_xlabel("accuracy on the test part (line: 95% interval)")
    return _svg(figure, "Accuracy of each model with its 95% interval")


@dataclass(frozen=True)
class Reliability:
    """A model's bins: mean confidence, accuracy, its interval, each in [0, 1]; ``colour`` is one of this module's."""

    name: str
    bins: tuple[tuple[float, float, float, float], ...]
    colour: str


def reliability(models: Sequence[Reliability]) -> Markup:
    """Accuracy against confidence, bin by bin: on the diagonal for a model that can be taken at its word."""
    figure, axes = _axes(3.6)
    first, low = (math.floor(20 * min(b[at] for m in models for b in m.bins)) / 20 for at in (0, 2))
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1.5, linestyle=(0, (5, 2)))
    for model in models:
        confidence, right, lows, highs = np.array(model.bins).T
        axes.vlines(confidence, lows, highs, color=model.colour, linewidth=2.5, alpha=0.35)
        axes.plot(confidence, right, "o-", color=model.colour, linewidth=1.2, markersize=5, label=model.name)
    axes.set_xlim(min(first, 0.9) - 0.01, 1.01)
    axes.set_ylim(min(low, 0.9) - 0.01, 1.02)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6))
        axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.6g}%"))
    axes.grid(color=LINE)
    axes.set_xlabel("confidence: mean probability of the predicted class")
    axes.set_ylabel("accuracy (line: 95% interval)")
    axes.legend(frameon=False, labelcolor=INK, loc="upper left")
    return _svg(figure, "Reliability: accuracy against confidence")


def epsilon_curve(answers: Array, exact: Array, textbook: Array, cap: int, epsilon: float) -> Markup:
    """Published ε against the cap on answers: the certified bound and the textbook's, this run's cap marked."""
    figure, axes = _axes(3.1)
    axes.plot(answers, textbook, color=GREY, linewidth=2, linestyle=(0, (5, 2)))
    axes.plot(answers, exact, color=BLUE, linewidth=2.2)
    axes.plot([cap], [epsilon], "o", color=BLUE, markersize=8)
    axes.vlines(cap, 0, epsilon, color=BLUE, linewidth=1, linestyle=":")
    top = float(textbook.max()) * 1.12 or 1.0
    axes.set_ylim(0, top)
    axes.set_xlim(0, cap * 1.04)
    # Named at the lines themselves: no legend to look up. Where the lines meet, the names still keep apart.
    rise, behind = 0.04 * top, {"facecolor": PAGE, "edgecolor": "none", "pad": 1.0}
    left, right = int(0.3 * len(answers)), int(0.6 * len(answers))
    over, under = (answers[right], textbook[right] + rise), (answers[left], exact[left] - rise)
    axes.text(*over, "textbook bound", color=MUTED, ha="right", va="bottom", bbox=behind, size=_SIZE)
    axes.text(*under, "data-independent, certified", color=BLUE, ha="left", va="top", bbox=behind, size=_SIZE)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.grid(axis="y", color=LINE)
    axes.set_xlabel("cap on the number of answers")
    axes.set_ylabel("published ε")
    return _svg(figure, "Published epsilon against the cap on answers")


def histogram(values: Array, label: str, bins: int = 30, whole: bool = True) -> Markup:
    """How often values fall into equal bins; for whole numbers the bins have whole widths."""
    figure, axes = _axes(2.3)
    edges = _whole_edges(values, bins) if whole else np.histogram_bin_edges(values, bins)
    counts, _ = np.histogram(values, edges)
    axes.bar(edges[:-1], counts, width=np.diff(edges) * 0.92, align="edge", color=BLUE)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.grid(axis="y", color=LINE)
    axes.set_xlabel(label)
    axes.set_ylabel("queries")
    return _svg(figure, f"Histogram: {label}")


def _whole_edges(values: Array, bins: int) -> Array:
    low, high = int(values.min()), int(values.max())
    width = max(-(-(high - low + 1) // bins), 1)
    return np.arange(low, high + width + 1, width, dtype=np.float64) - 0.5


def _axes(height: float) -> tuple[Figure, Axes]:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
    figure.patch.set_visible(False)
    axes.patch.set_visible(False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(MUTED)
    axes.tick_params(colors=MUTED, labelcolor=MUTED)
    axes.xaxis.label.set_color(MUTED)
    axes.yaxis.label.set_color(MUTED)
    axes.set_axisbelow(True)
    return figure, axes


def _svg(figure: Figure, name: str) -> Markup:
    stream = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        FigureCanvasSVG(figure).print_svg(
            stream, metadata={"Creator": None, "Date": None, "Format": None, "Type": None}
        )
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    # Inline in HTML an SVG needs no namespaces, and the page shall hold no address at all.
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    # Named groups carry ids that would repeat from chart to chart; nothing refers to them.
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    text = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font: \1 var(--font)", text)
    size = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', text)
    if size:
        text = text.replace(size[0], f'role="img" aria-label="{name}"', 1)
    return Markup(re.sub(r"\n\s*", "\n", text))
