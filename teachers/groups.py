"""Which teachers are trained as one computation: fixed groups by number.

A kernel of linear algebra may round differently for another number of matrices, so a group's shape must never depend
on records, chunks, workers or the machine's memory. Group k of size G holds the teachers kG to (k + 1)G - 1, up to the
ensemble's count; G follows from the settings and the input's shape alone. A place without a teacher to train stays
empty, it does not make the group smaller.
"""

import math
from typing import Literal

from teachers import estimators
from teachers.fitting import device_of, spread
from teachers.settings import MODULE, NETWORKS, TeacherSettings

Strategy = Literal["loop", "vectorised"]

# Numbers that a group's step works on: 2^21 floats (8 MiB) stay near a core; a GPU wants much at once.
_NUMBERS = {"cpu": 1 << 21, "cuda": 1 << 28}
_MOST = {"cpu": 32, "cuda": 1024}
# Of each parameter: itself, its gradient, AdamW's two moments, the value before the step.
_COPIES = 5
# Of each input number in a batch: itself and what the layers make of it.
_ACTIVATIONS = {"logistic": 2, "mlp": 4, "cnn": 32}


def strategy_of(settings: TeacherSettings) -> Strategy:
    """How the teachers are trained: one after another, or a group in one computation.

    ``auto``, measured on a CPU: many small matrices gain from one call (ten times), small convolutions lose (0.7).
    On a GPU, where a call costs more than small arithmetic, all are vectorised; that was not measured. A user's own
    module, of which nothing is known, and estimators are trained one after another.
    """
    if settings.model.startswith(estimators.PREFIX):
        return "loop"
    if settings.strategy != "auto":
        return settings.strategy
    if settings.model.startswith(MODULE):
        return "loop"
    small = settings.model != "cnn" and settings.pretrained != "weights"
    return "vectorised" if small or device_of(settings.device) != "cpu" else "loop"


def group_size(settings: TeacherSettings, shape: tuple[int, ...], parameters: int) -> int:
    """G, for networks of so many parameters: ``teachers.group``, or what the budget of numbers allows.

    Without the setting the groups of an ensemble are as equal as can be. 1 where teachers are trained in a loop.
    """
    if strategy_of(settings) == "loop":
        return 1
    if settings.group is not None:
        return min(settings.group, settings.count)
    kind = device_of(settings.device).partition(":")[0]
    known = settings.model in NETWORKS and settings.pretrained != "weights"
    copies = _ACTIVATIONS[settings.model] if known else max(_ACTIVATIONS.values())
    numbers = _COPIES * parameters + copies * settings.batch_size * math.prod(shape)
    most = min(max(_NUMBERS[kind] // numbers, 1), _MOST[kind], settings.count)
    return -(-settings.count // -(-settings.count // most))


def group_of(teacher: int, size: int, count: int) -> range:
    """The teachers of the group that a teacher belongs to.

    >>> group_of(5, 4, 7)
    range(4, 7)
    """
    first = teacher // size * size
    return range(first, min(first + size, count))


def whole_groups(chunk: int, size: int) -> int:
    """A chunk's size rounded up to whole groups, so that no group is computed twice.

    >>> whole_groups(25, 18)
    36
    """
    return -(-chunk // size) * size


def on_its_device(settings: TeacherSettings, number: int) -> TeacherSettings:
    """The settings of job ``number`` of this machine: with several GPUs, each job on the next of them.

    On a cluster the scheduler decides what a worker sees.
    """
    if settings.runner not in ("thread", "process"):
        return settings
    return settings.model_copy(update={"device": spread(settings.device, number)})
