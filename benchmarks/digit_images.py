"""Write scikit-learn's digits as image files and as arrays: data to try the sources imagefolder and npz on.

    python benchmarks/digit_images.py ~/.cache/pate/digit-images
    pate run configs/digit-images.yaml

Under the folder: private/<class>/, public/, test/<class>/ with a PNG of 8×8 pixels for each record, named after its row
in the source, and private.npz, public.npz, test.npz with the arrays ``pixels``, ``labels`` (but not in public.npz) and
``row``. The parts are those of configs/digits.yaml.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from PIL import Image

# A script's own folder comes first, where files stand in packages' way.
sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

from data import images  # noqa: E402
from data.public import image_form  # noqa: E402
from data.settings import DataSettings  # noqa: E402
from data.split import rows_of  # noqa: E402


def write(folder: Path, settings: DataSettings, seed: int) -> None:
    """All three parts, as files and as arrays."""
    for part in ("private", "public", "test"):
        chosen = rows_of(settings, seed, part)
        if chosen is None:
            continue
        pixels = images.read(settings, chosen.part, chosen.rows, image_form(settings, seed))[:, 0]
        classes = images.labels(settings, chosen.part, chosen.rows)
        arrays = {"pixels": pixels, "row": chosen.rows} | ({} if part == "public" else {"labels": classes})
        for row, image, label in zip(chosen.rows.tolist(), pixels, classes.tolist(), strict=True):
            inside = folder / part if part == "public" else folder / part / str(label)
            inside.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(inside / f"{row:04d}.png")
        np.savez(folder / f"{part}.npz", **arrays)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write scikit-learn's digits as image files and as arrays.")
    parser.add_argument("folder", type=Path)
    write(
        parser.parse_args().folder.expanduser(),
        DataSettings(name="digits", source="digits", private=1197, public=400, test=200),
        seed=0,
    )
