"""The student side cannot read what is private, because it never loads the code that does."""

import subprocess
import sys
from pathlib import Path

import pytest

import student

PRIVATE = ("data.private", "data.partition", "teachers.ensemble", "teachers.votes")
MODULES = sorted(
    f"student.{file.stem}" for file in Path(next(iter(student.__path__))).glob("*.py") if file.stem != "__init__"
)


@pytest.mark.slow
def test_importing_the_student_never_imports_private_readers() -> None:
    """With every module of student loaded, no module that reads private records, shards or votes is."""
    assert "student.training" in MODULES
    code = f"import importlib, sys; [importlib.import_module(m) for m in {MODULES!r}]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert set(MODULES) <= loaded
    assert not loaded & set(PRIVATE)
