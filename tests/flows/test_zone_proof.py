"""The zone proof: what is private is nowhere to be seen, whatever is run and whatever goes wrong.

A process runs the pipeline on a table planted with canaries, with every private stage failing in turn
(:mod:`tests.flows.planted`). Every byte of the releases, its console, its logs at DEBUG, the exceptions that reach
Prefect, Prefect's database and result storage, and the ledger is then searched for the canaries and for what was
computed from private data: sizes of shards, votes, teachers, keyed digests, the key, the data-dependent ε. The same
detector is shown leaks planted on purpose.
"""

import base64
import contextlib
import dataclasses
import gzip
import hashlib
import io
import os
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
import yaml
from PIL import Image

from data.artifacts import read_labels, read_votes
from data.errors import StageError, UserError
from data.partition import read_partition
from data.private import load_private
from data.public import table_encoder
from data.store import read_json
from flows import charges, private_report, report, stages, work
from flows.cli import run_command
from flows.config import load
from flows.settings import Settings
from teachers import estimators
from tests.flows.leaks import Canary, files_under, leaks
from tests.flows.planted import CLASSES, SCORE, TEACHERS, TEXT, UNIT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def private_facts(settings: Settings) -> list[Canary]:
    """What is planted in the private table, and what the run computed from it."""
    root, private = Path(settings.run_root), Path(settings.run_root) / "good" / "private"
    records = load_private(settings.data, settings.seed, table_encoder(settings.data, settings.seed))
    parts = read_partition(private / "partition.parquet")
    votes = read_votes(private / "votes.parquet")
    _, labels = read_labels(private.parent / "release" / "labels.parquet")
    spent = private_report.data_dependent(votes[: len(labels)], charges.labels_event(settings), 1e-6)
    ordered = np.sort(votes, axis=1)
    units = np.bincount(parts.teachers, minlength=TEACHERS)
    rows = np.bincount(parts.teachers[np.searchsorted(parts.units, records.units)], minlength=TEACHERS)
    row = int(np.flatnonzero(np.isclose(records.features[:, 0], _encoded_score(records, settings), atol=1e-7))[0])
    key = (root / ".keys" / "ward-7.key").read_bytes()
    canaries = [
        Canary("text of a record", TEXT),
        Canary("unit", UNIT),
        Canary("number of a record", SCORE),
        Canary("encoded record", records.features[row]),
        Canary("the private file", Path(str(settings.data.private)).read_bytes()[-4000:-8]),
        Canary("number of records", len(records.labels)),
        Canary("number of units", len(parts.units)),
        Canary("units of the shards", units),
        Canary("records of the shards", rows),
        *(Canary("units of a shard", int(size)) for size in units),
        *(Canary("records of a shard", int(size)) for size in rows),
        Canary("votes", votes.ravel()),
        Canary("votes of a query", votes[:4].ravel()),
        *(Canary(f"votes of class {name}", votes[:, at]) for at, name in enumerate(CLASSES)),
        Canary("largest counts", ordered[:, -1]),
        Canary("gaps", ordered[:, -1] - ordered[:, -2]),
        *(Canary(f"ε {name}", found.epsilon) for name, found in spent.figures.items()),
        Canary("cost of each query", spent.per_query[:8]),
        *(Canary("cost of a query", float(cost)) for cost in np.unique(spent.per_query) if cost > 1e-5),
        Canary("expected answers", spent.expected_answers),
        Canary("the dataset's key", key),
        *(Canary("hash of a unit", unit) for unit in parts.units[:: len(parts.units) // 50].tolist()),
        *(Canary(f"digest of {path}", value) for path, value in _private_digests(private)),
    ]
    for file in sorted((private / "teachers").glob("*.safetensors")):
        for name, tensor in safetensors.numpy.load_file(file).items():
            canaries.append(Canary(f"teacher {name}", tensor.ravel()[:3]))
            canaries += [Canary(f"weight of teacher {name}", float(tensor.ravel()[0]))] * ("weight" in name)
    return canaries


def _encoded_score(records: Any, settings: Any) -> float:
    encoder = table_encoder(settings.data, settings.seed)
    assert encoder is not None
    return (SCORE - encoder.columns[0].mean) / encoder.columns[0].std


def _private_digests(private: Path) -> Iterator[tuple[str, str]]:
    manifest = read_json(private / "manifest.json")
    yield "data.private", manifest["content"]
    for stage in manifest["stages"].values():
        for path, value in {**stage["outputs"], **stage["inputs"]}.items():
            if path.startswith("private/") or path == "private":
                yield path, value


@dataclasses.dataclass(frozen=True)
class Seen:
    """All that may be seen of the runs (surfaces by name), and what must not be seen there."""

    surfaces: dict[str, bytes]
    canaries: list[Canary]
    folder: Path


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Everything run once, everything that went out kept."""
    folder = tmp_path_factory.mktemp("zone")
    with (folder / "stdout.txt").open("w") as out, (folder / "stderr.txt").open("w") as err:
        command = [sys.executable, "-m", "tests.flows.planted", str(folder)]
        environment = os.environ | {"PREFECT_LOGGING_LEVEL": "DEBUG", "PYTHONWARNINGS": "always"}
        project = Path(__file__).parents[2]
        code = subprocess.run(command, stdout=out, stderr=err, cwd=project, env=environment, check=False).returncode
    assert code == 0, (folder / "stderr.txt").read_text()[-3000:]
    surfaces = files_under(*(folder / name for name in ("heard", "storage", "prefect")), *folder.glob("runs/*/release"))
    loose = [
        folder / "stdout.txt",
        folder / "stderr.txt",
        *folder.glob("runs/*.sqlite*"),
        *folder.glob("runs/*/*.yaml"),
    ]
    surfaces |= {str(path): path.read_bytes() for path in loose}
    return Seen(surfaces, private_facts(load(folder / "planted.yaml", (), "good")), folder)


def test_nothing_private_is_to_be_seen(seen: Seen) -> None:
    """No canary in any byte of what leaves the private zone, after successes and failures of every private stage."""
    assert leaks(seen.surfaces, seen.canaries) == []


def test_the_search_looks_where_things_happened(seen: Seen) -> None:
    """The faults came about and were reported in public; what they carried lies in ``private/``, where it is found."""
    told = b"\n".join(seen.surfaces.values())
    for words in (
        "partition: failed with Nasty",
        "teach: failed with Nasty",
        "a chunk of teachers: failed with ValueError",
        "workers that held the same chunk of teachers died 3 times",
        "vote: no space left",
        "aggregate: failed with Nasty",
        "baseline: failed with Nasty",
        "report: failed with Nasty",
        "column 'score' must hold",
        "is corrupt",
        "Crash detected!",
        "interrupted",
    ):
        assert words.encode() in told, words
    found = leaks(files_under(seen.folder / "runs" / "good" / "private", seen.folder / "runs" / ".keys"), seen.canaries)
    for name in (
        "text of a record",
        "unit",
        "votes",
        "units of a shard",
        "ε data_dependent_exact",
        "the dataset's key",
    ):
        assert [line for line in found if line.startswith(f"{name} in ")], name


def _says_a_shard_size(patch: pytest.MonkeyPatch) -> None:
    def partition(records: Any, teachers: int, seed: int) -> Any:
        parts = real(records, teachers, seed)
        print(f"largest shard: {np.bincount(parts.teachers).max()} units", file=sys.stderr)
        return parts

    real = work.make_partition
    patch.setattr(work, "make_partition", partition)


def _shows_an_exception(patch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def open_boundary(*_: object) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise StageError(str(error)) from error

    def fail(*_: object, **__: object) -> None:
        raise ValueError(f"cannot read {UNIT}")

    patch.setattr(stages, "scrubbed", open_boundary)
    patch.setattr(work, "load_private", fail)


def _releases_the_votes(patch: pytest.MonkeyPatch) -> None:
    def write_labels(path: Path, ids: np.ndarray, outcomes: np.ndarray, metadata: dict[str, str]) -> None:
        real(path, ids, outcomes, metadata)
        votes = read_votes(path.parents[1] / "private" / "votes.parquet")[: len(outcomes)]
        pq.write_table(pq.read_table(path).append_column("n", pa.array(votes.max(1).astype(np.int8))), path)

    real = work.write_labels
    patch.setattr(work, "write_labels", write_labels)


def _releases_the_private_epsilon(patch: pytest.MonkeyPatch) -> None:
    def write(context: Any) -> None:
        real(context)
        _, labels = read_labels(context.run.release / "labels.parquet")
        votes = read_votes(context.run.private / "votes.parquet")[: len(labels)]
        event, delta = charges.labels_event(context.settings), context.settings.aggregation.delta
        spent = private_report.data_dependent(votes, event, delta).figures["data_dependent_exact"]
        page = context.run.release / "report.html"
        page.write_text(page.read_text() + f"<p>really ε = {spent.epsilon:.4f}</p>")

    real = report.write
    patch.setattr(report, "write", write)


@pytest.mark.parametrize(
    ("stage", "deleted", "leak", "found"),
    [
        ("partition", "private/partition.parquet", _says_a_shard_size, "units of a shard in stderr"),
        ("partition", "private/partition.parquet", _shows_an_exception, "unit in stderr"),
        ("aggregate", "release/labels.parquet", _releases_the_votes, "largest counts in labels.parquet (column n)"),
        ("report", "release/report.html", _releases_the_private_epsilon, "ε data_dependent_exact in report.html"),
    ],
)
def test_a_leak_planted_on_purpose_is_found(
    seen: Seen,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    deleted: str,
    leak: Callable[[pytest.MonkeyPatch], None],
    found: str,
) -> None:
    """With one line of the program changed to leak, the same search finds it: the proof above can fail."""
    runs = Path(shutil.copytree(seen.folder / "runs", tmp_path / "runs"))
    (runs / "good" / deleted).unlink()
    leak(monkeypatch)
    run_command([stage, str(seen.folder / "planted.yaml"), "--run", "good", "--set", f"run_root={runs}"])
    out, err = capfd.readouterr()
    release = {file.name: file.read_bytes() for file in (runs / "good" / "release").iterdir()}
    assert found in leaks({"stdout": out.encode(), "stderr": err.encode(), **release}, seen.canaries)


@pytest.mark.parametrize("content", [None, b"not an image"])
def test_names_of_private_images_are_not_seen(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    """A file name may be a patient's: it is in no release, on no console and in no error about that very file."""
    rng, name = np.random.default_rng(0), "jane-doe-7f3a91c2"
    for part, count in (("private", 20), ("public", 10), ("test", 5)):
        for label in "ab":
            folder = tmp_path / part / label
            folder.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(folder / f"{part}{number}.png")
    secret = (tmp_path / "private" / "a" / "private7.png").rename(tmp_path / "private" / "a" / f"{name}.png")
    if content is not None:
        secret.write_bytes(content)
    config = {
        "run_root": str(tmp_path / "runs"),
        "data": {"name": "images", "source": "imagefolder", "classes": ["a", "b"]}
        | {part: str(tmp_path / part) for part in ("private", "public", "test")},
        "ledger": {"epsilon": 100},
        "teachers": {"count": 4, "model": "logistic", "epochs": 2},
        "queries": {"count": 8},
        "aggregation": {"mechanism": "gnmax", "sigma": 3.0, "delta": 1e-4},
        "student": {"method": "supervised", "model": "logistic", "epochs": 2},
        "baseline": {"enabled": False},
    }
    (tmp_path / "images.yaml").write_text(yaml.safe_dump(config))
    code = run_command(["run", str(tmp_path / "images.yaml"), "--no-prefect"])
    assert code == (0 if content is None else 2)
    out, err = capfd.readouterr()
    surfaces = files_under(*(tmp_path / "runs").glob("*/release")) | {"stdout": out.encode(), "stderr": err.encode()}
    assert leaks(surfaces, [Canary("name of a private file", name)]) == []


def test_an_estimator_that_prints_what_it_learns_is_refused() -> None:
    """scikit-learn's verbose fits write losses of a private shard to the console, some past Python's own streams."""
    path = "sklearn:sklearn.neural_network.MLPClassifier"
    assert estimators.build(path, {"verbose": False}, 0).verbose is False
    with pytest.raises(UserError, match="params: verbose = True: must be 0"):
        estimators.build(path, {"verbose": True}, 0)


def _parquet(column: Any) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table({"x": column}), stream, compression="zstd")
    return stream.getvalue()


def _zip(content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        # A fixed time: parallel workers must collect the same cases.
        archive.writestr(zipfile.ZipInfo("inside"), content, zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def _database(value: object) -> bytes:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute("create table t (x)")
        database.execute("insert into t values (?)", (value,))
        database.commit()
        return database.serialize()


COUNTS = np.array([7, 11, 3, 9, 10, 8, 11, 6, 4, 5], dtype=np.int64)
WEIGHTS = np.array([0.173261, -1.5523, 0.000621], dtype=np.float32)


@pytest.mark.parametrize(
    ("value", "surface"),
    [
        (TEXT, b"row " + TEXT.encode() + b" failed"),
        (TEXT, TEXT.encode().hex().encode()),
        (TEXT, base64.b64encode(b"x" + TEXT.encode() + b"yz")),
        (TEXT, base64.urlsafe_b64encode(b"xx" + TEXT.encode())),
        (TEXT, hashlib.sha256(TEXT.encode()).hexdigest().encode()),
        (TEXT, TEXT.encode("utf-16-le")),
        (TEXT, gzip.compress(b"a" + TEXT.encode(), mtime=0)),
        (TEXT, _zip(gzip.compress(TEXT.encode(), mtime=0))),
        (TEXT, _parquet([TEXT, "other"])),
        (TEXT, _database(TEXT)),
        (SCORE, f"value {SCORE}".encode()),
        (SCORE, f"value {SCORE:.5f} of".encode()),
        (12.34561, b"<td>12.3457</td>"),
        (SCORE, np.array([1.0, SCORE]).tobytes()),
        (SCORE, _database(SCORE)),
        (1321, b"shard of 1,321 units"),
        (1321, b'{"size": 1321}'),
        (1321, b"sizes: 1290,1321,1377"),
        (1321, b"<html><td>1321</td>"),
        (COUNTS, _parquet(pa.array(COUNTS.astype(np.int8)))),
        (COUNTS, _parquet(pa.array(COUNTS[:8].astype(np.float32)))),
        (COUNTS, _parquet(pa.array(np.sort(COUNTS)))),
        (COUNTS, _parquet(pa.array([COUNTS[:5].tolist(), COUNTS[5:].tolist()]))),
        (COUNTS, COUNTS.astype(np.int32).tobytes()),
        (COUNTS, str(COUNTS.tolist()).encode()),
        (WEIGHTS, safetensors.numpy.save({"w": np.concatenate([WEIGHTS, WEIGHTS])})),
        (WEIGHTS, base64.b64encode(WEIGHTS.astype(float).tobytes())),
    ],
)
def test_the_detector_knows_a_canary_in_every_dress(value: Any, surface: bytes) -> None:
    """Encoded, packed, in a table's column of any type: found. Beside it, what only looks alike is not."""
    assert leaks({"somewhere": surface}, [Canary("it", value)])
    innocent = (
        b'{"epsilon": 2.1429, "port": 1321, "at": "2026-01-01T10:13:21.1321", "line 1321, in": [7, 11, 3], "x": 11321}'
    )
    assert not leaks({"somewhere": innocent, "table": _parquet(pa.array(np.arange(10)))}, [Canary("it", value)])
