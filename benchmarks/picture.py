"""The README's picture of a finished run on images: queries with their released labels, and the accuracies.

    python benchmarks/picture.py runs/mnist docs/mnist.png

Everything drawn is released: public images, release/labels.parquet, release/student.json, release/baseline.json.
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import yaml

# A script's own folder comes first, where files stand in packages' way.
sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

from data.artifacts import read_labels  # noqa: E402
from data.public import load_public  # noqa: E402
from flows.config import build  # noqa: E402

ROWS, COLUMNS = 4, 9


def main(run: Path, out: Path) -> None:
    """Draw the picture of one run."""
    release = run / "release"
    settings = build(yaml.safe_load((run / "settings.yaml").read_text(encoding="utf-8")))
    ids, labels = read_labels(release / "labels.parquet")
    public = load_public(settings.data, settings.seed)
    rows = {value: row for row, value in enumerate(public.ids.tolist())}
    statement = json.loads((release / "privacy.json").read_text(encoding="utf-8"))

    figure = plt.figure(figsize=(10.5, 3.6), dpi=150)
    grid = figure.add_gridspec(ROWS, COLUMNS, left=0.01, right=0.53, top=0.86, bottom=0.03, hspace=0.45, wspace=0.1)
    shown = min(ROWS * COLUMNS, len(ids))
    for place, at in enumerate(np.linspace(0, len(ids) - 1, shown).round().astype(int)):
        axes = figure.add_subplot(grid[divmod(place, COLUMNS)])
        axes.imshow(np.moveaxis(public.features[rows[ids[at].item()]], 0, -1).squeeze(), cmap="gray_r")
        axes.set_axis_off()
        name = settings.data.class_names[labels[at]] if labels[at] >= 0 else "–"
        axes.set_title(name, fontsize=10, pad=2, color="#1f5fa8" if labels[at] >= 0 else "#999999")
    answered = int((labels >= 0).sum())
    figure.text(
        0.27,
        0.955,
        f"{answered} of {len(labels)} queries answered by {settings.teachers.count} teachers (–: abstained)",
        ha="center",
        fontsize=10.5,
    )
    bars = [("Student", statement["epsilon"], "student.json", "#1f5fa8")]
    if statement["baseline"] is not None:
        bars.append(("DP-SGD", statement["baseline"]["epsilon"], "baseline.json", "#d9742b"))
    axes = figure.add_axes((0.66, 0.2, 0.32, 0.62))
    for at, (name, epsilon, file, colour) in enumerate(bars):
        found = json.loads((release / file).read_text(encoding="utf-8"))["extra"]["evaluation"]
        error = [[found["accuracy"] - found["low"]], [found["high"] - found["accuracy"]]]
        axes.errorbar(found["accuracy"], at, xerr=error, fmt="o", color=colour, capsize=4, markersize=8, linewidth=2)
        axes.annotate(
            f"{found['accuracy']:.1%}", (found["accuracy"], at), (0, 9), textcoords="offset points", ha="center"
        )
        side = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
        axes.text(-0.04, at, f"{name}\nε = {epsilon:.4g}", **side)
    axes.set_yticks([])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.1%}")
    axes.spines[["left", "top", "right"]].set_visible(False)
    axes.set_xlabel("accuracy on test images (95% interval)")
    axes.set_title(f"Published at δ = {statement['delta']:g}", fontsize=10.5)
    figure.savefig(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
