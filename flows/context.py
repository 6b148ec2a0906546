"""What a stage is handed: the settings, the run directory, the dataset's key and the console."""

import hmac
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.store import Run, dataset_key
from flows.console import Console
from flows.settings import Settings

Mapper = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Context:
    """``mapper`` runs chunks of teachers side by side; None leaves it to teachers.runner.

    ``draw_key`` is the key of what the running stage computes from private data; ``redo`` says that it had finished and
    its output was deleted. ``encoder_at``: where the encoder lies if not in ``release``.
    """

    settings: Settings
    run: Run
    key: bytes
    run_id: str
    console: Console
    mapper: Mapper | None = None
    draw_key: str = ""
    redo: bool = False
    encoder_at: Path | None = None

    @property
    def encoder(self) -> Path:
        """The encoder's files, without their suffixes."""
        return self.encoder_at or self.run.release / "encoder"

    def keyed(self, *parts: Any) -> str:
        """A keyed digest of values that may depend on private data."""
        return hmac.new(self.key, json.dumps(parts, sort_keys=True, default=str).encode(), "sha256").hexdigest()


def run_of(settings: Settings) -> Run:
    """The run directory of the settings."""
    return Run(Path(settings.run_root).expanduser().resolve() / settings.name)


def key_of(settings: Settings) -> bytes:
    """The dataset's key for digests of private files."""
    return dataset_key(Path(settings.run_root).expanduser().resolve(), settings.data.name)
