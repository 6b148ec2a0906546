"""``teachers.model: votes:<file>``: votes that were made elsewhere, by teachers of any kind.

The file holds a row for each input of ``data.public``, in the order in which that part lists them: C counts that sum to
n = teachers.count, or one label a teacher, n of them. Nothing is trained; the votes on the chosen queries are taken
from it. Neighbouring datasets: one unit changes one vote of each row. That is what the guarantee rests on, and nothing
here can see it: each unit's records must have gone to one teacher only. The file is private.
"""

from pathlib import Path

import numpy as np

from data.errors import UserError
from data.public import load_public
from flows.settings import Settings
from flows.votes_file import blocks, counts_of
from teachers.settings import VOTES

OPTION = "teachers.model"


def file_of(settings: Settings) -> Path | None:
    """The file of votes; None where teachers are trained here. Raises UserError where it is not there."""
    model = settings.teachers.model
    if not model.startswith(VOTES):
        return None
    path = Path(model.removeprefix(VOTES)).expanduser()
    if not path.is_file():
        raise UserError(f"{OPTION} = {model!r}: no such file")
    return path


def counts(settings: Settings, path: Path) -> np.ndarray:
    """Vote counts (rows of data.public, C) int64 of the whole file.

    Raises UserError, which names the file and the rule and no value, row or count, for anything but such votes.
    """
    teachers, classes = settings.teachers.count, len(settings.data.class_names)
    inputs = len(load_public(settings.data, settings.seed).ids)
    named = f"{OPTION} = {settings.teachers.model!r}"
    found = [_counted(block, teachers, classes, named) for block in blocks(path, option=OPTION)]
    if sum(map(len, found)) != inputs:
        raise UserError(f"{named}: must have a row for each of the {inputs} inputs of data.public, in their order")
    return np.concatenate(found)


def _counted(block: np.ndarray, teachers: int, classes: int, named: str) -> np.ndarray:
    if block.shape[1] not in (classes, teachers):
        raise UserError(
            f"{named}: must have {classes} columns of counts (data.classes), or {teachers} of labels (teachers.count)"
        )
    if not (np.isfinite(block).all() and (block == np.round(block)).all() and (block >= 0).all()):
        raise UserError(f"{named}: must hold whole numbers that are not negative")
    if block.shape[1] == classes:
        if not (block.sum(axis=1) == teachers).all():
            raise UserError(f"{named}: every row of counts must sum to teachers.count = {teachers}")
        return block.astype(np.int64)
    if not (block < classes).all():
        raise UserError(f"{named}: every label must be below the number of classes, {classes}")
    return counts_of(block, classes)
