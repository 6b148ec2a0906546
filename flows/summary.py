"""The result of a run as one object, from released files, settings and the ledger."""

from typing import Any

from accounting.statement import rounded_up
from data.store import read_json
from flows.asked import by_round, total
from flows.charges import open_account
from flows.context import run_of
from flows.settings import Settings


def _accuracy(record: dict[str, Any]) -> float | None:
    evaluation = record.get("evaluation")
    return None if evaluation is None else float(evaluation["accuracy"])


def summary(settings: Settings, reused: tuple[str, ...] = ()) -> dict[str, Any]:
    """What ``pate run --json`` prints; a value that the run does not have is None."""
    run = run_of(settings)
    release = run.release
    counts = total(by_round(release / "labels.parquet"))
    privacy = read_json(release / "privacy.json")
    enabled = settings.baseline.enabled
    nonprivate = run.private / "nonprivate.json"
    shown = settings.data.public_benchmark and enabled and nonprivate.exists()
    ledger, account = open_account(settings)
    weights = "skops" if settings.student.model.startswith("sklearn:") else "safetensors"
    return {
        "run": settings.name,
        "teachers": settings.teachers.count,
        "classes": len(settings.data.class_names),
        "asked": counts.asked,
        "answered": counts.answered,
        "kept": counts.kept,
        "epsilon": privacy["epsilon"],
        "delta": privacy["delta"],
        "student_accuracy": _accuracy(read_json(release / "student.json")["extra"]),
        "baseline_accuracy": _accuracy(read_json(release / "baseline.json")["extra"]) if enabled else None,
        "nonprivate_accuracy": _accuracy(read_json(nonprivate)) if shown else None,
        "labels": str(release / "labels.parquet"),
        "student": str(release / f"student.{weights}"),
        "report": str(release / "report.html"),
        "privacy": str(release / "privacy.json"),
        "ledger_spent": ledger.spent(account.name),
        "ledger_limit": account.limit,
        "reused": list(reused),
    }


def rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The summary as labelled lines for people. ε is rounded up."""

    def percent(value: float | None) -> str:
        return "–" if value is None else f"{100 * value:.1f}%"

    nonprivate = result["nonprivate_accuracy"]
    shown = [] if nonprivate is None else [("non-private accuracy (public benchmark)", percent(nonprivate))]
    kept = [("kept the student's own label", str(result["kept"]))] if result["kept"] else []
    return [
        ("queries asked, answered", f"{result['asked']}, {result['answered']}"),
        *kept,
        ("published ε, δ", f"{rounded_up(result['epsilon'])}, {result['delta']:g}"),
        ("student accuracy", percent(result["student_accuracy"])),
        ("DP-SGD baseline accuracy", percent(result["baseline_accuracy"])),
        *shown,
        ("ledger: ε spent of limit", f"{result['ledger_spent']:.4f} of {result['ledger_limit']:g}"),
        ("labels", result["labels"]),
        ("student", result["student"]),
        ("report", result["report"]),
        ("privacy statement", result["privacy"]),
    ]
