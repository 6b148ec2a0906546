"""Commands on a config or a run: ``run``, each stage alone, ``check``, ``predict``, ``purge``."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from data.errors import UserError
from flows.cli_options import (
    INTERRUPTED,
    Config,
    JsonOption,
    QuietOption,
    RunOption,
    SetOption,
    fail,
    print_json,
    print_rows,
    settings_of,
)

STAGES = {
    "pretrain": "Learn an encoder from public inputs alone, where the settings ask for one.",
    "partition": "Assign the units of the private data to teachers.",
    "teach": "Train one teacher on each shard.",
    "queries": "Choose the public inputs that the teachers are asked about.",
    "vote": "Let all teachers vote on the chosen queries.",
    "aggregate": "Release labels by noisy max; charges the ledger.",
    "student": "Train the student on released labels and public inputs.",
    "baseline": "Train the DP-SGD baseline; charges the ledger.",
    "report": "Write report and privacy statement.",
}


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
    from flows.stages import names_wanted, stale_stages

    settings = settings_of(config, set_, run)
    said = console(quiet)
    if not stale_stages(settings, said):
        said.say("every stage is up to date: reused")
        reused: tuple[str, ...] = names_wanted(settings)
    elif no_prefect:
        from flows.pipeline import run_all

        reused = run_all(settings, said)
    else:
        from flows.process import end_on_interrupt, quiet_prefect

        quiet_prefect()
        from flows.full import run_in_process

        with end_on_interrupt(lambda: fail(INTERRUPTED, 1, json_)):
            reused = run_in_process(settings, said)
    from flows.summary import rows, summary

    result = summary(settings, reused)
    if json_:
        print_json(result)
    else:
        print_rows(rows(result))


def stage_command(name: str) -> Callable[..., None]:
    """The command of one stage."""

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

        settings = settings_of(config, set_, run)
        result = run_stage(name, settings, console(quiet))
        root = run_of(settings).root
        outputs = (root / path for path in stage_named(name).outputs(settings))
        # A purged run makes nothing private.
        paths = [str(path) for path in outputs if path.exists()]
        if json_:
            print_json({"run": settings.name, "stage": name, "reused": result.reused, "outputs": paths})
        else:
            for path in paths:
                print(path)

    return command


def check(config: Config, run: RunOption = None, set_: SetOption = None, json_: JsonOption = False) -> None:
    """Forecast shard sizes and cost from counts alone, before anything is trained. For the curator's eyes."""
    from flows.check import forecast_run, rows

    result = forecast_run(settings_of(config, set_, run))
    if json_:
        print_json(result)
    else:
        print_rows(rows(result))
        for warning in result["warnings"]:
            print(f"warning: {warning}")


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
        print_json(result)
    elif out is not None:
        print(f"{result['rows']} rows: {result['out']}")


def purge(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or its name under --run-root.")],
    run_root: Annotated[Path, typer.Option("--run-root", help="Folder of run directories.")] = Path("runs"),
    ledger: Annotated[
        str | None, typer.Option("--ledger", help="URL of the ledger, where the settings' has a password.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Erase without asking.")] = False,
    json_: JsonOption = False,
) -> None:
    """Erase a finished run's private part; its release, settings and charges are kept."""
    from flows import purge as erasing
    from flows.console import console

    found = erasing.run_named(run, run_root)
    if not yes:
        if not sys.stdin.isatty():
            raise UserError("--yes: must be given where nobody can be asked; purging cannot be undone")
        if not typer.confirm(f"Erase {found.private} for good?", err=True):
            raise UserError("purge: not confirmed; nothing was erased")
    result = erasing.as_record(found, erasing.purge(found, erasing.settings_of(found, ledger), console(quiet=True)))
    if json_:
        print_json(result)
        return
    print(f"{found.root}: private part {'was erased before' if result['already'] else 'erased'}")
    for title, lines in (("kept", result["kept"]), ("may still lie somewhere", result["may_remain"])):
        for line in lines:
            print(f"{title}: {line}")
