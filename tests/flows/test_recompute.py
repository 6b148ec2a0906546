"""Every number in a release is explained: recomputed here, another way, from released files, settings, ledger and
public data. A number that has no such origin is named, so one that is added later must be explained here first.

``unexplained(run)`` gives all problems of a run directory without ever opening its private part.
"""

import copy
import hashlib
import json
import math
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
import yaml
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from scipy.optimize import minimize, minimize_scalar
from scipy.special import softmax
from scipy.stats import binom, binomtest, norm

from accounting.statement import event_of
from data.public import load_public, load_test
from flows import figures, report
from flows.cli import run_command
from flows.config import build
from teachers import saved
from tests.flows.small import SMALL
from tests.student import evaluation_oracle as oracle

pytestmark = pytest.mark.slow

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
FILES = {
    *("queries.parquet", "labels.parquet", "student.json", "student.safetensors", "privacy.json", "report.html"),
    "evaluation.parquet",
}
# Numbers of the page's own prose: 95% intervals, all of what was asked, SHA-256, an example of 80% confidence.
PROSE = {"95", "100.0", "256", "80"}
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?")


def _config(root: Path, **changes: Any) -> dict[str, Any]:
    record = copy.deepcopy(SMALL) | {"run_root": str(root), "name": "run"} | changes
    record["data"] |= {"public_benchmark": False, "classes": NAMES}
    return record


@pytest.fixture(scope="module", params=["confident-gnmax with a baseline", "gnmax without"])
def released(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory, as its makers would publish it: private part gone, ledger beside it."""
    root = tmp_path_factory.mktemp("recompute")
    changes: dict[str, Any] = {}
    if request.param.startswith("gnmax"):
        mechanism = {"mechanism": "gnmax", "sigma": 6.0, "delta": 1e-4}
        changes = {"aggregation": mechanism, "baseline": {"enabled": False}}
    (root / "run.yaml").write_text(yaml.safe_dump(_config(root / "runs", **changes)))
    assert run_command(["run", str(root / "run.yaml"), "--no-prefect", "--quiet"]) == 0
    shutil.rmtree(root / "runs" / "run" / "private")
    return root / "runs" / "run"


def unexplained(run: Path) -> list[str]:
    """Numbers of the release that are not what they should be, or that nothing here explains."""
    release = run / "release"
    settings = build(yaml.safe_load((run / "settings.yaml").read_text()))
    files = {file.name for file in release.iterdir()} - {"manifest.json"}
    wanted = FILES | ({"baseline.json", "baseline.safetensors"} if settings.baseline.enabled else set())
    problems = [f"{name}: is not explained" for name in sorted(files ^ wanted)]
    models = ["student", *(["baseline"] if settings.baseline.enabled else [])]
    records = {name: json.loads((release / f"{name}.json").read_text()) for name in ("privacy", *models)}
    labels, problems_of_tables = _tables(release, settings, records["privacy"])
    problems += problems_of_tables
    problems += _evaluation(release, settings, models, records["privacy"])
    explained = _privacy(run, settings, records)
    for name in models:
        explained[name] = _model(release, settings, name, records["privacy"])
    for name, record in records.items():
        problems += [f"{name}.json: {path}" for path in _differences(record, explained[name])]
    digests = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in release.iterdir() if f.name in files}
    if json.loads((release / "manifest.json").read_text()) != {"files": digests}:
        problems.append("manifest.json: is not the digests of the files beside it")
    return problems + _page(release, settings, records, labels)


def _numbers(value: Any, at: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _numbers(inner, f"{at}.{key}" if at else str(key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield at, value


def _differences(record: Any, explained: dict[str, float]) -> list[str]:
    found = dict(_numbers(record))
    missing = [path for path in explained if path not in found]
    return missing + [
        f"{path} = {value!r}" for path, value in found.items() if not math.isclose(value, explained.get(path, math.nan))
    ]


# --- the labels' ε -----------------------------------------------------------------------------------------------


def _renyi(p: list[float], q: list[float], order: float) -> float:
    total = sum(a**order * b ** (1 - order) for a, b in zip(p, q, strict=True) if a > 0)
    return math.log(total) / (order - 1)


def _answer(order: float, sigma: float) -> float:
    """The worst case of one noisy argmax (ACCOUNTING's three outcomes), by quadrature and search."""

    def regions(a: float, b: float) -> list[float]:
        end = max(a, b, 0) + 10
        x, weight = (nodes + 1) * end / 2, weights * end / 2
        first = (weight * norm.pdf(x - a) * norm.cdf(x - b)).sum()
        second = (weight * norm.pdf(x - b) * norm.cdf(x - a)).sum()
        return [first, second, norm.cdf(-a) * norm.cdf(-b)]

    def loss(at: np.ndarray) -> float:
        a, b = at
        return -_renyi(regions(a, b), regions(a - 1 / sigma, b + 1 / sigma), order)

    nodes, weights = np.polynomial.legendre.leggauss(200)
    starts = [(0.3, 0.0), (-0.5, 1.0)]
    return -min(minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-4}).fun for start in starts)


def _test(order: float, sigma: float) -> float:
    """The worst case of one threshold test, over where the largest count lies."""

    def loss(t: float) -> float:
        p, q = norm.cdf(t), norm.cdf(t + 1 / sigma)
        return -_renyi([p, norm.sf(t)], [q, norm.sf(t + 1 / sigma)], order)

    return -min(minimize_scalar(loss, bounds=bounds, method="bounded").fun for bounds in ((-8, 0), (0, 8)))


def _convert(rdp: float, order: float, delta: float) -> float:
    return rdp + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def _at_least(answers: int, sigma: float, delta: float) -> float:
    """ε that no sound statement can undercut: every query a tie of two classes, seen through the number of wins."""
    wins = np.arange(answers + 1)
    p, q = (binom.pmf(wins, answers, norm.cdf(sign / (math.sqrt(2) * sigma))) for sign in (1, -1))
    low, high = 0.0, 100.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        enough = np.maximum(p - math.exp(middle) * q, 0).sum() <= delta
        low, high = (low, middle) if enough else (middle, high)
    return low


def _privacy(run: Path, settings: Any, records: dict[str, Any]) -> dict[str, dict[str, float]]:
    record, mechanism, delta = records["privacy"], settings.aggregation, settings.aggregation.delta
    queries = settings.queries.count
    answers = mechanism.max_answers or queries
    orders = [record["order"]] if record["order"] is not None else np.linspace(1.2, 8, 12)
    tests = mechanism.mechanism == "confident-gnmax"
    by_rdp = min(
        _convert(
            answers * _answer(order, mechanism.sigma) + tests * queries * _test(order, mechanism.threshold_sigma or 1),
            order,
            delta,
        )
        for order in orders
    )
    # What is stated is certified, hence a little above what a search finds; the recursion may lie below it.
    upper = by_rdp * (1.005 if record["order"] is not None else 1.02)
    lower = by_rdp * (1 - 1e-4) if record["order"] is not None else _at_least(answers, mechanism.sigma, delta)
    explained = {
        "epsilon": record["epsilon"] if lower <= record["epsilon"] <= upper else by_rdp,
        "delta": delta,
        "sigma": mechanism.sigma,
        "max_queries": queries,
        "max_answers": answers,
        "ledger.spent": _spent(run),
        "ledger.limit": settings.ledger.epsilon,
    }
    if tests:
        explained |= {"threshold": mechanism.threshold, "threshold_sigma": mechanism.threshold_sigma}
    if record["order"] is not None:
        explained["order"] = record["order"]
    if settings.baseline.enabled:
        explained |= {f"baseline.{name}": value for name, value in _baseline(run, settings, record).items()}
    return {"privacy": explained}


def _baseline(run: Path, settings: Any, record: dict[str, Any]) -> dict[str, float]:
    """The DP-SGD event that the ledger holds, and its ε by another library's privacy loss distributions."""
    charged = next(event for stage, event in _events(run) if stage == "baseline")
    sampled = dp_event.PoissonSampledDpEvent(
        charged["sampling_rate"], dp_event.GaussianDpEvent(charged["noise_multiplier"])
    )
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    found = accountant.compose(sampled, charged["steps"]).get_epsilon(settings.aggregation.delta)
    claimed = record["baseline"]["epsilon"]
    right = math.isclose(claimed, found, rel_tol=5e-3) and claimed <= record["epsilon"]
    return {
        "epsilon": claimed if right else found,
        "delta": settings.aggregation.delta,
        "noise_multiplier": charged["noise_multiplier"],
        "sampling_rate": settings.baseline.sampling_rate,
        "steps": settings.baseline.steps,
    }


def _events(run: Path) -> list[tuple[str, dict[str, Any]]]:
    with sqlite3.connect(run.parent / "ledger.sqlite") as ledger:
        return [(stage, json.loads(text)) for stage, text in ledger.execute("select stage, event from pate_events")]


def _account(run: Path) -> tuple[float, float, float]:
    with sqlite3.connect(run.parent / "ledger.sqlite") as ledger:
        (rdp,) = ledger.execute("select sum(rdp) from pate_events where state != 'cancelled'").fetchone()
        order, delta = ledger.execute('select "order", delta from pate_datasets').fetchone()
    return rdp, order, delta


def _spent(run: Path) -> float:
    return _convert(*_account(run))


# --- labels and models -------------------------------------------------------------------------------------------


def _tables(release: Path, settings: Any, privacy: dict[str, Any]) -> tuple[np.ndarray, list[str]]:
    """The labels (-1: abstained), and what is wrong with the two tables."""
    labels, queries = pq.read_table(release / "labels.parquet"), pq.read_table(release / "queries.parquet")
    values = np.array([-1 if value is None else value for value in labels["label"].to_pylist()])
    asked, answered = len(values), int((values >= 0).sum())
    public = load_public(settings.data, settings.seed).ids
    metadata = {
        **{f"pate.{name}": str(privacy[name]) for name in ("unit", "adjacency", "mechanism", "run")},
        **{f"pate.{name}": repr(float(privacy[name])) for name in ("epsilon", "delta")},
        "pate.classes": json.dumps(NAMES),
    }
    sources = ["abstained" if value < 0 else "teachers" for value in values]
    checks = {
        "labels.parquet: columns": labels.column_names == ["query_id", "public_id", "label", "source", "round"],
        "queries.parquet: columns": queries.column_names == ["query_id", "public_id", "round"],
        "labels.parquet: metadata": {k.decode(): v.decode() for k, v in (labels.schema.metadata or {}).items()}
        == metadata,
        "queries.parquet: metadata": not queries.schema.metadata,
        "labels.parquet: query_id": labels["query_id"].to_pylist() == list(range(asked)),
        "labels.parquet: public_id": labels["public_id"].to_pylist() == queries["public_id"].to_pylist()[:asked],
        "labels.parquet: label": values.max() < len(NAMES) and answered <= privacy["max_answers"],
        "labels.parquet: source": labels["source"].to_pylist() == sources,
        "round": not any(labels["round"].to_pylist()) and not any(queries["round"].to_pylist()),
        "queries.parquet: public_id": set(queries["public_id"].to_pylist()) <= set(public.tolist()),
        "queries.parquet: rows": len(queries) == settings.queries.count,
    }
    return values, [name for name, holds in checks.items() if not holds]


def _evaluation(release: Path, settings: Any, models: list[str], privacy: dict[str, Any]) -> list[str]:
    """What is wrong with the table of measurements: rows by scikit-learn, probabilities by a matrix product."""
    table = pq.read_table(release / "evaluation.parquet")
    test = load_test(settings.data, settings.seed)
    assert test is not None
    assert test.labels is not None
    # Equal to the last bit, so that inputs on the edge of a bin fall on its same side.
    probabilities = {name: saved.load(release / name).probabilities(test.features) for name in models}
    product = {name: softmax(_logits(release / f"{name}.safetensors", test.features), axis=1) for name in models}
    seed = int.from_bytes(hashlib.sha256(f"pate:{settings.seed}:evaluation:0".encode()).digest()[:8], "big") >> 1
    wanted = oracle.expected(probabilities, test.labels, {}, NAMES, seed)
    metadata = {
        **{f"pate.{name}": str(privacy[name]) for name in ("unit", "adjacency", "mechanism", "run")},
        **{f"pate.{name}": repr(float(privacy[name])) for name in ("epsilon", "delta")},
        "pate.classes": json.dumps(NAMES),
        "pate.confidence": "0.95",
    }
    if "baseline" in models:
        metadata |= {f"pate.baseline.{name}": repr(privacy["baseline"][name]) for name in ("epsilon", "delta")}
    problems = [f"evaluation.parquet: {problem}" for problem in oracle.differences(table.to_pylist(), wanted, 1e-6)]
    problems += [f"{name}: probabilities" for name in models if abs(probabilities[name] - product[name]).max() > 1e-5]
    if {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()} != metadata:
        problems.append("evaluation.parquet: metadata")
    if len(table.column_names) != 11:
        problems.append("evaluation.parquet: columns")
    return problems


def _predicted(weights: Path, features: np.ndarray) -> np.ndarray:
    """Classes of a logistic model."""
    return _logits(weights, features).argmax(1)


def _logits(weights: Path, features: np.ndarray) -> np.ndarray:
    """A logistic model's scores, by a matrix product."""
    tensors = safetensors.numpy.load_file(weights)
    assert sorted(tensors) == ["1.bias", "1.weight"]
    rows = features.reshape(len(features), -1).astype(np.float32) / 255
    scores: np.ndarray = rows @ tensors["1.weight"].T + tensors["1.bias"]
    return scores


def _model(release: Path, settings: Any, name: str, privacy: dict[str, Any]) -> dict[str, float]:
    test = load_test(settings.data, settings.seed)
    assert test is not None
    right = _predicted(release / f"{name}.safetensors", test.features) == test.labels
    interval = binomtest(int(right.sum()), len(right)).proportion_ci(0.95, method="exact")
    measured = {"accuracy": right.mean(), "low": interval.low, "high": interval.high, "count": len(right)}
    measured |= {f"per_class.{c}": right[test.labels == c].mean() for c in range(10)}
    explained = {f"extra.evaluation.{key}": value for key, value in measured.items()}
    explained |= {"shape.0": 1, "shape.1": 8, "shape.2": 8, "classes": 10}
    if name == "baseline":
        for key, value in dict(_numbers(privacy["baseline"])).items():
            explained[f"extra.{key}" if key in ("epsilon", "delta") else f"extra.event.{key}"] = value
    return explained


# --- the page ----------------------------------------------------------------------------------------------------


def _page(release: Path, settings: Any, records: dict[str, Any], labels: np.ndarray) -> list[str]:
    html = (release / "report.html").read_text(encoding="utf-8")
    body = html[html.index("<body>") :]
    charts = re.findall(r"<svg.*?</svg>", body, flags=re.DOTALL)
    rows = pq.read_table(release / "evaluation.parquet").to_pylist()
    expected = [_accuracy_chart(records), _epsilon_chart(records["privacy"]), _reliability_chart(rows)]
    problems = [] if [chart.strip() for chart in charts] == expected else ["report.html: charts"]
    text = re.sub(r"<svg.*?</svg>|\b[0-9a-f]{64}\b", " ", body, flags=re.DOTALL)
    # What only draws the bars of the class table; its numbers stand beside them.
    text = unescape(re.sub(r"<[^>]*>", " ", text))
    known = PROSE | set(_shown(release, settings, records, labels))
    return problems + [f"report.html: {token}" for token in sorted(set(_NUMBER.findall(text)) - known)]


def _accuracy_chart(records: dict[str, Any]) -> str:
    rows = []
    for name, colour in (("student", figures.BLUE), ("baseline", figures.ORANGE)):
        if name in records:
            epsilon = (records["privacy"] if name == "student" else records["privacy"]["baseline"])["epsilon"]
            e = records[name]["extra"]["evaluation"]
            title = {"student": "Student", "baseline": "DP-SGD baseline"}[name]
            rows.append(figures.Accuracy(f"{title}\nε = {_up(epsilon)}", e["accuracy"], e["low"], e["high"], colour))
    return str(figures.accuracies(rows)).strip()


def _epsilon_chart(privacy: dict[str, Any]) -> str:
    return str(report.epsilon_figure(event_of(privacy), privacy["delta"], privacy["epsilon"])).strip()


def _reliability_chart(rows: list[dict[str, Any]]) -> str:
    lines = []
    for name, title, colour in (("student", "Student", figures.BLUE), ("baseline", "DP-SGD baseline", figures.ORANGE)):
        bins = [row for row in rows if row["model"] == name and row["scope"] == "bin"]
        by = {measure: [row for row in bins if row["measure"] == measure] for measure in ("confidence", "accuracy")}
        points = [(c["estimate"], a["estimate"], a["low"], a["high"]) for c, a in zip(*by.values(), strict=True)]
        if points:
            lines.append(figures.Reliability(title, tuple(points), colour))
    return str(figures.reliability(lines)).strip()


def _up(value: float) -> str:
    """Four decimals, rounded up."""
    return f"{math.ceil(round(value * 1e4, 6)) / 1e4:.4f}".rstrip("0").rstrip(".")


def _shown(release: Path, settings: Any, records: dict[str, Any], labels: np.ndarray) -> Iterator[str]:
    """Every explained number in the ways that a page may write it."""
    privacy = records["privacy"]
    _, order, delta = _account(release.parent)
    for epsilon in (privacy["epsilon"], privacy["ledger"]["spent"], privacy["ledger"]["limit"]):
        yield _up(epsilon)
    yield _up(max(_convert(0.0, order, delta), 0.0))
    yield f"{order:.4g}"
    odds, f = math.exp(privacy["epsilon"]), 0.01
    yield f"{math.ceil(odds * 10) / 10:,.1f}"
    power = min(odds * f + privacy["delta"], 1 - (1 - privacy["delta"] - f) / odds)
    yield f"{math.ceil(1000 * power) / 10:.1f}"
    parameters = [
        privacy[name] for name in ("delta", "sigma", "threshold", "threshold_sigma", "max_queries", "max_answers")
    ]
    if privacy["order"] is not None:
        yield from (f"{privacy['order']:g}", f"{privacy['order']:.4g}")
    if privacy["baseline"] is not None:
        sgd = privacy["baseline"]
        parameters += [sgd["sampling_rate"], sgd["steps"]]
        yield from (_up(sgd["epsilon"]), f"{sgd['noise_multiplier']:g}", f"{sgd['noise_multiplier']:.4g}")
    for value in (*parameters, settings.teachers.count):
        if value is not None:
            yield from (f"{value:g}", repr(value), f"{value:,}")
    for name in ("student", "baseline"):
        if name in records:
            evaluation = records[name]["extra"]["evaluation"]
            yield from (f"{100 * evaluation[key]:.1f}" for key in ("accuracy", "low", "high"))
            yield f"{evaluation['count']:,}"
    yield from (f"{100 * value:.1f}" for value in records["student"]["extra"]["evaluation"]["per_class"])
    yield from _measured(pq.read_table(release / "evaluation.parquet").to_pylist())
    yield from (f"{file.stat().st_size:,}" for file in release.iterdir())
    yield from _counts(release, settings, labels)


def _measured(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The rows that the page shows, each in the one way that it is written."""
    for row in rows:
        numbers = [row[name] for name in ("estimate", "low", "high") if row[name] is not None]
        if row["measure"] == "brier_score":
            yield from (f"{value:.3f}" for value in numbers)
        elif row["measure"] == "confusion":
            yield f"{round(row['estimate'] * row['count']):,}"
        elif row["measure"] in ("recall", "precision", "expected_calibration_error") or row["model"] == "difference":
            yield from (f"{abs(100 * value):.1f}" for value in numbers)
        if row["measure"] == "recall":
            yield f"{row['count']:,}"
    yield "0"


def _counts(release: Path, settings: Any, labels: np.ndarray) -> Iterator[str]:
    asked, answered = len(labels), int((labels >= 0).sum())
    yield from (f"{settings.queries.count:,}", f"{asked:,}", f"{answered:,}", f"{asked - answered:,}")
    yield from (f"{100 * count / asked:.1f}" for count in (answered, asked - answered))
    public = load_public(settings.data, settings.seed)
    ids = pq.read_table(release / "labels.parquet")["public_id"].to_pylist()
    rows = [public.ids.tolist().index(each) for each in ids]
    predicted = _predicted(release / "student.safetensors", public.features[rows])
    for number in range(len(NAMES)):
        here = predicted == number
        yield from (f"{(labels == number).sum():,}", f"{(here & (labels < 0)).sum():,}")
        if here.any():
            yield f"{100 * (labels[here] >= 0).mean():.1f}"


# --- the claims --------------------------------------------------------------------------------------------------


def test_every_number_of_a_release_is_explained(released: Path) -> None:
    """Privacy statement, model pages, labels' metadata, manifest and report: nothing that was not recomputed."""
    assert unexplained(released) == []


def test_the_report_is_rebuilt_without_the_private_part(released: Path, tmp_path: Path) -> None:
    """From release, settings, ledger and public data alone: the same bytes, statement and page."""
    shutil.copytree(released.parent, tmp_path / "elsewhere")
    run = tmp_path / "elsewhere" / "run"
    before = {name: (run / "release" / name).read_bytes() for name in ("report.html", "privacy.json", "manifest.json")}
    for name in before:
        (run / "release" / name).unlink()
    (run / "purged.json").write_text('{"state": "done"}')
    config = released.parent.parent / "run.yaml"
    assert run_command(["report", str(config), "--set", f"run_root={tmp_path}/elsewhere"]) == 0
    assert {name: (run / "release" / name).read_bytes() for name in before} == before
    assert not (run / "private").exists()


def _in_json(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def plant(release: Path) -> None:
        record = json.loads((release / name).read_text())
        change(record)
        (release / name).write_text(json.dumps(record))

    return plant


def _in_page(release: Path) -> None:
    page = release / "report.html"
    page.write_text(page.read_text().replace("<footer>", "<p>mean gap 13.72</p><footer>"))


def _in_chart(release: Path) -> None:
    page = release / "report.html"
    page.write_text(page.read_text().replace("</svg>", "<text>0.731</text></svg>", 1))


def _in_metadata(release: Path) -> None:
    table = pq.read_table(release / "labels.parquet")
    pq.write_table(
        table.replace_schema_metadata({**table.schema.metadata, "pate.gap": "13.72"}), release / "labels.parquet"
    )


def _in_a_column(release: Path) -> None:
    table = pq.read_table(release / "labels.parquet")
    pq.write_table(table.append_column("gap", table["query_id"]), release / "labels.parquet")


def _in_evaluation(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path], None]:
    """In the first row, the student's accuracy on all test inputs."""

    def plant(release: Path) -> None:
        table = pq.read_table(release / "evaluation.parquet")
        rows = table.to_pylist()
        assert rows[0]["measure"] == "accuracy"
        pq.write_table(pa.Table.from_pylist([change(rows[0]), *rows[1:]], table.schema), release / "evaluation.parquet")

    return plant


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (_in_json("privacy.json", lambda r: r.update(expected_answers=24.7)), "privacy.json: expected_answers = 24.7"),
        (_in_json("privacy.json", lambda r: r.update(epsilon=r["epsilon"] * 0.7)), "privacy.json: epsilon"),
        (_in_json("privacy.json", lambda r: r["ledger"].update(spent=1.0)), "privacy.json: ledger.spent = 1.0"),
        (_in_json("student.json", lambda r: r["extra"].update(loss=0.31)), "student.json: extra.loss = 0.31"),
        (
            _in_json("student.json", lambda r: r["extra"]["evaluation"].update(accuracy=0.99)),
            "student.json: extra.eval",
        ),
        (
            _in_evaluation(lambda row: row | {"estimate": row["estimate"] + 1e-3}),
            "evaluation.parquet: ('student', 'acc",
        ),
        (_in_evaluation(lambda row: row | {"low": row["low"] - 1e-3}), "evaluation.parquet: ('student', 'accuracy'"),
        (_in_evaluation(lambda row: row | {"count": row["count"] + 1}), "evaluation.parquet: ('student', 'accuracy'"),
        (_in_evaluation(lambda row: row | {"measure": "margin"}), "evaluation.parquet: ('student', 'margin'"),
        (_in_evaluation(lambda row: row | {"interval": "exact"}), "evaluation.parquet: ('student', 'accuracy'"),
        (_in_page, "report.html: 13.72"),
        (_in_chart, "report.html: charts"),
        (_in_metadata, "labels.parquet: metadata"),
        (_in_a_column, "labels.parquet: columns"),
        (lambda release: (release / "notes.json").write_text("{}"), "notes.json: is not explained"),
    ],
)
def test_a_number_without_origin_is_found(
    released: Path, tmp_path: Path, plant: Callable[[Path], None], found: str
) -> None:
    """A new number, one that is not what it should be, a new column, file, or mark in a chart."""
    shutil.copytree(released.parent, tmp_path / "runs")
    plant(tmp_path / "runs" / "run" / "release")
    assert [problem for problem in unexplained(tmp_path / "runs" / "run") if problem.startswith(found)]
