"""A small, whole run on digits that several tests read, and a way to run the command line in this process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli import run_command
from tests.flows.small import SMALL


@pytest.fixture(scope="session")
def small_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small config's file; every test gives its own run root."""
    path = tmp_path_factory.mktemp("config") / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    return path


@pytest.fixture
def pate(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any], str]]:
    """Run ``pate ...``; gives the exit code, the JSON object on the last line (or {}), and standard error."""

    def call(*arguments: object) -> tuple[int, dict[str, Any], str]:
        capfd.readouterr()
        code = run_command([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        last = out.strip().splitlines()[-1] if out.strip() else ""
        return code, json.loads(last) if last.startswith("{") else {}, err

    return call


@pytest.fixture(scope="session")
def small_root(small_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run root of one whole run of the small config. Tests must not change it."""
    root = tmp_path_factory.mktemp("runs")
    arguments = ["run", str(small_config), "--no-prefect", "--quiet", "--set", f"run_root={root}", "--run", "whole"]
    assert run_command(arguments) == 0
    return root
