"""Reading a config file into settings, with one-line errors for everything that can be wrong with it."""

import contextlib
import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from data.errors import UserError
from flows.settings import Settings

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class _Loader(yaml.SafeLoader):
    """YAML's plain types; a key that is given twice is an error and not the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key} is given twice", node.start_mark)
        return super().construct_mapping(node, deep=deep)


def _parse(text: str) -> Any:
    """YAML as plain values; anything that is wrong with it is a yaml.YAMLError."""
    try:
        # Not yaml.load's usual danger: _Loader is a SafeLoader.
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        raise
    except (ValueError, RecursionError, TypeError) as error:
        raise yaml.YAMLError(type(error).__name__) from None


def _expand(value: Any, where: str) -> Any:
    """``${NAME}`` in text becomes the environment variable's value."""
    if isinstance(value, dict):
        return {key: _expand(item, f"{where}.{key}" if where else str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, where) for item in value]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise UserError(f"{where} = {value!r}: the environment variable {match[1]} is not set")
        return os.environ[match[1]]

    return _VARIABLE.sub(replace, value)


def _override(record: dict[str, Any], option: str) -> None:
    """Apply one ``--set key.sub=value``."""
    name, equals, text = option.partition("=")
    if not equals or not all(name.split(".")):
        raise UserError(f"--set {option!r}: must be key.sub=value")
    try:
        value = _parse(text) if text else None
    except yaml.YAMLError:
        value = text
    *parents, last = name.split(".")
    at = record
    for parent in parents:
        inner = at.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise UserError(f"--set {option!r}: {parent} holds a value, not further keys")
        at = inner
    at[last] = value


def _sibling_names(location: tuple[int | str, ...]) -> list[str]:
    model: Any = Settings
    for step in location[:-1]:
        field = model.model_fields.get(str(step)) if isinstance(model, type) and issubclass(model, BaseModel) else None
        model = field.annotation if field else None
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def one_line(error: ValidationError, record: Any) -> str:
    """The first problem that pydantic found, as one line: field, value, what is allowed."""
    first = error.errors(include_url=False)[0]
    location = tuple(step for step in first["loc"] if step not in ("int", "str"))
    name = ".".join(str(step) for step in location)
    if first["type"] == "extra_forbidden":
        known = _sibling_names(location)
        near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        parent = ".".join(str(step) for step in location[:-1])
        hint = f"did you mean {parent + '.' if parent else ''}{near[0]}?" if near else f"known: {', '.join(known)}"
        return f"{name}: is not a setting; {hint}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return f"{name}: must be set"
    if first["type"] == "value_error":
        return (
            f"{name}.{message}"
            if name and re.match(r"^[a-z_]+:", message)
            else (f"{name}: {message}" if name else message)
        )
    # A URL may hold a password.
    shown = "" if "url" in name else f" = {first['input']!r}"
    return f"{name}{shown}: {message[0].lower()}{message[1:]}"


def build(record: dict[str, Any]) -> Settings:
    """Settings of a plain mapping, or a UserError of one line."""
    try:
        return Settings.model_validate(record)
    except ValidationError as error:
        raise UserError(one_line(error, record)) from None


def resolved(record: object, run: str | None = None) -> Settings:
    """Settings of a plain mapping, with ``${NAME}`` expanded and the run's name applied; settings stay as they are."""
    name = {} if run is None else {"name": run}
    if isinstance(record, Settings):
        return build(record.model_dump() | name) if name else record
    if not isinstance(record, dict):
        raise UserError("config: must be a mapping of settings")
    return build(_expand(record | name, ""))


def shown(settings: Settings) -> dict[str, Any]:
    """The settings as a plain mapping for others to read: without the password of ledger.url."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    record = settings.model_dump(mode="json")
    if settings.ledger.url:
        with contextlib.suppress(ArgumentError):
            record["ledger"]["url"] = make_url(settings.ledger.url).render_as_string(hide_password=True)
    return record


def load(path: Path, overrides: Sequence[str] = (), run: str | None = None) -> Settings:
    """The settings in a YAML file, with ``--set`` overrides and the run's name applied."""
    try:
        record = _parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such config file") from None
    except (OSError, UnicodeDecodeError):
        raise UserError(f"{path}: is not a readable text file") from None
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f" (line {mark.line + 1}: {problem})" if mark and problem else ""
        raise UserError(f"{path}: is not valid YAML{line}") from None
    if not isinstance(record, dict):
        raise UserError(f"{path}: must be a mapping of settings")
    for option in overrides:
        _override(record, option)
    record.setdefault("name", path.stem)
    if run is not None:
        record["name"] = run
    try:
        return resolved(record)
    except RecursionError:
        raise UserError(f"{path}: refers to itself") from None
