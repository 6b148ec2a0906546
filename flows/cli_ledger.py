"""``pate ledger``: show, limit, export."""

from typing import Annotated

import typer

from flows.cli_options import JsonOption, print_json

ledger_app = typer.Typer(help="The budget ledger of the private datasets.")
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
        print_json(result)
    else:
        for line in show_rows(result):
            print(line)


@ledger_app.command("limit")
def ledger_limit(
    name: Annotated[str, typer.Argument(help="Dataset name.")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="The new limit ε.")],
    reason: Annotated[str, typer.Option("--reason", help="Why: kept on the ledger.")],
    delta: Annotated[float | None, typer.Option("--delta", help="δ of the account, to open one.")] = None,
    unit: Annotated[
        str | None, typer.Option("--unit", help="Who is protected, to open an account: the unit column, or record.")
    ] = None,
    ledger: LedgerUrl = DEFAULT_LEDGER,
    json_: JsonOption = False,
) -> None:
    """Change a dataset's limit, or open its account with --delta and --unit; the history is kept."""
    from accounting.statement import rounded_up
    from flows.budget import change_limit

    result = change_limit(ledger, name, epsilon, reason, delta, unit)
    if json_:
        print_json(result)
    elif result["opened"]:
        print(
            f"{name}: opened with limit ε {result['limit']:g} (δ {result['delta']:g}, unit {result['unit']}); nothing "
            "is spent"
        )
    else:
        print(f"{name}: limit ε is now {result['limit']:g}")
        together = result["together"]
        if together["epsilon"] > result["limit"]:
            print(
                f"What was released under other limits stays within those: statements of later runs claim ε "
                f"{rounded_up(together['epsilon'])}, δ {together['delta']:g} for everything together."
            )


@ledger_app.command("export")
def ledger_export(ledger: LedgerUrl = DEFAULT_LEDGER, json_: JsonOption = False) -> None:
    """Every row of the ledger as one JSON object, with or without --json."""
    from flows.budget import export

    print_json(export(ledger))
