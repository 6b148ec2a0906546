"""What the commands share: options, reading settings, printing results."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

Config = Annotated[Path, typer.Argument(help="YAML config of the run.", show_default=False)]
RunOption = Annotated[str | None, typer.Option("--run", help="Name of the run directory; default: the config's.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override a setting: key.sub=value.", metavar="KEY=VALUE")
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Say nothing but errors and the result.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on the last line.")]


def settings_of(config: Path, overrides: list[str] | None, run: str | None) -> Any:
    """The settings of a config file with the command line's overrides."""
    from flows.config import load

    return load(config, overrides or (), run)


def print_json(result: dict[str, Any]) -> None:
    """One JSON object on the last line."""
    print(json.dumps(result, allow_nan=False), flush=True)


def print_rows(rows: list[tuple[str, str]]) -> None:
    """Labelled lines, one below the other."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


INTERRUPTED = "interrupted; what is finished is kept: rerun the same command to go on"


def fail(message: str, code: int, as_json: bool) -> int:
    """Say an error in one line; returns the exit code."""
    print(f"error: {message}", file=sys.stderr)
    if as_json:
        print_json({"error": message, "exit_code": code})
    return code
