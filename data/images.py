"""Reading image sources: scikit-learn's digits and torchvision datasets, as uint8 (N, channels, height, width)."""

import importlib.util
from pathlib import Path

import numpy as np

from data.errors import UserError
from data.settings import DataSettings


def files(settings: DataSettings, part: str) -> tuple[Path, ...]:
    """The files that hold a part: what a digest of it reads."""
    if settings.source == "digits":
        spec = importlib.util.find_spec("sklearn")
        if spec is None or spec.origin is None:
            raise UserError("data.source = 'digits': scikit-learn is not installed")
        return (Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz",)
    prefix = {"train": "train", "test": "t10k"}[part]
    raw = Path(settings.root).expanduser() / settings.source / "raw"
    names = (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
    if not all((raw / name).is_file() for name in names):
        _torchvision(settings, part)
    return tuple(raw / name for name in names)


def _torchvision(settings: DataSettings, part: str) -> tuple[np.ndarray, np.ndarray]:
    # Imported here: `data` must import without torch.
    from torchvision import datasets

    root = Path(settings.root).expanduser()
    try:
        loaded = getattr(datasets, settings.source)(str(root), train=part == "train", download=True)
    except (RuntimeError, OSError) as error:
        raise UserError(
            f"data.root = {str(root)!r}: holds no {settings.source} in torchvision's layout, and no download succeeded"
        ) from error
    return loaded.data.numpy()[:, None], loaded.targets.numpy()


def count(settings: DataSettings, part: str) -> int:
    """Records of a part."""
    return len(read(settings, part)[1])


def ids(settings: DataSettings, part: str) -> np.ndarray:
    """Public ids (N,) of a part: 0-based rows of the source."""
    return np.arange(count(settings, part), dtype=np.int64)


def unit_names(settings: DataSettings, part: str) -> list[bytes]:
    """What names the unit of each image: its whole content with its label."""
    pixels, labels = read(settings, part)
    return [image.tobytes() + bytes([label]) for image, label in zip(pixels, labels.tolist(), strict=True)]


def read(settings: DataSettings, part: str) -> tuple[np.ndarray, np.ndarray]:
    """All images (N, channels, height, width) uint8 of a part in the source's order, and their labels (N,) int32."""
    if settings.source == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        # 17 grey levels spread over 0..255, so that one rule (uint8 means /255) holds for every image source.
        images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]
        return images, digits.target.astype(np.int32)
    images, labels = _torchvision(settings, part)
    return images, labels.astype(np.int32)
