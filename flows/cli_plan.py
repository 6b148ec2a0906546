"""Commands before a run, or without one: ``init``, ``plan`` and ``privacy``."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli_options import JsonOption, print_json, print_rows


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE|FOLDER", help="The private data.", show_default=False)],
    public: Annotated[Path | None, typer.Option("--public", help="Unlabelled public inputs of the same kind.")] = None,
    test: Annotated[Path | None, typer.Option("--test", help="Labelled public inputs to test the student on.")] = None,
    label: Annotated[str | None, typer.Option("--label", help="Column (npz: array) to be predicted.")] = None,
    unit: Annotated[
        str | None, typer.Option("--unit", help="Column naming who is protected; images: a regular expression.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option("--classes", help="Class names, separated by commas, in the order of their numbers.")
    ] = None,
    encoding: Annotated[str | None, typer.Option("--encoding", help="Of CSV files, e.g. cp1252.")] = None,
    epsilon: Annotated[float, typer.Option("--epsilon", help="ε to recommend noise and caps for.")] = 1.0,
    out: Annotated[Path | None, typer.Option("--out", help="Config to write; default: the file's name.yaml.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the config if it is there.")] = False,
    json_: JsonOption = False,
) -> None:
    """Write a commented config for your own data, from names, types and counts. For the curator's eyes."""
    from flows.onboarding import Wishes, rows, start

    names = tuple(name.strip() for name in classes.split(",") if name.strip()) if classes else ()
    wishes = Wishes(file, public, test, label, unit, names, encoding, epsilon)
    result = start(wishes, out or Path(f"{file.resolve().stem}.yaml"), force=force)
    if json_:
        print_json(result)
    else:
        print_rows(rows(result))
        for line in result["said"]:
            print(line)


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
        print_json(result)
    else:
        print_rows(rows(result))


def privacy(
    votes: Annotated[
        Path, typer.Argument(metavar="VOTES", help="Vote counts: .npy, .npz, .parquet or .csv.", show_default=False)
    ],
    mechanism: Annotated[
        str, typer.Option("--mechanism", help="lnmax, gnmax, confident-gnmax or interactive-gnmax.")
    ] = "confident-gnmax",
    sigma: Annotated[float | None, typer.Option("--sigma", help="σ of the noise, in votes.")] = None,
    scale: Annotated[float | None, typer.Option("--scale", help="For lnmax, instead of --sigma: its scale b.")] = None,
    threshold: Annotated[float | None, typer.Option("--threshold", help="T of the test, in votes.")] = None,
    threshold_sigma: Annotated[
        float | None, typer.Option("--threshold-sigma", help="σ_T of the test's noise, in votes.")
    ] = None,
    queries: Annotated[int | None, typer.Option("--queries", help="Take the first rows; default: all.")] = None,
    max_answers: Annotated[
        int | None, typer.Option("--max-answers", help="Cap on answers of the worst cases; default: all queries.")
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="δ.")] = 1e-5,
    sanitize: Annotated[bool, typer.Option("--sanitize", help="Plan the sanitised figure too.")] = False,
    tested: Annotated[bool, typer.Option("--tested", help="Plan a propose-test-release too.")] = False,
    order: Annotated[
        float | None, typer.Option("--order", help="Rényi order of the sanitised and the tested number.")
    ] = None,
    conversion: Annotated[
        str, typer.Option("--conversion", help="improved, or classic to reproduce papers.")
    ] = "improved",
    unsound_p18: Annotated[
        bool, typer.Option("--unsound-p18", help="Add the literature's sanitised figure, which is unsound.")
    ] = False,
    labels: Annotated[bool, typer.Option("--labels", help="VOTES holds one label a teacher, not counts.")] = False,
    classes: Annotated[int | None, typer.Option("--classes", help="Number of classes, for --labels.")] = None,
    student: Annotated[
        Path | None, typer.Option("--student", help="For interactive-gnmax: the student's probabilities, a file.")
    ] = None,
    sigma_d: Annotated[float | None, typer.Option("--sigma-d", help="σ_d of --tested, in changed votes.")] = None,
    test_delta: Annotated[
        float | None, typer.Option("--test-delta", help="δ' of --tested; default: a tenth of δ.")
    ] = None,
    draw: Annotated[
        bool, typer.Option("--draw", help="Draw what --sanitize and --tested plan, charged to a ledger, for release.")
    ] = False,
    dataset: Annotated[str | None, typer.Option("--dataset", help="For --draw: the private dataset's name.")] = None,
    ledger: Annotated[str | None, typer.Option("--ledger", help="For --draw: SQLAlchemy URL of the ledger.")] = None,
    unit: Annotated[
        str | None, typer.Option("--unit", help="To open the account with: who is protected, e.g. patient.")
    ] = None,
    limit: Annotated[float | None, typer.Option("--limit", help="To open the account with: its limit ε.")] = None,
    tested_delta: Annotated[
        float | None, typer.Option("--tested-delta", help="To open the account with: the part of δ for tests.")
    ] = None,
    rho: Annotated[float | None, typer.Option("--rho", help="For --draw --tested: the cost ρ to be tested.")] = None,
    sigma_log_scale: Annotated[
        float | None,
        typer.Option("--sigma-log-scale", help="For --draw --sanitize: also release the noise's scale, so noisy."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="For --draw --tested: the labels, if it passes (.parquet).")
    ] = None,
    run_root: Annotated[
        Path | None, typer.Option("--run-root", help="For --draw: where journals lie; default: beside the ledger.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="For --draw: draw anew, and charge it, what was drawn before.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Chart of ε against queries, and of cost by gap: .png or .svg.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Every privacy number of anybody's votes, and which may be published. For the curator's eyes."""
    from flows.privacy import DrawOptions, Options
    from flows.privacy import privacy as numbers

    drawing = DrawOptions(
        dataset, ledger, run_root, unit, limit, tested_delta, rho, sigma_log_scale, out, again,
    )  # fmt: skip
    result = numbers(
        Options(
            votes, mechanism, sigma, scale, threshold, threshold_sigma, queries, max_answers, delta, sanitize, tested,
            order, sigma_d, test_delta, conversion, unsound_p18, labels, classes, student, plot, draw, drawing,
        )
    )  # fmt: skip
    if json_:
        print_json(result)
    else:
        from flows.privacy_table import show

        show(result)
