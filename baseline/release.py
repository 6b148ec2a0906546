"""Writing the baseline that may be published: weights that are a function of noisy steps alone, and what they are."""

from pathlib import Path

from torch import nn

from teachers.saved import Description, save

NAME = "baseline"


def save_baseline(release_folder: Path, model: nn.Module, description: Description) -> tuple[Path, Path]:
    """``baseline.safetensors`` and ``baseline.json`` in ``release_folder``, for :func:`teachers.saved.load` to read.

    ``description.extra`` is published as it is: class names, the public encoder, the guarantee; nothing measured on
    private records.
    """
    return save(release_folder / NAME, model, description)
