"""Reads one TOML table into one frozen record: unknown keys, wrong types, impossible values, each with its key."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from specd.config.document import Document, Null, nearest
from specd.config.scan import KeyPath
from specd.constraints import Mark, record_name

__all__ = ["kind_of", "read_named", "read_record"]

R = TypeVar("R")
_BAD = object()
_WORDS = {str: "a string", bool: "true or false", int: "a whole number", float: "a number"}


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    type: Any
    rules: tuple[Any, ...]
    required: bool

    @property
    def is_given(self) -> bool:
        return Mark.GIVEN in self.rules


def _fields(kind: type) -> tuple[_Field, ...]:
    hints = get_type_hints(kind, include_extras=True)
    fields = []
    for item in dataclasses.fields(kind):
        hint = hints[item.name]
        rules = hint.__metadata__ if get_origin(hint) is Annotated else ()
        plain = get_args(hint)[0] if rules else hint
        required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        fields.append(_Field(item.name, plain, rules, required))
    return tuple(fields)


def kind_of(value: Any) -> str:
    """Return what a TOML value is, in words; never the value."""
    if isinstance(value, Null):
        return "null"
    for kind, word in (
        (bool, "a truth value"),
        (dict, "a table"),
        (list, "a list"),
        (str, "a string"),
        (float, "a fraction"),
    ):
        if isinstance(value, kind):
            return word
    return "a number" if isinstance(value, int | float) else "a date or time"


def read_record(
    kind: type[R], table: Any, path: KeyPath, document: Document, base: Path, given: Mapping[str, Any]
) -> R:
    """Read a table into `kind`, with the problems in the document.

    `base` is where relative paths on this machine start; `given` holds the fields that no file sets. Where the table is
    wrong the record has a stand-in, so that the rest can still be judged; Document.finish keeps it from being used.
    """
    fields = {item.name: item for item in _fields(kind) if not item.is_given}
    values: dict[str, Any] = dict(given)
    if not isinstance(table, dict):
        document.complain(path, f"must be a table, not {kind_of(table)}")
        table = {}
    else:
        for key in [key for key in table if key not in fields]:
            document.complain((*path, key), _unknown(key, kind, path))
        for name in [item.name for item in fields.values() if item.required and item.name not in table]:
            document.complain((*path, name), "is missing")
    for name, item in fields.items():
        value = (
            _read_value(item.type, item.rules, table[name], (*path, name), document, base) if name in table else _BAD
        )
        if value is not _BAD:
            values[name] = value
        elif item.required:
            values[name] = ""
    return kind(**values)


def read_named(kind: type[R], tables: Any, path: KeyPath, document: Document, base: Path) -> dict[str, R]:
    """Read a table of named tables into records by name."""
    if not isinstance(tables, dict):
        document.complain(path, f"must hold named tables, [{path[-1]}.NAME], not be {kind_of(tables)}")
        return {}
    records = {}
    for name, table in tables.items():
        try:
            record_name(name)
        except ValueError as error:
            document.complain((*path, name), str(error))
        records[name] = read_record(kind, table, (*path, name), document, base, {"name": name})
    return records


def _unknown(key: str, kind: type, path: KeyPath) -> str:
    keys = {item.name: item for item in _fields(kind) if not item.is_given}
    if key == "name" and path:
        return f"unknown key: the name is the table's own, here {path[-1]}"
    for name, item in keys.items():
        if dataclasses.is_dataclass(item.type) and any(key == inner.name for inner in _fields(item.type)):  # type: ignore[arg-type]
            return f"unknown key here; it belongs in the table {name} below this one"
    close = nearest(key, keys)
    if close:
        return f"unknown key; did you mean {close}?"
    return f"unknown key; known here are {', '.join(keys)}"


def _read_value(kind: Any, rules: tuple[Any, ...], value: Any, path: KeyPath, document: Document, base: Path) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return read_record(kind, value, path, document, base, {})
    origin = get_origin(kind)
    if origin is UnionType:
        # A plain value or a table of them.
        one = next(part for part in get_args(kind) if (get_origin(part) is Mapping) is isinstance(value, dict))
        return _read_value(one, rules, value, path, document, base)
    if origin is Mapping:
        return _read_mapping(get_args(kind)[1], rules, value, path, document, base)
    if origin is tuple:
        return _read_list(get_args(kind)[0], value, path, document, base)
    read = _scalar(kind, value)
    if read is _BAD:
        document.complain(path, f"must be {_WORDS[kind]}, not {kind_of(value)}{_type_hint(path, value)}")
        return _BAD
    if isinstance(read, float) and not math.isfinite(read):
        document.complain(path, "must be a finite number")
        return _BAD
    if isinstance(read, str):
        if Mark.FREE_TEXT not in rules and any(ord(char) < 32 or ord(char) == 127 for char in read):
            document.complain(path, "must be one line without control characters")
            return _BAD
        if Mark.LOCAL_PATH in rules and read:
            read = _local_path(read, base)
    return _ruled(rules, read, path, document)


def _scalar(kind: Any, value: Any) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if type(value) is kind:
        return value
    return _BAD


def _type_hint(path: KeyPath, value: Any) -> str:
    if isinstance(value, str) and str(path[-1]).endswith("_s"):
        return "; write seconds without quotes, for example 90"
    return ""


def _ruled(rules: tuple[Any, ...], value: Any, path: KeyPath, document: Document) -> Any:
    for rule in rules:
        if isinstance(rule, Mark):
            continue
        try:
            value = rule(value)
        except ValueError as error:
            document.complain(path, str(error))
            return _BAD
    return value


def _read_list(kind: Any, value: Any, path: KeyPath, document: Document, base: Path) -> Any:
    if not isinstance(value, list):
        document.complain(path, f"must be a list, not {kind_of(value)}")
        return _BAD
    if not value:
        document.complain(path, "must not be empty")
        return _BAD
    rules = kind.__metadata__ if get_origin(kind) is Annotated else ()
    plain = get_args(kind)[0] if rules else kind
    items = [_read_value(plain, rules, item, (*path, n), document, base) for n, item in enumerate(value)]
    if any(item is _BAD for item in items):
        return _BAD
    if len(set(items)) != len(items):
        document.complain(path, "holds the same value twice")
        return _BAD
    return tuple(items)


def _read_mapping(kind: Any, rules: tuple[Any, ...], value: Any, path: KeyPath, document: Document, base: Path) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return read_named(kind, value, path, document, base)
    if not isinstance(value, dict):
        document.complain(path, f"must be a table, not {kind_of(value)}")
        return _BAD
    plain = _json_value(value, path, document)
    return _ruled(rules, plain, path, document) if document.is_sound(path) else _BAD


def _json_value(value: Any, path: KeyPath, document: Document) -> Any:
    """Return the value with each Null as None; complains of what JSON can't say."""
    if value is None or isinstance(value, Null):
        return None
    if isinstance(value, dict):
        return {key: _json_value(item, (*path, key), document) for key, item in value.items()}
    if isinstance(value, list):
        return [_json_value(item, (*path, n), document) for n, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        document.complain(path, "must be a finite number: JSON has no other")
    elif isinstance(value, str) and "\0" in value:
        document.complain(path, "must not hold a NUL character: no argument can")
    elif not isinstance(value, str | int | float):
        document.complain(path, "is a date or time: put it in quotes")
    return value


def _local_path(text: str, base: Path) -> str:
    path = Path(text)
    if text.startswith("~"):
        try:
            path = path.expanduser()
        except RuntimeError:
            return text
    return str(base / path)
