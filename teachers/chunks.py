"""A chunk of teachers on the disk: one safetensors file and the manifest that, written last, makes it count.

    private/teachers/chunk-0000000-0000025.safetensors     tensors named <teacher>/<name>
    private/teachers/chunk-0000000-0000025.json            key, untrainable teachers, the file's digest
    private/teachers/ensemble.json                         key and chunks, written when all are there

Digests are HMACs under the stage's key, so a file of another key, or a damaged one, never counts. All of it is private.
"""

import hmac
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from data.errors import UserError
from data.store import atomic, digest, read_json, write_json
from teachers.trainers import Tensors

INDEX = "ensemble.json"


@dataclass(frozen=True)
class Manifest:
    """What a chunk's manifest says: teachers [first, last), those that are untrainable, and the digest of the file."""

    key: str
    first: int
    last: int
    untrainable: tuple[int, ...]
    digest: str


@dataclass(frozen=True)
class Index:
    """What is there of a whole ensemble: the stage's key, the run's seed, and the chunks' [first, last) in order."""

    key: str
    seed: int
    chunks: tuple[tuple[int, int], ...]

    def covers(self, teachers: int) -> bool:
        """Whether the chunks hold the teachers 0 to ``teachers`` - 1, each once."""
        ends = [0, *(last for _, last in self.chunks)]
        return ends[-1] == teachers and [first for first, _ in self.chunks] == ends[:-1]


def paths(folder: Path, first: int, last: int) -> tuple[Path, Path]:
    """The safetensors file and the manifest of the teachers [first, last)."""
    name = f"chunk-{first:07d}-{last:07d}"
    return folder / f"{name}.safetensors", folder / f"{name}.json"


def write(folder: Path, first: int, last: int, key: str, teachers: list[Tensors | None]) -> Path:
    """Write a chunk, its manifest last; returns the manifest's path. None marks an untrainable teacher."""
    file, page = paths(folder, first, last)
    page.unlink(missing_ok=True)
    kept = dict(zip(range(first, last), teachers, strict=True))
    tensors = {f"{teacher}/{name}": t for teacher, each in kept.items() if each for name, t in each.items()}
    with atomic(file) as temporary:
        save_file(tensors, temporary)
    untrainable = tuple(teacher for teacher, each in kept.items() if each is None)
    write_json(page, asdict(Manifest(key, first, last, untrainable, digest(file, key.encode()))))
    return page


def manifest(folder: Path, first: int, last: int, key: str) -> Manifest | None:
    """The manifest of a chunk that is complete, intact and made under ``key``; None for any other."""
    file, page = paths(folder, first, last)
    if not file.is_file() or not page.is_file():
        return None
    try:
        found = _manifest(read_json(page))
    except (UserError, KeyError, TypeError, ValueError):
        return None
    if (found.key, found.first, found.last) != (key, first, last):
        return None
    return found if hmac.compare_digest(found.digest, digest(file, key.encode())) else None


def read(folder: Path, found: Manifest) -> Iterator[tuple[int, Tensors | None]]:
    """Teacher after teacher of a chunk, with what is kept of it; None where it is untrainable."""
    file, _ = paths(folder, found.first, found.last)
    try:
        with safe_open(file, framework="pt") as tensors:
            names: dict[int, list[str]] = {}
            for name in tensors.keys():  # noqa: SIM118 (it is no dict)
                names.setdefault(int(name.partition("/")[0]), []).append(name)
            for teacher in range(found.first, found.last):
                if teacher in found.untrainable:
                    yield teacher, None
                else:
                    yield teacher, {n.partition("/")[2]: tensors.get_tensor(n) for n in names[teacher]}
    except (SafetensorError, KeyError, ValueError):
        raise UserError(f"{file}: is corrupt; rerun `pate teach`") from None


def write_index(folder: Path, index: Index) -> None:
    """Say that the ensemble is complete."""
    write_json(folder / INDEX, asdict(index))


def read_index(folder: Path) -> Index | None:
    """The index; None where there is none that can be read."""
    try:
        record = read_json(folder / INDEX)
        chunks = tuple((int(first), int(last)) for first, last in record["chunks"])
        return Index(str(record["key"]), int(record["seed"]), chunks)
    except (UserError, KeyError, TypeError, ValueError):
        return None


def remove_others(folder: Path, index: Index) -> None:
    """Delete chunks that the index does not name: left by another chunk size or an interrupted run."""
    kept = {path.name for first, last in index.chunks for path in paths(folder, first, last)}
    for path in folder.glob("*chunk-*"):
        if path.name not in kept:
            path.unlink()


def _manifest(record: dict[str, Any]) -> Manifest:
    return Manifest(
        str(record["key"]),
        int(record["first"]),
        int(record["last"]),
        tuple(int(teacher) for teacher in record["untrainable"]),
        str(record["digest"]),
    )
