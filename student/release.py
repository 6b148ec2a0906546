"""The released student: weights and one JSON page that holds all that is needed to load it and predict.

``release/student.safetensors`` (a network) or ``student.skops`` (a scikit-learn classifier), and ``student.json``:
model, input shape, classes and their names, and for tables and vectors the encoder with its public vocabulary and
scaling.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.encoding import TableEncoder
from data.errors import UserError
from data.vectors import VectorEncoder
from teachers import saved
from teachers.saved import Description, Loaded

STUDENT = "student"


def describe(
    model: str,
    shape: Sequence[int],
    class_names: Sequence[str],
    encoder: TableEncoder | VectorEncoder | None = None,
) -> Description:
    """The page of a student: ``model`` as in the settings, ``shape`` of one input, C names, the inputs' encoder."""
    facts = {"classes": list(class_names), "encoder": None if encoder is None else encoder.to_dict()}
    return Description(model, tuple(int(n) for n in shape), len(class_names), facts)


def save_student(release_folder: Path, model: Any, description: Description) -> tuple[Path, Path]:
    """Write the weights, then the page, each whole or not at all; returns both paths.

    Files of a former student of another kind are removed, so that a folder never holds two students.
    """
    weights, page = saved.save(release_folder / STUDENT, model, description)
    for suffix in (".safetensors", ".skops"):
        former = release_folder / (STUDENT + suffix)
        if former != weights:
            former.unlink(missing_ok=True)
    return weights, page


def load_student(release_folder: Path) -> Loaded:
    """The student of a release folder. Raises UserError naming a file that is missing or corrupt."""
    return saved.load(release_folder / STUDENT)


def class_names(student: Loaded) -> tuple[str, ...]:
    """The C names, in the order of the columns of its probabilities."""
    names = student.description.extra.get("classes")
    if not isinstance(names, list) or len(names) != student.description.classes:
        raise UserError(f"{STUDENT}.json: is corrupt (does not name its {student.description.classes} classes)")
    return tuple(str(name) for name in names)


def encoder_of(student: Loaded) -> TableEncoder | VectorEncoder | None:
    """The encoder of a table's columns or of vectors; None for images."""
    record = student.description.extra.get("encoder")
    if record is None:
        return None
    try:
        encoder = VectorEncoder.from_dict(record) if "mean" in record else TableEncoder.from_dict(record)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{STUDENT}.json: is corrupt (not an encoder of inputs)") from None
    if (encoder.width,) != student.description.shape:
        raise UserError(f"{STUDENT}.json: is corrupt (its encoder does not make inputs of its shape)")
    return encoder
