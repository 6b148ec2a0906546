"""The command line: ``pate run CONFIG`` and every stage alone. Heavy libraries are imported inside commands."""

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from data.errors import PateError

STAGES = {
    "partition": "Assign the units of the private data to teachers.",
    "teach": "Train one teacher on each shard.",
    "queries": "Choose the public inputs that the teachers are asked about.",
    "vote": "Let all teachers vote on the chosen queries.",
    "aggregate": "Release labels by noisy max; charges the ledger.",
    "student": "Train the student on released labels and public inputs.",
    "baseline": "Train the DP-SGD baseline; charges the ledger.",
    "report": "Write report and privacy statement.",
}

Config = Annotated[Path, typer.Argument(help="YAML config of the run.", show_default=False)]
RunOption = Annotated[str | None, typer.Option("--run", help="Name of the run directory; default: the config's.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override a setting: key.sub=value.", metavar="KEY=VALUE")
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Say nothing but errors and the result.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on the last line.")]

# What typer makes of Ctrl-C.
_INTERRUPTED = 130
_INTERRUPTED_TEXT = "interrupted; what is finished is kept: rerun the same command to go on"
# The base of every wrong usage; typer exports no name for it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="pate",
    help="PATE: publish labels and a model learned from private records, under differential privacy.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
ledger_app = typer.Typer(help="The budget ledger of the private datasets.")
app.add_typer(ledger_app, name="ledger")


def _settings(config: Path, overrides: list[str] | None, run: str | None) -> Any:
    from flows.config import load

    return load(config, overrides or (), run)


def _print_json(result: dict[str, Any]) -> None:
    print(json.dumps(result, allow_nan=False), flush=True)


def _print_rows(rows: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


@app.command()
def run(
    config: Config,
    run: RunOption = None,
    set_: SetOption = None,
    quiet: QuietOption = False,
    json_: JsonOption = False,
    no_prefect: Annotated[bool, typer.Option("--no-prefect", help="Run the stages plainly, without Prefect.")] = False,
) -> None:
    """Run all stages that are not up to date, then print what was published."""
    from flows.console import console
    from flows.stages import NAMES, stale_stages

    settings = _settings(config, set_, run)
    said = console(quiet)
    if not stale_stages(settings, said):
        said.say("every stage is up to date: reused")
        reused: tuple[str, ...] = NAMES
    elif no_prefect:
        from flows.pipeline import run_all

        reused = run_all(settings, said)
    else:
        from flows.process import end_on_interrupt, quiet_prefect

        quiet_prefect()
        from flows.full import run_in_process

        with end_on_interrupt(lambda: _fail(_INTERRUPTED_TEXT, 1, json_)):
            reused = run_in_process(settings, said)
    from flows.summary import rows, summary

    result = summary(settings, reused)
    if json_:
        _print_json(result)
    else:
        _print_rows(rows(result))


def _stage_command(name: str) -> Callable[..., None]:
    def command(
        config: Config,
        run: RunOption = None,
        set_: SetOption = None,
        quiet: QuietOption = False,
        json_: JsonOption = False,
    ) -> None:
        from flows.console import console
        from flows.context import run_of
        from flows.stages import run_stage, stage_named

        settings = _settings(config, set_, run)
        result = run_stage(name, settings, console(quiet))
        root = run_of(settings).root
        paths = [str(root / path) for path in stage_named(name).outputs(settings)]
        if json_:
            _print_json({"run": settings.name, "stage": name, "reused": result.reused, "outputs": paths})
        else:
            for path in paths:
                print(path)

    return command


for _name, _help in STAGES.items():
    app.command(_name, help=_help)(_stage_command(_name))


@app.command()
def plan(
    teachers: Annotated[int, typer.Option("--teachers", help="Number of teachers.", show_default=False)],
    classes: Annotated[int, typer.Option("--classes", help="Number of classes.", show_default=False)],
    answers: Annotated[int, typer.Option("--answers", help="Most queries answered.", show_default=False)],
    delta: Annotated[float, typer.Option("--delta", help="δ of the guarantee.")] = 1e-5,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Target ε: gives the noise.")] = None,
    sigma: Annotated[float | None, typer.Option("--sigma", help="σ of the noise, in votes: gives ε.")] = None,
    scale: Annotated[float | None, typer.Option("--scale", help="For lnmax, instead of --sigma: its scale b.")] = None,
    mechanism: Annotated[
        str, typer.Option("--mechanism", help="gnmax, lnmax, confident-gnmax or interactive-gnmax.")
    ] = "gnmax",
    queries: Annotated[
        int | None, typer.Option("--queries", help="Most queries asked; default with a test: twice the answers.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option("--threshold", help="T; default: 0.8 of the teachers (interactive-gnmax: 0.5).")
    ] = None,
    threshold_sigma: Annotated[
        float | None, typer.Option("--threshold-sigma", help="σ_T of the test's noise; default: 4 σ.")
    ] = None,
    consensus: Annotated[
        float | None,
        typer.Option("--consensus", help="Forecast labels if the plurality always has this share of the votes."),
    ] = None,
    pilot: Annotated[
        Path | None, typer.Option("--pilot", help="Forecast labels from a PUBLIC pilot's vote counts (a file).")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Chart of ε against the noise: .png or .svg.")] = None,
    json_: JsonOption = False,
) -> None:
    """Noise for a target ε, or ε of a noise, before anything is trained."""
    from flows.plan import Options, rows
    from flows.plan import plan as planned

    result = planned(
        Options(
            teachers, classes, delta, answers, mechanism, epsilon, sigma, scale, queries, threshold, threshold_sigma,
            consensus, pilot, plot,
        )
    )  # fmt: skip
    if json_:
        _print_json(result)
    else:
        _print_rows(rows(result))


@app.command()
def check(config: Config, run: RunOption = None, set_: SetOption = None, json_: JsonOption = False) -> None:
    """Forecast shard sizes and cost from counts alone, before anything is trained. For the curator's eyes."""
    from flows.check import forecast_run, rows

    result = forecast_run(_settings(config, set_, run))
    if json_:
        _print_json(result)
    else:
        _print_rows(rows(result))
        for warning in result["warnings"]:
            print(f"warning: {warning}")


@app.command()
def predict(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or its name under --run-root.")],
    file: Annotated[Path, typer.Argument(help="Inputs: a table, .npy or .npz, an image, or a folder of images.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Parquet or CSV file to write: row, label, probability (and path).")
    ] = None,
    run_root: Annotated[Path, typer.Option("--run-root", help="Folder of run directories.")] = Path("runs"),
    json_: JsonOption = False,
) -> None:
    """Label new inputs with a run's student."""
    from flows.predicting import predict_file, release_of

    result = predict_file(release_of(run, run_root), file, out)
    if json_:
        _print_json(result)
    elif out is not None:
        print(f"{result['rows']} rows: {result['out']}")


LedgerUrl = Annotated[str, typer.Option("--ledger", help="SQLAlchemy URL of the ledger.")]
DEFAULT_LEDGER = "sqlite:///runs/ledger.sqlite"


@ledger_app.command("show")
def ledger_show(
    ledger: LedgerUrl = DEFAULT_LEDGER,
    compositions: Annotated[
        bool, typer.Option("--compositions", help="Compare what composition theorems make of all charges together.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Each dataset's limit, what is spent, and its events."""
    from flows.budget import show, show_rows

    result = show(ledger, compositions)
    if json_:
        _print_json(result)
    else:
        for line in show_rows(result):
            print(line)


@ledger_app.command("limit")
def ledger_limit(
    name: Annotated[str, typer.Argument(help="Dataset name.")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="The new limit ε.")],
    reason: Annotated[str, typer.Option("--reason", help="Why: kept on the ledger.")],
    ledger: LedgerUrl = DEFAULT_LEDGER,
    json_: JsonOption = False,
) -> None:
    """Change a dataset's limit; the history is kept."""
    from flows.budget import change_limit

    result = change_limit(ledger, name, epsilon, reason)
    if json_:
        _print_json(result)
    else:
        print(f"{name}: limit ε is now {result['limit']:g}")


@ledger_app.command("export")
def ledger_export(ledger: LedgerUrl = DEFAULT_LEDGER, json_: JsonOption = False) -> None:
    """Every row of the ledger as one JSON object, with or without --json."""
    from flows.budget import export

    _print_json(export(ledger))


def _fail(message: str, code: int, as_json: bool) -> int:
    print(f"error: {message}", file=sys.stderr)
    if as_json:
        _print_json({"error": message, "exit_code": code})
    return code


def run_command(arguments: list[str]) -> int:
    """Run a command line; every error is one line. Returns the exit code."""
    as_json = "--json" in arguments
    try:
        code = app(arguments or ["--help"], standalone_mode=False)
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except PateError as error:
        return _fail(str(error), error.exit_code, as_json)
    except typer.Exit as leave:
        return leave.exit_code
    except _UsageError as error:
        # The formatted text names the option, which the plain one may not.
        text = getattr(error, "format_message", error.__str__)()
        return _fail(f"{' '.join(text.split())} (see pate --help)", 2, as_json)
    except (KeyboardInterrupt, typer.Abort):
        return _fail(_INTERRUPTED_TEXT, 1, as_json)
    except MemoryError:
        return _fail("out of memory", 1, as_json)
    except OSError as error:
        return _fail(f"{error.filename or 'file system'}: {error.strerror or 'failed'}", 1, as_json)
    except Exception as error:
        # A defect of ours. Its text could hold anything, also private data: only kind and place are shown.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return _fail(
            f"internal error: {type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}", 1, as_json
        )


def main() -> None:
    """Entry point of ``pate``."""
    from flows.process import leave

    leave(run_command(sys.argv[1:]))
