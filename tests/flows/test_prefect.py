"""The Prefect flow on a temporary server: states of one line, stages alone, nothing secret in its database."""

import copy
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.config import build
from flows.console import console
from tests.flows.small import SMALL

pytestmark = pytest.mark.slow
SAID = console(quiet=True)
DEPLOY = Path(__file__).parents[2] / "configs" / "deploy"


@pytest.fixture(scope="module")
def harness() -> Iterator[None]:
    """One temporary Prefect server for all tests of this file."""
    from prefect.settings import (
        PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED,
        PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_ENABLED,
        temporary_settings,
    )
    from prefect.testing.utilities import prefect_test_harness

    off = {
        PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED: False,
        PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_ENABLED: False,
    }
    with temporary_settings(off), prefect_test_harness(server_startup_timeout=120):
        yield


def _record(root: Path, **changes: dict[str, Any]) -> dict[str, Any]:
    record = copy.deepcopy(SMALL) | {"run_root": str(root), "name": "flow"}
    record["student"] = {"method": "supervised", "model": "sklearn:sklearn.linear_model.LogisticRegression"}
    record["baseline"] = {"model": "logistic", "sampling_rate": 1.0, "batch_size": 1200, "steps": 5}
    for part, values in changes.items():
        record[part] = record[part] | values
    return record


def _settings(root: Path, **changes: dict[str, Any]) -> Any:
    return build(_record(root, **changes))


def test_the_flow_runs_every_stage_and_then_reuses_them(harness: None, tmp_path: Path) -> None:
    """Completed; the second time all eight stages are reused and nothing more is charged; so is a stage alone."""
    from accounting.ledger import open_ledger
    from flows.full import build as build_flow

    settings = _settings(tmp_path)
    first = build_flow(SAID)(settings, return_state=True)
    assert first.is_completed(), first.message
    assert (tmp_path / "flow" / "release" / "report.html").is_file()
    spent = open_ledger(settings.ledger_url).spent("digits")
    second = build_flow(SAID)(settings, return_state=True)
    assert second.is_completed()
    assert len(second.result()) == 8
    for stage in ("teach", "aggregate"):
        alone = build_flow(SAID)(settings, stage=stage, return_state=True)
        assert (alone.type.value, alone.name, alone.message) == ("COMPLETED", "Reused", f"run flow: {stage} reused")
    assert open_ledger(settings.ledger_url).spent("digits") == spent


def test_a_stage_alone_runs_that_stage(harness: None, tmp_path: Path) -> None:
    """Only its own output; a stage whose inputs are not there is a user's error."""
    from flows.full import build as build_flow

    state = build_flow(SAID)(_record(tmp_path), run="alone", stage="partition", return_state=True)
    assert (state.type.value, state.message) == ("COMPLETED", "run alone: partition done")
    assert (tmp_path / "alone" / "private" / "partition.parquet").is_file()
    assert not (tmp_path / "ledger.sqlite").exists()
    early = build_flow(SAID)(_record(tmp_path), run="alone", stage="vote", return_state=True)
    assert (early.type.value, early.name) == ("FAILED", "BadInput")
    assert early.message.startswith("vote: needs teach, queries, not run yet")


@pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
        ({"ledger": {"epsilon": 1.0}}, "Refused", "limit 1.0000"),
        ({"teachers": {"count": 1198}}, "BadInput", "teachers.count = 1198"),
        ({"aggregation": {"scale": 3.0}}, "BadInput", "aggregation.scale: is not a parameter of confident-gnmax"),
        ({"ledger": {"url": "sqlite:///${PATE_NOT_SET}"}}, "BadInput", "the environment variable PATE_NOT_SET is not"),
        ({"data": {"unit": 3}}, "BadInput", "data.unit"),
    ],
)
def test_failures_are_failed_states_of_one_line(
    harness: None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, Any],
    name: str,
    message: str,
) -> None:
    """A refusal and a user's error, with no traceback: neither in the state nor in the log."""
    from flows.full import build as build_flow

    caplog.set_level(logging.DEBUG)
    state = build_flow(SAID)(_record(tmp_path, **changes), return_state=True)
    assert state.is_failed()
    assert state.name == name
    assert message in state.message
    assert "\n" not in state.message
    assert f"Finished in state {name}(" in caplog.text
    assert "Traceback" not in state.message + caplog.text
    assert not (tmp_path / "flow" / "private" / "partition.parquet").exists()


@pytest.mark.parametrize(("config", "run"), [(None, None), ([1], None), ({}, None), (SMALL, "../outside"), (SMALL, "")])
def test_parameters_that_are_no_settings(harness: None, config: Any, run: str | None) -> None:
    """What a schema that is not enforced lets through is a user's error too; a run's name is never a way out."""
    from flows.full import build as build_flow

    state = build_flow(SAID)(config, run=run, return_state=True)
    assert (state.type.value, state.name) == ("FAILED", "BadInput")
    assert "\n" not in state.message


def test_a_defect_is_named_and_not_told(harness: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is nobody's error message: its kind is shown, its text is not."""
    from flows import full

    def defect(*arguments: Any) -> None:
        raise ValueError("row 17 of patient 4711")

    monkeypatch.setattr(full, "run_all", defect)
    state = full.build(SAID)(_settings(tmp_path), return_state=True)
    assert (state.type.value, state.message) == ("FAILED", "failed with ValueError")


def test_a_password_never_reaches_prefect(harness: None, tmp_path: Path) -> None:
    """`pate run` hands its flow the password; what Prefect stores as parameters does not have it."""
    from prefect.client.orchestration import get_client

    from data.errors import UserError
    from flows.full import run_in_process

    # Nobody listens on port 1; without PostgreSQL's driver it does not come to that.
    settings = _settings(tmp_path, ledger={"url": "postgresql://me:open-sesame@127.0.0.1:1/budget"})
    with pytest.raises(UserError, match=r"ledger\.url") as caught:
        run_in_process(settings, SAID)
    with get_client(sync_client=True) as client:
        stored = json.dumps([run.model_dump(mode="json") for run in client.read_flow_runs()])
    assert "me:***@127.0.0.1" in stored
    assert "open-sesame" not in stored + str(caught.value)


def test_the_server_takes_the_kubernetes_pool(harness: None) -> None:
    """The job template of the recipe is a base job template by the server's rules."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate

    template = json.loads((DEPLOY / "kubernetes-job-template.json").read_text(encoding="utf-8"))
    with get_client(sync_client=True) as client:
        made = client.create_work_pool(WorkPoolCreate(name="recipe", type="kubernetes", base_job_template=template))
    assert made.base_job_template == template
