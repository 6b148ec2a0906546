"""The errors a user can meet, one class per exit code of the command line."""


class PateError(Exception):
    """An error whose text is one line that may be shown to anybody: it holds nothing computed from private data."""

    exit_code = 1


class UserError(PateError):
    """Wrong usage or bad input. The text names the option or field, the value and what is allowed."""

    exit_code = 2


class RefusedError(PateError):
    """The privacy budget would be exceeded: nothing was spent, nothing was released."""

    exit_code = 3


class StageError(PateError):
    """A stage failed. What happened inside the private zone is in ``private/errors.log`` only."""
