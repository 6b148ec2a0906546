"""The command line: ``pate run CONFIG``, every stage alone, planning, and the ledger.

Heavy libraries are imported inside commands.
"""

import sys
import traceback
from pathlib import Path

import typer

from data.errors import PateError
from flows import cli_plan, cli_run, cli_sweep
from flows.cli_ledger import ledger_app
from flows.cli_options import INTERRUPTED, fail

# What typer makes of Ctrl-C.
_INTERRUPTED = 130
# The base of every wrong usage; typer exports no name for it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="pate",
    help="PATE: publish labels and a model learned from private records, under differential privacy.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(cli_plan.init)
app.command()(cli_run.run)
for _name, _help in cli_run.STAGES.items():
    app.command(_name, help=_help)(cli_run.stage_command(_name))
app.command()(cli_run.check)
app.command()(cli_run.predict)
app.command()(cli_run.purge)
app.command()(cli_plan.plan)
app.command()(cli_plan.privacy)
app.command()(cli_sweep.sweep)
app.add_typer(ledger_app, name="ledger")


def run_command(arguments: list[str]) -> int:
    """Run a command line; every error is one line. Returns the exit code."""
    as_json = "--json" in arguments
    try:
        code = app(arguments or ["--help"], standalone_mode=False)
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except PateError as error:
        return fail(str(error), error.exit_code, as_json)
    except typer.Exit as leave:
        return leave.exit_code
    except _UsageError as error:
        # The formatted text names the option, which the plain one may not.
        text = getattr(error, "format_message", error.__str__)()
        return fail(f"{' '.join(text.split())} (see pate --help)", 2, as_json)
    except (KeyboardInterrupt, typer.Abort):
        return fail(INTERRUPTED, 1, as_json)
    except MemoryError:
        return fail("out of memory", 1, as_json)
    except OSError as error:
        return fail(f"{error.filename or 'file system'}: {error.strerror or 'failed'}", 1, as_json)
    except Exception as error:
        # A defect of ours. Its text could hold anything, also private data: only kind and place are shown.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return fail(f"internal error: {type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}", 1, as_json)


def main() -> None:
    """Entry point of ``pate``."""
    from flows.process import leave

    leave(run_command(sys.argv[1:]))
