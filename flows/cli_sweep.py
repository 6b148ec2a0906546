"""``pate sweep``: the trade-off of privacy against accuracy."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli_options import (
    Config,
    JsonOption,
    QuietOption,
    RunOption,
    SetOption,
    print_json,
    print_rows,
    settings_of,
)


def sweep(
    config: Config,
    epsilon: Annotated[
        str | None,
        typer.Option(
            "--epsilon",
            help="ε of the points, separated by commas; default of --simulate: 0.2,0.5,1,2,4.",
            metavar="E,...",
        ),
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate", help="Release and charge nothing: for declared public benchmarks (data.public_benchmark)."
        ),
    ] = False,
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="With --simulate: draw noise and train so often at each point.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of sweep.parquet, .png, .svg; default: <run_root>/<name>-sweep."),
    ] = None,
    run: RunOption = None,
    set_: SetOption = None,
    quiet: QuietOption = False,
    json_: JsonOption = False,
) -> None:
    """Accuracy of student and DP-SGD at several ε, as a table and a picture. Every point is a release, and charged."""
    from flows.console import console
    from flows.sweep import Options, rows
    from flows.sweep import sweep as measured

    result = measured(settings_of(config, set_, run), Options(epsilon, simulate, seeds, out), console(quiet))
    if json_:
        print_json(result)
    else:
        print_rows(rows(result))
