"""What text cells mean: numbers, true/false, dates and times, or text, decided from public cells alone.

White space around a cell is dropped. In columns that are not text the spellings of :data:`MISSING`, in any case, are
missing values; in text only the empty cell is. Each parser gives None if a cell is neither missing nor of its type.
"""

import itertools
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from data.errors import UserError

MISSING = ("", "na", "n/a", "nan", "null", "none")
TIME = pa.timestamp("us")
_ISO = r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?$"
# Days as people write them outside ISO, which leave open what is day and what is month.
_OTHER_DATE = r"^\d{1,2}[./-]\d{1,2}[./-]\d{4}( \d{1,2}:\d{2}(:\d{2})?)?$"
_ZONED = r":\d{2}(\.\d+)?(Z|[+-]\d{2}:?\d{2})$"
# Numbers as people write them with a grouping mark, or with the decimal mark that data.decimal does not name.
_GROUPED = {
    ".": r"^[+-]?(\d+(\.\d+)?|\d{1,3}([,'\x{a0}\x{202f} ]\d{3})+(\.\d+)?|\d+,\d+)$",
    ",": r"^[+-]?(\d+(,\d+)?|\d{1,3}([.'\x{a0}\x{202f} ]\d{3})+(,\d+)?|\d+\.\d+)$",
}


def parse(column: pa.Array, kind: pa.DataType, decimal: str) -> pa.Array | None:
    """The cells as ``kind``: float64, bool, timestamp (microseconds, UTC where a zone is given) or string."""
    if pa.types.is_string(kind):
        return texts(column)
    if pa.types.is_boolean(kind):
        return _booleans(column)
    return _times(column) if pa.types.is_timestamp(kind) else _numbers(column, decimal)


def texts(column: pa.Array) -> pa.Array:
    """Trimmed text, null where empty."""
    trimmed = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, pa.string()), trimmed)


def _present(column: pa.Array) -> pa.Array:
    trimmed = pc.utf8_trim_whitespace(column)
    missing = pc.is_in(pc.ascii_lower(trimmed), value_set=pa.array(MISSING))
    return pc.if_else(missing, pa.scalar(None, pa.string()), trimmed)


def _numbers(column: pa.Array, decimal: str) -> pa.Array | None:
    if decimal == ".":
        try:
            return column.cast(pa.float64())
        except pa.ArrowInvalid:
            pass
    present = _present(column)
    if decimal != ".":
        if pc.any(pc.match_substring(present, ".")).as_py():
            return None
        present = pc.replace_substring(present, decimal, ".")
    try:
        return present.cast(pa.float64())
    except pa.ArrowInvalid:
        return None


def _booleans(column: pa.Array) -> pa.Array | None:
    lower = pc.ascii_lower(_present(column))
    position = pc.index_in(lower, value_set=pa.array(["false", "true"]))
    return None if position.null_count > lower.null_count else position.cast(pa.bool_())


def _times(column: pa.Array) -> pa.Array | None:
    present = _present(column)
    if not pc.all(pc.match_substring_regex(present, _ISO), min_count=0).as_py():
        return None
    # Nine digits of a second are common; six are kept.
    present = pc.replace_substring_regex(present, r"(\.\d{6})\d+", r"\1")
    zoned = pc.fill_null(pc.match_substring_regex(present, _ZONED), False)
    nothing = pa.scalar(None, pa.string())
    try:
        local = pc.if_else(zoned, nothing, present).cast(TIME)
        utc = pc.if_else(zoned, present, nothing).cast(pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:
        return None
    return pc.coalesce(local.cast(pa.int64()), utc.cast(pa.int64())).cast(TIME)


_KINDS = (pa.float64(), pa.bool_(), TIME)


def infer(
    batches: Iterable[pa.RecordBatch], names: tuple[str, ...], decimal: str, path: Path, *, only_iso: bool = True
) -> pa.Schema:
    """The types of public columns: the first of number, true/false, date that every cell fits, else text.

    A column without any value is text. Raises UserError for numbers written with a grouping or another decimal mark,
    and for dates that are not ISO (``only_iso``): read as text they would be categories that no other row shares.
    """
    left = {name: list(_KINDS) for name in names}
    grouped = dict.fromkeys(names, True)
    dated = dict.fromkeys(names, only_iso)
    valued = dict.fromkeys(names, False)
    for batch in batches:
        for name in names:
            column = batch.column(batch.schema.get_field_index(name))
            if not valued[name]:
                valued[name] = _present(column).null_count < len(column)
            fitting = (kind for kind in left[name] if parse(column, kind, decimal) is not None)
            # A cell has one type at most: with one that has a value, the first type to fit is the only one.
            left[name] = list(itertools.islice(fitting, 1) if valued[name] else fitting)
            if grouped[name] and pa.float64() not in left[name]:
                grouped[name] = _all_match(column, _GROUPED[decimal])
            if dated[name] and not left[name]:
                dated[name] = _all_match(column, _OTHER_DATE)
    fields = []
    for name in names:
        kind = left[name][0] if left[name] and valued[name] else pa.string()
        if valued[name] and not left[name] and grouped[name]:
            raise UserError(
                f"{path}: column {name!r} looks like numbers with a thousands separator or another decimal mark than "
                f"{decimal!r}: write plain numbers, or set data.decimal"
            )
        if valued[name] and not left[name] and dated[name]:
            raise UserError(f"{path}: column {name!r} looks like dates that are not ISO: write them as 2020-01-31")
        fields.append(pa.field(name, kind))
    return pa.schema(fields)


def _all_match(column: pa.Array, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(_present(column), pattern)).as_py() is not False
