"""The chart of ``pate plan --plot``: published ε against the noise, on logarithmic axes, the plan marked.

A file that stands alone, .png or .svg, in the colours of the reports' light page.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from accounting.cost import guarantee
from accounting.events import LNMax, NoisyMax
from data.store import atomic

INK, MUTED, LINE, BLUE, GREY = "#1b2126", "#5b656d", "#dfe2e0", "#0b66a8", "#7a848b"
_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "pate", "font.family": "sans-serif", "font.size": 11}
# The guarantee is certified at this many noises, from a quarter of the plan's to four times it.
_POINTS, _SPAN = 7, 4.0


def write(path: Path, build: Callable[[float], NoisyMax], event: NoisyMax, epsilon: float, delta: float) -> None:
    """Write the chart of ``build(noise)``'s guarantee around ``event``, which costs ``epsilon``, to ``path``."""
    chosen = event.scale if isinstance(event, LNMax) else event.sigma
    noises = chosen * np.geomspace(1 / _SPAN, _SPAN, _POINTS)
    events = [build(float(noise)) for noise in noises]
    exact = [guarantee(each, delta).epsilon for each in events]
    textbook = [guarantee(each, delta, "textbook").epsilon for each in events]
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 3.6), dpi=160, layout="constrained")
        axes = figure.add_subplot()
        axes.loglog(noises, textbook, color=GREY, linewidth=2, linestyle=(0, (5, 2)))
        axes.loglog(noises, exact, color=BLUE, linewidth=2.2)
        axes.plot([chosen], [epsilon], "o", color=BLUE, markersize=8)
        axes.annotate(
            f"{'b' if isinstance(event, LNMax) else 'σ'} = {chosen:g}, ε = {epsilon:.4g}",
            (chosen, epsilon),
            xytext=(-8, -8),
            textcoords="offset points",
            ha="right",
            va="top",
            color=INK,
        )
        near: Any = {"textcoords": "offset points"}
        axes.annotate("textbook bound", (noises[1], textbook[1]), (6, 3), color=MUTED, ha="left", va="bottom", **near)
        certified = (noises[-2], exact[-2])
        axes.annotate("data-independent, certified", certified, (-6, -3), color=BLUE, ha="right", va="top", **near)
        name = "scale b" if isinstance(event, LNMax) else "standard deviation σ"
        axes.set_xlabel(f"{name} of the noise on each count, in votes")
        axes.set_ylabel(f"published ε at δ = {delta:g}")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.grid(color=LINE)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            axes.spines[side].set_color(MUTED)
        axes.tick_params(which="both", colors=MUTED, labelcolor=MUTED)
        with atomic(path) as part:
            if path.suffix == ".svg":
                FigureCanvasSVG(figure).print_svg(part, metadata={"Creator": None, "Date": None})
            else:
                FigureCanvasAgg(figure).print_png(part, metadata={"Software": None})
