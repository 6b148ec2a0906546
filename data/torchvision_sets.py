"""torchvision's datasets under ``data.root``, in torchvision's own layout; what is missing is downloaded.

MNIST and FashionMNIST lie in ``<root>/<name>/raw`` (idx files), SVHN in ``<root>`` (MATLAB files), CIFAR10 in
``<root>/cifar-10-batches-py``. torchvision compares SVHN's and CIFAR10's files with known checksums before it reads
them: CIFAR10's are pickles.
"""

from pathlib import Path

import numpy as np

from data.errors import UserError


def part_names(source: str) -> tuple[str, ...]:
    """The parts of a dataset."""
    return ("train", "test", "extra") if source == "SVHN" else ("train", "test")


def files(source: str, folder: str, part: str) -> tuple[Path, ...]:
    """The files that hold a part, downloaded if they are not there."""
    root = Path(folder).expanduser()
    names: tuple[str, ...]
    if source == "SVHN":
        names = (f"{part}_32x32.mat",)
    elif source == "CIFAR10":
        batches = [f"data_batch_{number}" for number in range(1, 6)] if part == "train" else ["test_batch"]
        names = tuple(f"cifar-10-batches-py/{name}" for name in batches)
    else:
        prefix = {"train": "train", "test": "t10k"}[part]
        names = tuple(f"{source}/raw/{prefix}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1"))
    if not all((root / name).is_file() for name in names):
        read(source, folder, part)
    return tuple(root / name for name in names)


def read(source: str, folder: str, part: str) -> tuple[np.ndarray, np.ndarray]:
    """All images (N, channels, height, width) uint8 of a part, and their labels (N,) int32, 0 to 9."""
    # Imported here: `data` must import without torch.
    from torchvision import datasets

    root = Path(folder).expanduser()
    dataset = getattr(datasets, source)
    chosen = {"split": part} if source == "SVHN" else {"train": part == "train"}
    try:
        loaded = dataset(str(root), download=True, **chosen)
        if source == "SVHN":
            images, labels = np.ascontiguousarray(loaded.data), loaded.labels
        elif source == "CIFAR10":
            images, labels = np.ascontiguousarray(loaded.data.transpose(0, 3, 1, 2)), loaded.targets
        else:
            images, labels = loaded.data.numpy()[:, None], loaded.targets.numpy()
    except MemoryError:
        raise
    except Exception as error:
        # Network, disk, checksum, or a file of another format: torchvision raises of many kinds.
        raise UserError(
            f"data.root = {str(root)!r}: holds no {source} in torchvision's layout, and no download succeeded"
        ) from error
    numbers = np.asarray(labels, dtype=np.int32)
    if images.dtype != np.uint8 or images.shape[:1] != numbers.shape or not np.isin(numbers, range(10)).all():
        raise UserError(f"data.root = {str(root)!r}: the files of {source} are damaged; delete them")
    return images, numbers
