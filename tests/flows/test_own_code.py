"""A network of the user's own in a whole run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.flows.small import SMALL

_CODE = """
import math
from torch import nn

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
"""


@pytest.mark.slow
def test_teachers_of_ones_own_are_trained_anew_when_their_code_changes(
    tmp_path: Path, pate: Callable[..., tuple[int, dict[str, Any], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partition and teach from a module on the path: reused while its file is the same, not after an edit."""
    monkeypatch.syspath_prepend(tmp_path)
    code = tmp_path / "own_nets_of_a_user.py"
    code.write_text(_CODE)
    config = tmp_path / "own.yaml"
    teachers = SMALL["teachers"] | {"model": "module:own_nets_of_a_user.net", "epochs": 1}
    config.write_text(yaml.safe_dump(SMALL | {"teachers": teachers}))
    said = []
    for stage in ("partition", "teach", "teach", "edited", "teach"):
        if stage == "edited":
            code.write_text(_CODE + "# another line\n")
            continue
        exit_code, _, err = pate(stage, config, "--set", f"run_root={tmp_path / 'runs'}")
        assert exit_code == 0, err
        said.append(err)
    assert "20 teachers, one after another" in said[1]
    assert "teach: reused" in said[2]
    assert "teach: done" in said[3]
