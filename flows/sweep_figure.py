"""The picture of ``pate sweep``: accuracy against ε on a logarithmic axis, student and DP-SGD with their 95% intervals.

A file that stands alone, in the colours of the reports' light page; a simulated one says so in the picture itself.
"""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from flows.sweep_points import Outcome, Score

INK, MUTED, LINE, BLUE, ORANGE, GREY = "#1b2126", "#5b656d", "#dfe2e0", "#0b66a8", "#b4530a", "#7a848b"
_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "pate", "font.family": "sans-serif", "font.size": 11}
# The two models' intervals stand side by side: by this factor left and right of their ε.
_APART = 1.012
# Least distance of two names at the right edge, as a share of the height.
_LEAST_GAP = 0.065
# ε closer to the one before than this share of the width are not written below the axis.
_LEAST_SPACE = 0.06
# Letters of a line below the picture.
_WRAP = 96


def draw(path: Path, kind: Literal["png", "svg"] | str, outcome: Outcome, note: str, mark: str | None) -> None:
    """Write the picture to ``path``; ``note``: lines below it; ``mark``: what it is not to be mistaken for."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 4.6), dpi=160, layout="constrained")
        axes = figure.add_subplot()
        axes.set_xscale("log")
        named = [
            _curve(axes, [(m.point.epsilon, m.student) for m in outcome.measured], "student", BLUE, 1 / _APART),
            _curve(
                axes,
                [(m.point.baseline_epsilon or m.point.epsilon, m.baseline) for m in outcome.measured],
                "DP-SGD",
                ORANGE,
                _APART,
            ),
        ]
        if outcome.nonprivate is not None:
            axes.axhline(outcome.nonprivate.accuracy, color=GREY, linewidth=2, linestyle=(0, (5, 2)))
            named.append((outcome.nonprivate.accuracy, "without privacy", MUTED))
        _frame(axes, [measured.point.target for measured in outcome.measured])
        _name(axes, [each for each in named if each is not None])
        if mark is not None:
            axes.set_title(mark, loc="left", color=INK, size=12, weight="bold")
        lines = "\n".join(textwrap.fill(line, _WRAP) for line in note.splitlines())
        figure.supxlabel(lines, x=0.01, ha="left", fontsize=8.5, color=MUTED)
        if kind == "svg":
            FigureCanvasSVG(figure).print_svg(path, metadata={"Creator": None, "Date": None})
        else:
            FigureCanvasAgg(figure).print_png(path, metadata={"Software": None})


def _curve(
    axes: Axes, scores: Sequence[tuple[float, Score | None]], name: str, colour: str, shift: float
) -> tuple[float, str, str] | None:
    """One model's accuracies; gives (height, name, colour) of its right end, None where there is nothing to draw."""
    drawn = [(epsilon * shift, score) for epsilon, score in scores if score is not None]
    if not drawn:
        return None
    for at, score in drawn:
        axes.plot([at, at], [score.low, score.high], color=colour, linewidth=3, alpha=0.4, solid_capstyle="round")
    axes.plot([at for at, _ in drawn], [s.accuracy for _, s in drawn], "o-", color=colour, linewidth=2, markersize=6)
    return drawn[-1][1].accuracy, name, colour


def _frame(axes: Axes, targets: Sequence[float]) -> None:
    low, high = min(targets), max(targets)
    axes.set_xlim(low / 1.15, high * 1.15)
    axes.set_xticks(list(targets), _spaced(targets))
    axes.xaxis.set_minor_locator(NullLocator())
    bottom, top = axes.get_ylim()
    axes.set_ylim(max(bottom, 0.0), min(top, 1.02))
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g}%"))
    axes.set_xlabel("published ε (logarithmic): smaller is more private")
    axes.set_ylabel("accuracy on the test part")
    axes.grid(color=LINE)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(MUTED)
    axes.tick_params(which="both", colors=MUTED, labelcolor=MUTED)
    axes.xaxis.label.set_color(MUTED)
    axes.yaxis.label.set_color(MUTED)


def _spaced(targets: Sequence[float]) -> list[str]:
    """What is written below each tick: nothing where there is no room beside the last."""
    width, last = math.log(max(targets) * 1.15) - math.log(min(targets) / 1.15), -math.inf
    written = []
    for target in targets:
        room = math.log(target) - last >= _LEAST_SPACE * width
        last = math.log(target) if room else last
        written.append(f"{target:g}" if room else "")
    return written


def _name(axes: Axes, named: Sequence[tuple[float, str, str]]) -> None:
    """Names at the right ends of their lines, pushed apart where the lines meet."""
    bottom, top = axes.get_ylim()
    limit = 1 + _LEAST_GAP
    for height, name, colour in sorted(named, reverse=True):
        limit = min((height - bottom) / (top - bottom), limit - _LEAST_GAP)
        axes.text(1.015, limit, name, transform=axes.transAxes, color=colour, va="center", clip_on=False)
