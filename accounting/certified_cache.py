"""Certified numbers kept on disk: they depend on noise and caps alone, so nothing in these files is private.

A file that is damaged, of another version or of other noise is as good as none; the folder is trusted like the program.
"""

import hashlib
import json
import math
import os
import tempfile
from pathlib import Path


def folder(kind: str) -> Path:
    """``$PATE_CACHE/<kind>``, by default ``~/.cache/pate/<kind>``."""
    root = os.environ.get("PATE_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "pate") / kind


def _digest(name: str, version: int, values: dict[str, float]) -> str:
    return hashlib.sha256(json.dumps([version, name, sorted(values.items())]).encode()).hexdigest()


def _file(kind: str, name: str, version: int) -> Path:
    return folder(kind) / f"{name.replace(' ', '-')}-v{version}.json"


def read(kind: str, name: str, version: int) -> dict[str, float]:
    """The stored numbers by key; empty if there are none that can be trusted."""
    try:
        record = json.loads(_file(kind, name, version).read_text())
        values = {str(key): float(value) for key, value in record["values"].items()}
        intact = record["digest"] == _digest(name, version, values) and all(map(math.isfinite, values.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return values if intact else {}


def write(kind: str, name: str, version: int, values: dict[str, float]) -> None:
    """Replace the file whole; a folder that cannot be written only costs time."""
    target = _file(kind, name, version)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=target.parent, suffix=".tmp", delete=False) as stream:
            json.dump({"values": values, "digest": _digest(name, version, values)}, stream)
        Path(stream.name).replace(target)
    except OSError:
        return
