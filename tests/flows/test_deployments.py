"""What is deployed: prefect.yaml, the form, names, one run a dataset, and the recipes of docs/deployment.md."""

import contextlib
import fcntl
import json
import re
import shlex
import subprocess
import sys
import threading
import time
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonpatch import JsonPatch

from accounting.ledger import open_ledger
from data.errors import RefusedError
from flows import charges, config
from flows.exclusive import dataset_held, lock_file
from flows.naming import flow_run_name
from flows.settings import Settings
from flows.stages import NAMES
from tests.flows.small import SMALL

PROJECT = Path(__file__).parents[2]
DEPLOY = PROJECT / "configs" / "deploy"
GUIDE = (PROJECT / "docs" / "deployment.md").read_text(encoding="utf-8")
DEPLOYMENTS = yaml.safe_load((PROJECT / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """The flow's parameters as the server and the UI's form get them."""
    from prefect.utilities.callables import parameter_schema

    from flows.full import pate

    return parameter_schema(pate).model_dump_for_openapi()


def test_the_pipeline_and_every_stage_are_deployed() -> None:
    """`full` and one deployment a stage, all of one flow and one pool, with the settings of configs/digits.yaml."""
    from flows.full import StageName

    assert typing.get_args(StageName) == NAMES
    assert [deployment["name"] for deployment in DEPLOYMENTS] == ["full", *NAMES]
    digits = yaml.safe_load((PROJECT / "configs" / "digits.yaml").read_text(encoding="utf-8"))
    for deployment, stage in zip(DEPLOYMENTS, [None, *NAMES], strict=True):
        assert deployment["parameters"] == {"run": None, "stage": stage, "config": digits}
        assert deployment["entrypoint"] == "flows/full.py:pate"
        assert deployment["work_pool"] == {"name": "pate"}


def test_deployed_parameters_satisfy_the_schema(schema: dict[str, Any]) -> None:
    """The server, which enforces the schema, takes them; it refuses a bound that is passed and a misspelt stage."""
    from prefect.utilities.schema_tools.validation import is_valid

    for deployment in DEPLOYMENTS:
        assert is_valid(deployment["parameters"], schema)
    given = DEPLOYMENTS[0]["parameters"]
    wrong = given["config"] | {"teachers": {"count": 0}}
    assert not is_valid(given | {"config": wrong}, schema)
    assert not is_valid(given | {"stage": "votes"}, schema)


def test_the_form_is_complete(schema: dict[str, Any]) -> None:
    """Each setting has a title and a description that the UI, which reads them as HTML, shows whole."""
    order = sorted(schema["properties"], key=lambda name: schema["properties"][name]["position"])
    assert order == ["config", "run", "stage"]
    parts = {"Settings": schema["definitions"]["Settings"], **schema["definitions"]}
    assert list(parts["Settings"]["properties"]) == list(Settings.model_fields)
    for part, definition in parts.items():
        for name, field in definition["properties"].items():
            if "$ref" in field or "allOf" in field:
                continue
            assert field.get("title"), f"{part}.{name}"
            assert field.get("description"), f"{part}.{name}"
            assert not set("<>") & set(field["title"] + field["description"]), f"{part}.{name}"
    assert parts["AggregationSettings"]["properties"]["mechanism"]["enum"]


def test_names_say_run_stage_and_guarantee() -> None:
    """ε is that of the ledger, rounded up; settings that will not do give the name that there is."""
    record = SMALL | {"name": "small"}
    epsilon = charges.labels_guarantee(config.build(record)).epsilon
    name, shown, delta = flow_run_name({"config": record}, "other").split()
    assert (name, delta) == ("small", "δ=1e-4")
    assert 0 <= float(shown.removeprefix("ε=")) - epsilon < 1e-4
    assert flow_run_name({"config": record, "run": "trial", "stage": "vote"}, "other").startswith("trial vote ε=")
    for parameters in ({}, {"config": None}, {"config": record | {"seed": -1}}, {"config": record, "run": "../up"}):
        assert flow_run_name(parameters, "other") == "other"


def _settings(root: Path, **ledger: Any) -> Settings:
    return config.build(SMALL | {"run_root": str(root), "name": "held", "ledger": {"epsilon": 50.0} | ledger})


def test_a_second_run_on_a_dataset_waits(tmp_path: Path) -> None:
    """It says so once, starts when the first is done, and another dataset is not kept waiting."""
    settings, said, order = _settings(tmp_path), [], []
    other = settings.model_copy(update={"data": settings.data.model_copy(update={"name": "other"})})

    def second() -> None:
        with dataset_held(settings, said.append):
            order.append("second")

    with dataset_held(settings, said.append):
        thread = threading.Thread(target=second)
        thread.start()
        with dataset_held(other, said.append):
            order.append("other")
        deadline = time.monotonic() + 30
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
        order.append("first")
    thread.join(30)
    assert order == ["other", "first", "second"]
    assert said == ["waiting: another flow run is working on dataset 'digits'"]


def test_a_killed_run_holds_nothing(tmp_path: Path) -> None:
    """The lock goes with its process."""
    path = lock_file(_settings(tmp_path))
    path.touch()
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "1\n"
    with path.open("w") as stream, pytest.raises(BlockingIOError):
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    holder.kill()
    holder.communicate()
    said: list[str] = []
    with dataset_held(_settings(tmp_path), said.append):
        assert said == []


def test_where_the_lock_lies(tmp_path: Path) -> None:
    """Beside a SQLite ledger, which several run roots may share; in run_root for a server's."""
    shared = {"url": f"sqlite:///{tmp_path}/team/budget.db"}
    assert lock_file(_settings(tmp_path / "a", **shared)) == lock_file(_settings(tmp_path / "b", **shared))
    assert lock_file(_settings(tmp_path / "a", **shared)).parent == tmp_path / "team"
    assert lock_file(_settings(tmp_path / "a")).parent == tmp_path / "a"
    assert lock_file(_settings(tmp_path / "a", url="postgresql://me@host/db")).parent == tmp_path / "a"


def test_the_image_holds_the_project_and_nothing_else() -> None:
    """Every COPY source exists and is let through by the ignore file; all packages are among them, runs are not."""
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    sources = [name for line in re.findall(r"^COPY (.+)$", dockerfile, re.M) for name in line.split()[:-1]]
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert all((PROJECT / name).exists() for name in sources)
    assert {line[1:] for line in allowed if line.startswith("!")} == set(sources)
    assert allowed.index("*") < min(at for at, line in enumerate(allowed) if line.startswith("!"))
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    assert {*project["tool"]["setuptools"]["packages"], "pyproject.toml", "prefect.yaml"} <= set(sources)


def test_compose_keeps_what_must_outlive_a_container() -> None:
    """Runs, ledger and Prefect's database are volumes, data are read-only, and only this machine reaches the server."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    services = compose["services"]
    assert services["worker"]["volumes"][0] == "runs:/opt/pate/runs"
    assert services["worker"]["volumes"][1].endswith(":/data:ro")
    mounted = {volume.split(":")[0] for service in services.values() for volume in service["volumes"]}
    assert set(compose["volumes"]) <= mounted
    assert services["server"]["ports"] == ["127.0.0.1:4200:4200"]
    build = services["worker"]["build"]
    assert (DEPLOY / build["context"]).resolve() == PROJECT
    assert (PROJECT / build["dockerfile"]).is_file()
    gpu = yaml.safe_load((DEPLOY / "compose.gpu.yaml").read_text(encoding="utf-8"))
    assert set(gpu["services"]) <= set(services)


def test_kubernetes_jobs_mount_what_the_recipe_makes() -> None:
    """The job template has what Prefect's worker requires of a manifest; its claims are those of the recipe."""
    template = json.loads((DEPLOY / "kubernetes-job-template.json").read_text(encoding="utf-8"))
    manifest = template["job_configuration"]["job_manifest"]
    container = {"name": "prefect-job"}
    pod = {"parallelism": 1, "completions": 1, "restartPolicy": "Never", "containers": [container]}
    required = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"labels": {}},
        "spec": {"template": {"spec": pod}},
    }
    given = manifest | {"metadata": manifest["metadata"] | {"labels": {}}}
    assert not [step for step in JsonPatch.from_diff(given, required) if step["op"] != "remove"]
    assert manifest["spec"]["backoffLimit"] == 0
    variables = template["variables"]["properties"]
    text = json.dumps(template["job_configuration"])
    assert set(re.findall(r"\{\{ (\w+) \}\}", text)) == set(variables)
    made = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))
    claims = {part["metadata"]["name"] for part in made if part["kind"] == "PersistentVolumeClaim"}
    assert claims == {variables["runs_claim"]["default"], variables["data_claim"]["default"]}
    assert "fsGroup" not in text
    values = yaml.safe_load((DEPLOY / "kubernetes-worker-values.yaml").read_text(encoding="utf-8"))
    assert values["worker"]["config"]["workPool"] == "pate"


def _commands() -> Iterator[list[str]]:
    """Commands in the guide's blocks; a line that ends inside a quotation goes on."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", GUIDE, re.M | re.S):
        line = ""
        for part in block.splitlines() if not language else []:
            line += part
            with contextlib.suppress(ValueError):
                yield shlex.split(line)
                line = ""


def test_commands_in_the_guide_exist(capfd: pytest.CaptureFixture[str]) -> None:
    """Every `prefect` command that the guide names has its options; so has `pate ledger limit`; files exist."""
    from flows.cli import run_command

    wanted: dict[tuple[str, ...], set[str]] = {}
    for words in _commands():
        programs = [at for at, word in enumerate(words) if Path(word).name == "prefect"]
        if programs and words[0] != "helm":
            rest = words[programs[-1] + 1 :]
            options = {word.partition("=")[0] for word in rest if word.startswith("--")}
            names = [word for word in rest if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-")]
            depth = 1 if names[0] == "deploy" else 2
            wanted.setdefault(tuple(names[:depth]), set()).update(options - {"--no-prompt"})
    assert {("deployment", "run"), ("deployment", "ls"), ("work-pool", "create"), ("deploy",)} <= set(wanted)
    for names, options in wanted.items():
        command = [sys.executable, "-m", "prefect", *names, "--help"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        assert not {option for option in options if option not in shown}, names
    capfd.readouterr()
    assert run_command(["ledger", "limit", "--help"]) == 0
    shown = capfd.readouterr().out
    assert all(option in shown for option in ("--epsilon", "--reason", "--ledger"))
    assert all((PROJECT / name).exists() for name in re.findall(r"configs/[\w./-]+\w", GUIDE))


def test_a_backup_is_a_ledger_and_a_frozen_one_refuses(tmp_path: Path) -> None:
    """The guide's line copies a ledger that is in use; lowering its limit, as the guide says, stops every charge."""
    settings = _settings(tmp_path)
    ledger, account = charges.open_account(settings)
    event = charges.labels_event(settings)
    from accounting.ledger_rows import Request

    ledger.reserve(account, [Request("run", "aggregate", event, "test", 11.0)])
    words = next(words for words in _commands() if "VACUUM INTO" in " ".join(words))
    backup = tmp_path / "backup.sqlite"
    subprocess.run([sys.executable, *words[1:-2], str(tmp_path / "ledger.sqlite"), str(backup)], check=True, timeout=60)
    copied = open_ledger(f"sqlite:///{backup}")
    assert copied.spent("digits") == ledger.spent("digits") > 0
    (epsilon,) = re.findall(r"pate ledger limit NAME --epsilon (\S+)", GUIDE)
    frozen = copied.raise_limit("digits", float(epsilon), why="restored an old backup")
    with pytest.raises(RefusedError):
        copied.reserve(frozen, [Request("another", "aggregate", event, "test", 11.0)])
