"""Runners of chunks: the same teachers and votes bit for bit, whoever dies on the way; nothing private travels."""

import functools
import importlib.util
import pickle
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from data.errors import StageError, UserError
from data.examples import PrivateRecords
from teachers import calls, clusters, ensemble
from teachers.calls import Call
from teachers.ensemble import ChunkJob
from teachers.settings import TeacherSettings
from teachers.votes import collect
from teachers.workers import pool
from tests.teachers.conftest import CLASSES, SETTINGS, parameters, recording, train
from tests.teachers.dying import DyingJob, die_in_training, die_or_answer, fail, train_or_die

RUNNERS = [
    pytest.param(
        runner,
        marks=pytest.mark.skipif(
            importlib.util.find_spec(calls.MODULES.get(runner, "sys")) is None,
            reason=f"the extra pate[{runner}] is not installed",
        ),
    )
    for runner in ("process", "dask", "ray")
]


@pytest.fixture(scope="module", params=RUNNERS)
def call(request: pytest.FixtureRequest) -> Iterator[Call]:
    """One worker of each kind, started once."""
    with calls.calls(SETTINGS.model_copy(update={"runner": request.param, "workers": 1})) as made:
        yield made


def _through(call: Call) -> Callable[..., Any]:
    def run(function: Callable[[Any], Any], jobs: list[Any]) -> Iterator[Any]:
        return map(functools.partial(call, function), jobs)

    return run


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


@pytest.mark.slow
def test_a_worker_killed_in_a_chunk_changes_no_bit_of_teachers_and_votes(
    call: Call, records: PrivateRecords, queries: np.ndarray, tmp_path: Path, marks: Path
) -> None:
    """The chunk is trained again by another worker; files that the dead one left count for nothing."""

    def dying(function: object, jobs: list[ChunkJob]) -> Iterator[Any]:
        for job in jobs:
            deaths = 1 if job.first == 3 else 0
            where = marks / str(job.first)
            where.mkdir()
            yield call(die_in_training, DyingJob(job.folder, where, deaths, job))

    killed = train(tmp_path / "killed", records, SETTINGS, mapper=dying)
    calm = train(tmp_path / "calm", records, SETTINGS)
    assert {path.name: len(list(path.iterdir())) for path in marks.iterdir()} == {"0": 1, "3": 2, "6": 1}
    assert parameters(killed) == parameters(calm)
    votes = collect(killed, queries, CLASSES, SETTINGS, mapper=_through(call))
    assert np.array_equal(votes, collect(calm, queries, CLASSES, SETTINGS))
    left = [path for path in (tmp_path / "killed").rglob("*") if path.name == "shards" or "voting" in path.parts]
    assert left == []


@pytest.mark.slow
def test_a_job_that_kills_every_worker_ends_in_one_line(call: Call, tmp_path: Path, marks: Path) -> None:
    """Tried three times, no more; the workers' pool or cluster works on afterwards."""
    with pytest.raises(StageError, match=r"^teachers\.runner = .*died 3 times[^\n]*$"):
        call(die_or_answer, DyingJob(tmp_path, marks, 99))
    assert len(list(marks.iterdir())) == calls.ATTEMPTS == 3
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    assert call(die_or_answer, DyingJob(tmp_path, fresh, 0)) == "alive"


@pytest.mark.slow
def test_an_exception_in_a_worker_comes_back_as_its_kind_alone_and_is_not_tried_again(
    call: Call, tmp_path: Path, marks: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its text is in private/errors.log, 0600, and nowhere on the way: not in the error, its causes or any output."""
    folder = tmp_path / "private" / "teachers"
    folder.mkdir(parents=True)
    with pytest.raises(StageError, match=r"^a chunk of teachers: failed with ValueError; see [^\n]*$") as caught:
        call(fail, DyingJob(folder, marks, 0))
    assert len(list(marks.iterdir())) == 1
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert "4711" not in "".join(capfd.readouterr())
    log = tmp_path / "private" / "errors.log"
    assert "4711" in log.read_text(encoding="utf-8")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


@pytest.mark.slow
def test_a_worker_that_does_not_see_the_run_says_so(call: Call, tmp_path: Path, marks: Path) -> None:
    """run_root on a disk that the worker does not have: a user's error of one line, before any work."""
    with pytest.raises(UserError, match=r"^run_root: a worker on \S+ does not see [^\n]*share[^\n]*$"):
        call(fail, DyingJob(tmp_path / "elsewhere", marks, 0))
    assert list(marks.iterdir()) == []


@pytest.mark.slow
def test_after_a_chunk_that_cannot_be_trained_a_rerun_trains_only_what_is_missing(
    records: PrivateRecords, tmp_path: Path, marks: Path
) -> None:
    """The pool of processes stops at the dead chunk and keeps the finished ones."""
    apart = SETTINGS.model_copy(update={"runner": "process", "workers": 1})

    def fatal(function: object, jobs: list[ChunkJob]) -> Any:
        dying = [DyingJob(job.folder, marks, 99 if job.first == 3 else 0, job) for job in jobs]
        return pool(apart)(train_or_die, dying)

    with pytest.raises(StageError, match="only what is missing"):
        train(tmp_path, records, SETTINGS, mapper=fatal)
    trained: list[tuple[int, int]] = []
    again = train(tmp_path, records, SETTINGS, mapper=recording(trained))
    # The thread that waited for the dead worker may have begun the next chunk before it heard of the end.
    assert trained in ([(3, 6)], [(3, 6), (6, 8)])
    assert parameters(again) == parameters(train(tmp_path / "calm", records, SETTINGS))


def test_jobs_and_results_are_paths_and_keys(records: PrivateRecords, queries: np.ndarray, tmp_path: Path) -> None:
    """No array is in what is sent or comes back: it would pass through a cluster's memory, network and disk."""
    seen: list[int] = []

    def watching(function: Callable[[Any], Any], jobs: list[Any]) -> Iterator[Path]:
        for job in jobs:
            seen.append(len(pickle.dumps(job)))
            result = function(job)
            assert isinstance(result, Path)
            yield result

    folder = train(tmp_path, records, SETTINGS, mapper=watching)
    small = collect(folder, queries[:1], CLASSES, SETTINGS, mapper=watching)
    large = collect(folder, np.tile(queries, (20, 1, 1, 1)), CLASSES, SETTINGS, mapper=watching)
    assert small.shape == (1, CLASSES)
    assert large.sum() == 8 * 20 * len(queries)
    assert seen[3:6] == seen[6:9]
    assert max(seen) < 2000


def test_shards_of_another_key_are_not_read(records: PrivateRecords, tmp_path: Path) -> None:
    """A worker left over from an ended run never trains its teachers on this run's shards."""
    folder = tmp_path / "private" / "teachers"

    def straggling(function: Callable[[Any], Any], jobs: list[ChunkJob]) -> Iterator[Path]:
        old = ChunkJob(folder, 0, 3, SETTINGS, 7, (1, 8, 8), CLASSES, "older")
        with pytest.raises(FileNotFoundError):
            function(old)
        return map(function, jobs)

    train(tmp_path, records, SETTINGS, key="newer", mapper=straggling)
    assert ensemble.complete(folder, "newer", 8)


@pytest.mark.parametrize("runner", ["dask", "ray"])
def test_a_missing_extra_is_named_before_anything_starts(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with the command that installs it; exit code 2."""
    monkeypatch.setattr(calls, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"^teachers\.runner = '{runner}': [^\n]*pip install 'pate\[{runner}\]'$"):
        ensemble.check(SETTINGS.model_copy(update={"runner": runner}), (1, 8, 8), CLASSES)


@pytest.mark.parametrize(
    ("runner", "address", "kind"),
    [
        pytest.param("dask", "tcp://127.0.0.1:1", "Dask scheduler", marks=RUNNERS[1].marks),
        pytest.param("ray", "127.0.0.1:1", "Ray cluster", marks=RUNNERS[2].marks),
    ],
)
def test_a_cluster_that_does_not_answer_is_a_users_error(
    runner: str, address: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting, its value, and no traceback of the connection."""
    monkeypatch.setattr(clusters, "_CONNECT_SECONDS", 1)
    away = SETTINGS.model_copy(update={"runner": runner, "address": address})
    with pytest.raises(UserError, match=rf"^teachers\.address = '{address}': no {kind} answers there [^\n]*$"):
        list(pool(away)(fail, [None]))


def test_where_teachers_run_is_no_part_of_what_they_are() -> None:
    """Another runner, cluster or number of workers finds the same teachers up to date."""
    from flows.config import build
    from flows.stages import stage_named
    from tests.flows.small import SMALL

    here = build(SMALL)
    moved = {"runner": "dask", "workers": 9, "address": "tls://scheduler:8786", "gpus": 1, "chunk": 3}
    there = build(SMALL | {"teachers": SMALL["teachers"] | moved})
    assert stage_named("teach").settings(here) == stage_named("teach").settings(there)


@pytest.mark.parametrize(
    "wrong",
    [
        {"address": "tcp://scheduler:8786"},
        {"runner": "process", "address": "auto"},
        {"gpus": 1},
        {"runner": "dask", "gpus": 1},
        {"runner": "spark"},
    ],
)
def test_settings_that_no_runner_has_are_refused(wrong: dict[str, Any]) -> None:
    """An address or GPUs for a runner that has none would be ignored in silence."""
    with pytest.raises(ValidationError):
        TeacherSettings(**wrong)
