"""A run that is killed while it writes a chunk: what was finished stays, what was half written never counts."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from data.examples import PrivateRecords
from teachers import chunks
from teachers.ensemble import complete
from tests.teachers.conftest import SETTINGS, parameters, recording, train

_CHILD = """
import os, signal, sys
from pathlib import Path
from sklearn.datasets import load_digits
import numpy as np
from teachers import chunks
from teachers.ensemble import train_chunk
from tests.teachers.conftest import SETTINGS, records_of, train

pixels, labels = load_digits(return_X_y=True)
images = np.round(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
records = records_of(images[:240], labels.astype(np.int32)[:240])

def half_a_file(tensors, path):
    Path(path).write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

def no_manifest(path, value):
    os.kill(os.getpid(), signal.SIGKILL)

def until_killed(function, jobs):
    yield train_chunk(jobs[0])
    if sys.argv[2] == "file":
        chunks.save_file = half_a_file
    else:
        chunks.write_json = no_manifest
    yield train_chunk(jobs[1])

train(Path(sys.argv[1]), records, SETTINGS, mapper=until_killed)
"""


@pytest.mark.slow
@pytest.mark.parametrize("at", ["file", "manifest"])
def test_a_killed_run_loses_only_the_chunk_it_was_writing(records: PrivateRecords, tmp_path: Path, at: str) -> None:
    """SIGKILL within the file, and between file and manifest: a rerun trains the missing chunks only, to the same bits.

    Neither the copy of the records nor a half-written file is left by then.
    """
    child = subprocess.run([sys.executable, "-c", _CHILD, str(tmp_path), at], check=False)
    assert child.returncode == -signal.SIGKILL
    folder = tmp_path / "private" / "teachers"
    assert chunks.manifest(folder, 0, 3, "key") is not None
    assert chunks.manifest(folder, 3, 6, "key") is None
    assert not complete(folder, "key", 8)
    trained: list[tuple[int, int]] = []
    train(tmp_path, records, SETTINGS, mapper=recording(trained))
    assert trained == [(3, 6), (6, 8)]
    assert parameters(folder) == parameters(train(tmp_path / "calm", records, SETTINGS))
    names = {path.name for path in folder.iterdir()}
    assert names == {path.name for path in (tmp_path / "calm" / "private" / "teachers").iterdir()}
