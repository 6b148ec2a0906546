"""Which rows a setting names: ``test[:9000]``, ``records.parquet``, or a count of units."""

import re
from dataclasses import dataclass
from pathlib import Path

from data.errors import UserError
from data.settings import FILES, TORCHVISION, DataSettings

_SLICED = re.compile(r"^(?P<part>.+?)(?:\[(?P<start>\d*):(?P<stop>\d*)\])?$")
WHOLE = "all"


@dataclass(frozen=True)
class Selection:
    """Rows [start, stop) of a part (a part's name or a file), or ``count`` units of the one set that is split."""

    part: str
    start: int = 0
    stop: int | None = None
    count: int | None = None


def part_names(settings: DataSettings) -> tuple[str, ...]:
    """The named parts of a source; sources of files also take paths."""
    if settings.source in TORCHVISION:
        return ("train", "test", "extra") if settings.source == "SVHN" else ("train", "test")
    return (WHOLE,) if settings.source == "digits" or settings.path else ()


def select(settings: DataSettings, field: str) -> Selection | None:
    """The selection that ``data.private``, ``data.public`` or ``data.test`` names; None where test is absent."""
    value = getattr(settings, field)
    if value is None:
        return None
    if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
        return _counted(settings, field, int(value))
    match = _SLICED.match(value)
    part = match["part"] if match else value
    if part not in part_names(settings):
        if settings.source not in FILES:
            allowed = ", ".join(part_names(settings))
            raise UserError(f"data.{field} = {value!r}: must be a slice of {allowed}, or a count of units")
        # Resolved: two spellings of a path, or a link to it, are one file.
        part = str(Path(part).expanduser().resolve())
        if not Path(part).exists():
            raise UserError(f"data.{field} = {value!r}: no such file")
        folder = settings.source == "imagefolder"
        if Path(part).is_dir() != folder:
            raise UserError(f"data.{field} = {value!r}: must be a {'folder' if folder else 'file'}")
    start = int(match["start"]) if match and match["start"] else 0
    stop = int(match["stop"]) if match and match["stop"] else None
    if stop is not None and stop <= start:
        raise UserError(f"data.{field} = {value!r}: the slice holds no row")
    return Selection(part, start, stop)


def _counted(settings: DataSettings, field: str, count: int) -> Selection:
    if WHOLE not in part_names(settings):
        raise UserError(f"data.{field} = {count}: a count splits one set (digits, or data.path); name a part or a file")
    others = [value for value in (settings.private, settings.public, settings.test) if value is not None]
    if not all(isinstance(value, int) or value.isdigit() for value in others):
        raise UserError("data.private, data.public, data.test: give counts for all of them, or for none")
    if count < 1:
        raise UserError(f"data.{field} = {count}: must be at least 1")
    return Selection(WHOLE, count=count)


def identity(settings: DataSettings, *fields: str) -> dict[str, object]:
    """What ``fields`` select, without the places of files: those are known by the digests of their content.

    With counts all parts of one set depend on each other's.
    """
    chosen = {field: select(settings, field) for field in fields}
    if any(part is not None and part.count is not None for part in chosen.values()):
        return {field: getattr(settings, field) for field in ("private", "public", "test")}
    return {
        field: None if part is None else ["" if Path(part.part).is_absolute() else part.part, part.start, part.stop]
        for field, part in chosen.items()
    }
