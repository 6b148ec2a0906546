"""What may be said of an exception from the private zone: its kind. Its text goes to ``private/errors.log``, 0600."""

import contextlib
import errno
import os
import traceback
from datetime import UTC, datetime
from pathlib import Path

from data.errors import PateError, StageError


def shown_as(error: BaseException, stage: str, private: Path) -> PateError:
    """The error that may leave the private zone for ``error``, which is being handled; ``private``: the run's folder.

    Errors made for users pass: their texts name fields, files, columns and rules only. Of all others the traceback is
    appended to ``private/errors.log``.
    """
    if isinstance(error, PateError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StageError(f"{stage}: no space left on the disk of {private.parent}; free some and rerun")
    log = private / "errors.log"
    with contextlib.suppress(OSError):
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "a") as stream:
            text = "".join(traceback.format_exception(error))
            stream.write(f"--- {datetime.now(UTC).isoformat()} stage {stage}\n{text}\n")
    return StageError(f"{stage}: failed with {type(error).__name__}; see {log}")
