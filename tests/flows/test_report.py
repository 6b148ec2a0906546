"""The report stage: what the release report says, and what it must never be able to say."""

import dataclasses
import hashlib
import json
import math
import re
import stat
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from accounting.cost import guarantee
from accounting.events import ConfidentGNMax, GNMax
from accounting.ledger_rows import Request
from accounting.statement import Statement, event_of, rounded_up, validate_statement
from data.artifacts import read_labels
from data.errors import UserError
from data.public import load_test
from data.store import read_json, write_json
from flows import charges, evaluation_page, figures, private_report, report
from flows.context import Context
from flows.statement import run_statement
from student.measures import measure
from teachers import saved
from tests.flows.run_directory import evaluation, finished, settings_of, write_votes_and_partition

HOSTILE = '<script>alert("x")</script> & $\\frac{1}{0}$'


class _Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))


def _html(context: Context) -> str:
    return (context.run.release / "report.html").read_text(encoding="utf-8")


def _release(context: Context) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in context.run.release.iterdir()}


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Context:
    """A run with everything: abstentions, baseline, test part; its data is not a declared public benchmark."""
    context = finished(settings_of(tmp_path_factory.mktemp("reported")))
    report.write(context)
    return context


@pytest.fixture(scope="module")
def statement(reported: Context) -> Statement:
    """The statement of the reported run."""
    return run_statement(reported.settings, charges.open_account(reported.settings)[0])


def _page(context: Context, statement: Statement) -> str:
    return report.page(context.settings, context.run, statement, charges.open_account(context.settings)[1])


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Context:
    """A run without baseline and test part, with hostile names, not reported yet."""
    names = [HOSTILE, "</td><td>", *"cdefghij"]
    root = tmp_path_factory.mktemp("bare")
    data = {"name": "digits", "private": "all[:1197]", "public": "all[1197:1597]", "test": None, "classes": names}
    title = {"title": f"Title {HOSTILE}"}
    return finished(settings_of(root, data=data, report=title, baseline__enabled=False))


def test_a_report_needs_nothing_but_itself(reported: Context) -> None:
    """No address, no import, no script: both pages can be mailed, archived and opened offline."""
    for page in (_html(reported), (reported.run.private / "report-private.html").read_text(encoding="utf-8")):
        assert not re.search(r"https?:|//\w|@import|url\((?!#)|\bsrc=", page)
        found = _Page(page)
        assert not {"script", "link", "img", "iframe", "object", "base"} & set(found.tags)
        assert not [value for name, value in found.attributes if name == "href" and not value.startswith("#")]
        assert not [name for name, _ in found.attributes if name.startswith("on")]
        assert found.tags.count("svg") >= 2


def test_private_files_cannot_change_the_release(reported: Context, statement: Statement) -> None:
    """Whatever votes and partition say, released report and statement are the same bytes, given the same ledger."""
    before = _release(reported)
    private = (reported.run.private / "report-private.html").read_bytes()
    write_votes_and_partition(reported.run, reported.settings, seed=2)
    write_json(reported.run.private / "nonprivate.json", {"evaluation": evaluation(0.123)})
    (reported.run.private / "teachers").mkdir()
    write_json(reported.run.private / "teachers" / "ensemble.json", {"key": "k", "seed": 0, "chunks": []})

    report.write(reported)

    assert (reported.run.private / "report-private.html").read_bytes() != private
    assert _release(reported) == before
    for file in sorted(reported.run.private.rglob("*")):
        if file.is_file() and file.name in ("partition.parquet", "nonprivate.json", "ensemble.json"):
            file.unlink()
    assert _page(reported, statement) == _html(reported)


def test_the_statement_recomputes(reported: Context) -> None:
    """privacy.json is valid, and its ε is what the mechanism it names costs at the caps it names."""
    record = read_json(reported.run.release / "privacy.json")
    validate_statement(record)
    assert record["epsilon"] == guarantee(event_of(record), record["delta"]).epsilon
    assert record["ledger"]["spent"] == charges.open_account(reported.settings)[0].spent("digits")
    assert record["baseline"]["epsilon"] <= record["epsilon"]


def test_headline_numbers_are_those_of_the_release(reported: Context) -> None:
    """The page names ε (rounded up), δ, unit, counts, both accuracies with intervals, and all of the statement."""
    record, text = read_json(reported.run.release / "privacy.json"), _Page(_html(reported)).text
    shown = float(re.search(r"ε = ([\d.]+)", text)[1])  # type: ignore[index]
    assert record["epsilon"] <= shown < record["epsilon"] + 0.0011
    _, labels = read_labels(reported.run.release / "labels.parquet")
    answered = int((labels >= 0).sum())
    assert 0 < answered < len(labels)
    for words in (f"{answered} of {len(labels)} asked", "δ = 0.0001", "one record"):
        assert words in text
    flat = re.sub(r"\s", "", text)
    test = load_test(reported.settings.data, reported.settings.seed)
    assert test is not None
    for model in ("student", "baseline"):
        found = saved.load(reported.run.release / model).probabilities(test.features).argmax(1)
        right = int((found == test.labels).sum())
        interval = binomtest(right, len(found)).proportion_ci(0.95, method="exact")
        assert f"accuracy{right / len(found):.1%}95%interval{interval.low:.1%}to{interval.high:.1%}" in flat
    assert "calibrated to the labels' ε" in text
    assert re.sub(r"\s", "", record["statement"]) in flat


def test_every_class_is_counted(reported: Context) -> None:
    """The table of classes adds up to the answers and the abstentions."""
    _, labels = read_labels(reported.run.release / "labels.parquet")
    rows = re.findall(r'<td class="n">(\d+)</td>\s*<td class="n">(\d+)</td><td class="n">[\d.]+%', _html(reported))
    counts = np.array([[int(cell) for cell in row] for row in rows[-10:]])
    assert counts[:, 0].tolist() == np.bincount(labels[labels >= 0], minlength=10).tolist()
    assert counts[:, 1].sum() == (labels < 0).sum()


def test_released_files_are_listed_with_checkable_digests(reported: Context) -> None:
    """Each released file but report and manifest stands there with the digest that sha256sum prints."""
    html = _html(reported)
    for name, content in _release(reported).items():
        if name not in ("report.html", "manifest.json"):
            assert f"<b>{name}</b>" in html
            assert hashlib.sha256(content).hexdigest() in html


def test_non_private_accuracy_needs_a_declared_benchmark(reported: Context, statement: Statement) -> None:
    """Unless settings say that the data is public, no non-private number is released, even where one lies around."""
    path = reported.run.private / "nonprivate.json"
    write_json(path, {"evaluation": evaluation(0.4321)})
    private_report.write(reported)
    assert "43.2%" in (reported.run.private / "report-private.html").read_text(encoding="utf-8")
    html = _page(reported, statement)
    assert html == _html(reported)
    assert "43.2%" not in html

    settings = reported.settings
    declared = settings.model_copy(update={"data": settings.data.model_copy(update={"public_benchmark": True})})
    text = _Page(_page(dataclasses.replace(reported, settings=declared), statement)).text
    assert "not private; shown because the data is a declared public benchmark: 43.2%" in text
    path.unlink()


def test_names_cannot_inject_markup(bare: Context) -> None:
    """A class name or title with tags is shown as it was written, as text."""
    report.write(bare)
    html = _html(bare)
    page = _Page(html)
    assert "<script" not in html
    assert page.text.count(HOSTILE) >= 3
    assert page.words.count("</td><td>") == 1
    private = (bare.run.private / "report-private.html").read_text(encoding="utf-8")
    assert "<script" not in private


def test_without_baseline_and_test_part(bare: Context) -> None:
    """A run without baseline and test part is reported: no accuracy is made up, no baseline is mentioned.

    Nor does the evaluation of a former run with a test part stay.
    """
    former = bare.run.release / "evaluation.parquet"
    former.write_bytes(b"former")
    report.write(bare)
    assert not former.exists()
    text = _Page(_html(bare)).text
    assert "not measured: no test part" in text
    assert "the settings name no test part" in text
    assert "DP-SGD" not in text
    assert read_json(bare.run.release / "privacy.json")["baseline"] is None


@pytest.mark.parametrize("mechanism", [{"mechanism": "gnmax", "sigma": 12.0}, {"mechanism": "lnmax", "scale": 9.0}])
def test_mechanisms_that_answer_everything(tmp_path: Path, mechanism: dict[str, Any]) -> None:
    """GNMax and LNMax are reported with their own parameters, all queries answered, none abstained."""
    aggregation = mechanism | {"delta": 1e-4}
    context = finished(settings_of(tmp_path, aggregation=aggregation, baseline__enabled=False))
    report.write(context)
    text = _Page(_html(context)).text
    assert "120 of 120 asked" in text
    assert "abstained00.0%" in re.sub(r"\s", "", text)
    assert mechanism["mechanism"] in text
    assert "threshold" not in (context.run.private / "report-private.html").read_text(encoding="utf-8")


def test_a_stale_baseline_is_not_passed_off(reported: Context) -> None:
    """A baseline made by another event than the settings' is an error, not a wrong ε beside its accuracy."""
    path = reported.run.release / "baseline.json"
    record = path.read_text()
    changed: dict[str, Any] = json.loads(record)
    changed["extra"]["event"]["steps"] = 9
    write_json(path, changed)
    page = _html(reported)
    with pytest.raises(UserError, match=r"baseline\.json"):
        report.write_release(reported.settings, reported.run)
    assert _html(reported) == page
    path.write_text(record)


def test_another_release_shows_as_spent(bare: Context) -> None:
    """What other runs charge to the dataset stands in the report that is written after them."""
    report.write(bare)
    before = read_json(bare.run.release / "privacy.json")["ledger"]["spent"]
    ledger, account = charges.open_account(bare.settings)
    event = charges.labels_event(bare.settings)
    ledger.reserve(account, [Request("other", "aggregate", event, "labels", 4.4)])
    report.write(bare)
    after = read_json(bare.run.release / "privacy.json")["ledger"]["spent"]
    assert after > before
    assert f'<td class="n">{rounded_up(after)}</td>' in _html(bare)


def test_private_report_is_closed_and_says_so(reported: Context) -> None:
    """The private report is 0600, opens with a red banner, and labels the data-dependent ε as not publishable."""
    path = reported.run.private / "report-private.html"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    html = path.read_text(encoding="utf-8")
    body = html[html.index("<body>") :]
    assert body.index("PRIVATE: do not share") < body.index("<main>")
    assert re.search(r"data_dependent_p18.*not publishable, ex post", html, re.DOTALL)
    assert "δ is too large" not in html


def test_a_large_delta_is_warned_of_in_private(tmp_path: Path) -> None:
    """δ not below 1/units gets a warning, in the private report alone: the number of units is private."""
    context = finished(settings_of(tmp_path, aggregation__delta=1e-3, baseline__enabled=False))
    report.write(context)
    assert "δ is too large" in (context.run.private / "report-private.html").read_text(encoding="utf-8")
    assert "1,197" not in _html(context)


def test_data_dependent_epsilon_of_the_papers_votes(test_data: Path) -> None:
    """On the paper's MNIST votes the private report shows the literature's ε, 1.7119 at δ 1e-5, and the exact one."""
    votes = np.load(test_data / "votes" / "mnist_250_teachers.npy")[:640].astype(int)
    event = ConfidentGNMax(40.0, 200.0, 150.0, 640, 283)
    found = private_report.data_dependent(votes, event, 1e-5)
    assert found.figures["data_dependent_p18"].epsilon == pytest.approx(1.7119, abs=2e-4)
    assert found.figures["data_dependent_exact"].epsilon == pytest.approx(0.9227, rel=5e-3)
    assert found.expected_answers == pytest.approx(282.72, abs=0.01)
    assert len(found.per_query) == 640


def test_agreement_counts_ties_as_the_pluralitys_choice() -> None:
    """Agreement is the share of answered queries whose label has the most votes; any class of a tie counts."""
    votes = np.array([[5, 3, 2], [4, 4, 2], [1, 2, 7], [6, 2, 2]])
    facts = private_report.vote_facts(votes, np.array([0, 1, 0, -1]))
    assert facts.agreement == pytest.approx(2 / 3)
    assert facts.gap.tolist() == [2, 0, 5, 4]
    assert private_report.vote_facts(votes, np.full(4, -1)).agreement is None


def test_epsilon_is_never_rounded_down() -> None:
    """What a page prints for ε is at least ε, and within the last printed digit."""
    for epsilon in [*np.random.default_rng(0).uniform(0, 20, 500).tolist(), 0.0, 0.1, 1.0, 2.0004, 3e-6]:
        shown = float(rounded_up(epsilon))
        assert epsilon <= shown < epsilon + 0.000101
    assert rounded_up(2.0) == "2"
    assert rounded_up(math.inf) == "∞"


def test_a_page_of_many_classes_and_small_groups() -> None:
    """Confusions are listed where a matrix would be too wide; classes without inputs and groups of few are said."""
    rng = np.random.default_rng(0)
    names = tuple(f"<i>{n}</i>" for n in range(20))
    labels = rng.integers(0, 19, 200)
    groups = {"ward": np.array(["a"] * 197 + ["b"] * 3)}
    rows = measure({"student": rng.dirichlet(np.ones(20), 200)}, labels, groups, names, 0)
    found = evaluation_page.evaluation(rows, names)
    assert found is not None
    assert not found.matrix
    assert found.confusions == sorted(found.confusions, key=lambda pair: -pair[2])
    assert 0 < len(found.confusions) <= 12
    assert found.get("student", "recall", "class", of=names[19]) is None
    assert found.size(of=names[19]) == 0
    assert found.small
    assert found.size("ward", "b") == 3
    assert found.thin("student", "accuracy_difference", "ward")
    assert found.thin("student", "demographic_parity_difference", "ward", names[0])
    (group,) = found.groups
    for mark in (mark for strip in group.strips for mark in strip.marks):
        assert 0 <= mark.left <= mark.dot + 1e-9 <= mark.left + mark.width + 2e-9 <= 100 + 1e-6


def test_a_gap_is_marked_by_the_rates_that_it_compares() -> None:
    """Both groups are large, but one has three members of the class: what is made of its recall says little."""
    labels = np.array([0] * 97 + [1] * 3 + [0, 1] * 50)
    groups = {"ward": np.array(["a"] * 100 + ["b"] * 100)}
    rows = measure({"student": np.random.default_rng(0).dirichlet(np.ones(2), 200)}, labels, groups, ("no", "yes"), 0)
    found = evaluation_page.evaluation(rows, ("no", "yes"))
    assert found is not None
    assert found.small
    gaps = ("demographic_parity_difference", "equal_opportunity_difference", "equalized_odds_difference")
    assert [found.thin("student", gap, "ward", "yes") for gap in gaps] == [False, True, True]
    assert not found.thin("student", "accuracy_difference", "ward")


def test_charts_are_the_same_bytes_every_time() -> None:
    """A chart holds no date, random id or number of the process: equal inputs give equal bytes."""
    values = np.random.default_rng(1).poisson(30, 100_000).astype(float)
    first = figures.histogram(values, "votes")
    assert first == figures.histogram(values, "votes")
    assert len(first) < 40_000
    assert "#0" not in first.replace('"#', "").replace("(#", "")
    assert "viewBox" in first


@pytest.mark.parametrize("answers", [1, 2, 1000])
def test_cost_chart_takes_any_cap(answers: int) -> None:
    """The chart of ε against the cap is drawn from one answer to many, ending at this run's own ε."""
    event = GNMax(40.0, answers)
    assert "textbook bound" in report.epsilon_figure(event, 1e-5, guarantee(event, 1e-5).epsilon)
