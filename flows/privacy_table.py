"""What ``pate privacy`` prints for people: every number under its name, and whether it may be published."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from accounting.statement import rounded_up

ABOUT = {
    "textbook": "worst case at the caps, by the cost of noisy counts",
    "data_independent": "worst case at the caps, by the cost of their argmax: the ε of statement, plan and budget",
    "tested": "propose-test-release planned on these very votes; --draw releases one",
    "data_dependent_p18": "as the literature counts it, weighted by expected answers",
    "data_dependent": "one-atom bound, to and from every neighbour of these votes, all queries asked",
    "data_dependent_exact": "exact, to and from every neighbour of these votes, all queries asked",
    "sanitized": "an estimate with noise, planned on these very votes; --draw releases one",
    "sanitized_p18": "as the literature's tables have it: unsound, never to be published",
}
_WIDTH = 120  # where it is not a terminal's
_DRAWN = {
    "tested": "worst case, the test included",
    "sanitized": "a noisy estimate of what this dataset's members lost: no bound; its release is paid for",
}


def show(result: dict[str, Any]) -> None:
    """Print the result of :func:`flows.privacy.privacy`. ε is rounded up."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
    answered = result["expected_answered"]
    expected = "" if answered is None else f" ({answered:.2f} expected)"
    console.print(
        f"{result['queries']} queries of {result['teachers']} teachers over {result['classes']} classes; "
        f"{result['mechanism']}, at most {result['max_answers']} answers{expected}; "
        f"δ = {result['delta']:g}, {result['conversion']} conversion"
    )
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("number", "ε", "order", "may be published?", "what it is"):
        table.add_column(name, justify="right" if name in ("ε", "order") else "left", no_wrap=name in ("number", "ε"))
    for name, number in result["epsilon"].items():
        epsilon = "∞" if number["epsilon"] is None else rounded_up(number["epsilon"])
        noise = number.get("noise_std")
        table.add_row(
            name,
            epsilon if noise is None else f"{epsilon} ± {noise:.3g}",
            "–" if number["order"] is None else f"{number['order']:.4g}",
            "yes" if number["publishable"] else "no",
            _about(name, number, result["draws"] is not None),
        )
    console.print(table)
    for draw in result["draws"] or ():
        said = "replayed" if draw["replayed"] else f"charged ε {rounded_up(draw['epsilon'])}"
        console.print(f"{draw['number']}: {said} (run {draw['run']})")
    if result["ledger"] is not None:
        ledger = result["ledger"]
        console.print(
            f"ledger of {ledger['dataset']}: ε {rounded_up(ledger['spent'])} spent of {rounded_up(ledger['limit'])}"
        )
    if result["plot"] is not None:
        console.print(f"plot (private): {result['plot']}", soft_wrap=True)
    if result["draws"] is None:
        console.print("What is marked no is computed from votes: private, as this output is.")


def _about(name: str, number: dict[str, Any], drawn: bool) -> str:
    about = _DRAWN[name] if drawn and name in _DRAWN else ABOUT[name]
    if "forward" in number:
        about += f"; these votes first alone: {number['forward']:.4f}"
    if "passed" in number:
        about += "; passed: labels are released" if number["passed"] else "; refused: nothing but this is released"
    elif "pass_probability" in number:
        about += (
            f" (passes with {100 * number['pass_probability']:.1f}%; ρ {number['rho']:g}, σ_d {number['sigma_d']:g}, "
            f"its δ {number['test_delta']:.3g})"
        )
    return about
