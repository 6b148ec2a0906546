"""What the zone proof runs, in a process of its own: ``python -m tests.flows.planted FOLDER``.

A table is planted with a text, a unit and a number that occur nowhere else. The pipeline is run on it from the command
line and as a Prefect flow, every logger at DEBUG and every warning shown, and private stages fail in turn. FOLDER then
holds the runs, ``heard/`` (logs and exceptions) and Prefect's database and result storage.
"""

import contextlib
import logging
import multiprocessing
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from flows.cli import run_command
from flows.config import load

TEXT, UNIT, SCORE = "quixotic-zebra-7f3a91c2", "patient-KJ58213-walrus", 0.61803398874
UNITS, TEACHERS, QUERIES = 14_939, 11, 40
CLASSES = ["low", "middle", "high"]


def _rows(rows: int, seed: int) -> dict[str, list[Any]]:
    rng = np.random.default_rng(seed)
    score, income = rng.normal(size=rows), rng.normal(size=rows)
    rank = np.digitize(score + income / 2 + rng.normal(size=rows) / 2, [-0.8, 0.8])
    return {
        "score": score.tolist(),
        "income": income.tolist(),
        "ward": rng.choice(["north", "south"], rows).tolist(),
        "who": [f"u{n}" for n in range(rows)],
        "outcome": [CLASSES[at] for at in rank],
    }


def plant(folder: Path) -> Path:
    """The config over a private table that holds the canaries, a public and a test one; returns its path."""
    private = _rows(UNITS, 1)
    for name, value in (("ward", TEXT), ("who", UNIT), ("score", SCORE)):
        private[name][UNITS // 2] = value
    # Some people have a second record, so that records, units and shards are of different sizes.
    for name, values in private.items():
        values += values[3:1000:7] if name in ("who", "outcome") else values[2:999:7]
    parts = {"private": private, "public": _rows(61, 2), "test": _rows(211, 3)}
    del parts["public"]["outcome"]
    for name, columns in parts.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    config = {
        "run_root": str(folder / "runs"),
        "data": {
            "name": "ward-7",
            "source": "parquet",
            "label": "outcome",
            "unit": "who",
            "classes": CLASSES,
            **{name: str(folder / f"{name}.parquet") for name in parts},
        },
        "ledger": {"epsilon": 1e4},
        "teachers": {"count": TEACHERS, "model": "logistic", "epochs": 1, "batch_size": 256, "chunk": 4},
        "queries": {"strategy": "random", "count": QUERIES},
        "aggregation": {
            "mechanism": "confident-gnmax",
            "sigma": 2.0,
            "threshold": 6.0,
            "threshold_sigma": 3.0,
            "max_answers": 25,
            "delta": 1e-6,
        },
        "student": {"method": "supervised", "model": "logistic", "epochs": 5},
        "baseline": {"model": "logistic", "sampling_rate": 0.02, "batch_size": 300, "steps": 3},
    }
    path = folder / "planted.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


class Nasty(Exception):
    """An exception that carries private values wherever an exception can."""

    def __init__(self) -> None:
        super().__init__(f"row {TEXT}: unit {UNIT}", SCORE)
        self.add_note(f"seen: {TEXT}")
        self.filename = TEXT
        self.__cause__ = ValueError(f"caused by {UNIT}")
        self.__context__ = KeyError(TEXT)


def _raises(error: Callable[[], BaseException]) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        try:
            raise ValueError(f"while handling {TEXT}")
        except ValueError:
            raise error()  # noqa: B904  (the context is what is tested)

    return fail


def _full() -> OSError:
    return OSError(28, f"No space left for {TEXT}", f"/{UNIT}.parquet")


def _interrupt() -> KeyboardInterrupt:
    return KeyboardInterrupt(TEXT)


# What is deleted, which function then fails, and with what. Each is the inmost function that holds private values.
FAULTS: list[tuple[str, str, Callable[[], BaseException]]] = [
    ("private/partition.parquet", "flows.work.load_private", Nasty),
    ("private/teachers", "teachers.trainers.train_group", Nasty),
    ("private/votes.parquet", "teachers.fitting.outputs", Nasty),
    ("private/votes.parquet", "teachers.fitting.outputs", _interrupt),
    ("private/votes.parquet", "data.artifacts.pq.write_table", _full),
    ("release/labels.parquet", "aggregation.answering.answer", Nasty),
    ("release/baseline.safetensors", "baseline.dpsgd.noisy_step", Nasty),
    ("release/report.html", "flows.private_report.vote_facts", Nasty),
]


def _exceptions(error: BaseException | None, seen: set[int]) -> Iterator[str]:
    """All that an exception carries, with what it was raised from and while handling what."""
    if error is not None and id(error) not in seen:
        seen.add(id(error))
        yield f"{type(error).__name__} {error} {error.args!r} {vars(error)!r}"
        yield from _exceptions(error.__cause__, seen)
        yield from _exceptions(error.__context__, seen)


class _Caught(logging.Handler):
    """Keeps the exceptions that are handed to a logger."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.texts += _exceptions(record.exc_info[1], set())


@contextlib.contextmanager
def _prefect(folder: Path) -> Iterator[Path]:
    """A temporary Prefect server that keeps all it is told, in the database at the path given."""
    from prefect import settings as prefect
    from prefect.testing.utilities import prefect_test_harness

    everything: dict[Any, Any] = {
        prefect.PREFECT_LOCAL_STORAGE_PATH: folder / "storage",
        prefect.PREFECT_LOGGING_LEVEL: "DEBUG",
        prefect.PREFECT_LOGGING_TO_API_ENABLED: True,
        prefect.PREFECT_RESULTS_PERSIST_BY_DEFAULT: True,
    }
    with prefect.temporary_settings(everything), prefect_test_harness(server_startup_timeout=180):
        url = prefect.PREFECT_SERVER_DATABASE_CONNECTION_URL.value()
        yield Path(str(getattr(url, "get_secret_value", lambda: url)()).partition("///")[2])


def _delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _flow(settings: Any, caught: _Caught) -> Any:
    """Run the flow; its state, and every exception that it raises or holds."""
    from flows.full import build

    try:
        state = build()(settings, return_state=True)
    except BaseException as error:
        caught.texts += _exceptions(error, set())
        return None
    caught.texts.append(repr(state))
    if state.is_failed() or state.is_crashed():
        held = state.result(raise_on_failure=False)
        caught.texts += _exceptions(held if isinstance(held, BaseException) else None, set())
        caught.texts.append(repr(held))
    return state


def _flow_with_faults(config: Path, caught: _Caught) -> None:
    settings = load(config, (), "good")
    root = Path(settings.run_root) / "good"
    assert _flow(settings, caught).is_completed(), caught.texts[-1]
    for deleted, place, error in FAULTS:
        _delete(root / deleted)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, _raises(error))
            state = _flow(settings, caught)
        assert state is None or state.is_failed() or state.is_crashed(), (place, state)
        assert state is not None or error is _interrupt, place
    _flow_with_dying_workers(config, caught)
    assert _flow(settings, caught).is_completed(), caught.texts[-1]
    # Found by the stages themselves, with a value of the file in the text of what they are raised from.
    chunk = next((root / "private" / "teachers").glob("*.safetensors"))
    whole = chunk.read_bytes()
    chunk.write_bytes(TEXT.encode() + whole[len(TEXT) :])
    assert _flow(settings, caught).is_failed()
    chunk.write_bytes(whole)
    columns = pq.read_table(settings.data.private).to_pydict()
    pq.write_table(pa.table(columns | {"score": [TEXT] * len(columns["score"])}), config.parent / "bad.parquet")
    assert _flow(load(config, [f"data.private={config.parent}/bad.parquet"], "bad"), caught).is_failed()


def _flow_with_dying_workers(config: Path, caught: _Caught) -> None:
    """Workers in processes of their own: one that fails with the records in its message, one that is killed."""
    from teachers import ensemble, shards

    def damaged(folder: Path, *_: object) -> None:
        real(folder, *_)
        array = folder / "features.npy"
        array.write_bytes(array.read_bytes()[:10] + f"{{{TEXT!r}: 1}}".encode().ljust(117) + b"\n")

    def killer() -> None:
        while not done.wait(0.05):
            for child in multiprocessing.active_children():
                child.kill()

    real, done = shards.write_shards, threading.Event()
    settings = load(config, ["teachers.runner=process", "teachers.workers=1"], "good")
    _delete(Path(settings.run_root) / "good" / "private" / "teachers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ensemble, "write_shards", damaged)
        assert _flow(settings, caught).is_failed()
    thread = threading.Thread(target=killer, daemon=True)
    thread.start()
    assert _flow(settings, caught).is_failed()
    done.set()
    thread.join()


def _command_line(config: Path) -> None:
    root = config.parent / "runs"
    good = ["run", str(config), "--no-prefect", "--run", "good"]
    assert run_command(good) == 0
    assert run_command([*good, "--json"]) == 0
    for deleted, place, error in FAULTS[1::2]:
        _delete(root / "good" / deleted)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, _raises(error))
            assert run_command(good) == 1
    assert run_command(good) == 0
    ledger = f"sqlite:///{root}/ledger.sqlite"
    assert run_command(["predict", str(root / "good"), str(config.parent / "test.parquet")]) == 0
    assert run_command(["ledger", "show", "--ledger", ledger]) == 0
    assert run_command(["ledger", "export", "--ledger", ledger]) == 0


def main(folder: Path) -> None:
    """Run everything once; what is printed goes where the caller sends it."""
    config, heard, caught = plant(folder), folder / "heard", _Caught()
    heard.mkdir()
    log = logging.FileHandler(heard / "debug.log")
    log.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s %(args)r"))
    warnings.simplefilter("always")
    logging.captureWarnings(True)
    # Loggers of Prefect that do not hand on what they are told.
    for name in (None, "prefect", "prefect.flow_runs", "prefect.task_runs", "absl"):
        logging.getLogger(name).setLevel(logging.DEBUG)
        for handler in (log, caught):
            logging.getLogger(name).addHandler(handler)
    _command_line(config)
    with _prefect(folder) as database:
        _flow_with_faults(config, caught)
    shutil.copytree(database.parent, folder / "prefect")
    (heard / "exceptions.txt").write_text("\n".join(caught.texts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
