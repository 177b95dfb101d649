"""A TOML text, parsed, with the line of each key and a list that collects every problem found in it."""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import tomli

from specd.config.scan import KeyPath, Scan, dotted, scan
from specd.errors import ConfigError, Problem

__all__ = ["Document", "Null", "nearest", "parse"]


class Null:
    """What a bare `null` in a trial file is read as."""


@dataclass(slots=True)
class Document:
    """A parsed text: `table` is its content; `complain` adds a problem at a key."""

    file: str
    table: dict[str, Any]
    scan: Scan
    problems: list[Problem] = field(default_factory=list)
    unsound: set[KeyPath] = field(default_factory=set)

    def complain(self, path: KeyPath, text: str) -> None:
        """Add a problem; its line is the key's, or that of the nearest table around it."""
        self.problems.append(Problem(self.file, self.scan.line(path), dotted(path), text))
        self.unsound.update(path[:length] for length in range(len(path) + 1))

    def is_sound(self, *paths: KeyPath) -> bool:
        """True while none of these keys, nor anything below them, has a problem."""
        return self.unsound.isdisjoint(paths)

    def finish(self) -> None:
        """Raise ConfigError with all problems in the file's order, if there are any."""
        if self.problems:
            raise ConfigError(sorted(self.problems, key=lambda problem: problem.line))


def parse(text: str, file: str, *, with_null: bool = False) -> Document:
    """Parse a text; raises ConfigError with line and column when it is not TOML.

    With `with_null`, a bare word null is read as Null. It is handed to tomli as the equally long `-nan`, so that lines
    and columns stay; a real -nan becomes a plain nan.
    """
    text = text.removeprefix("\ufeff")
    found = scan(text)
    read_float: Callable[[str], Any] = float
    if with_null:
        text = _replaced(_replaced(text, found.negative_nans, " nan"), found.nulls, "-nan")
        read_float = _float_or_null
    try:
        table = tomli.loads(text, parse_float=read_float)
    except tomli.TOMLDecodeError as error:
        problem = Problem(file, error.lineno, "", f"not TOML: {_lower_first(error.msg)}", error.colno)
        raise ConfigError([problem]) from None
    except RecursionError as error:
        raise ConfigError([Problem(file, 0, "", f"not TOML: {_lower_first(str(error))}")]) from None
    return Document(file, table, found)


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Return the word that was probably meant, or None."""
    close = difflib.get_close_matches(word.lower().replace("-", "_"), list(words), n=1, cutoff=0.6)
    return close[0] if close else None


def _float_or_null(text: str) -> Any:
    return Null() if text == "-nan" else float(text)


def _replaced(text: str, offsets: list[int], token: str) -> str:
    for offset in offsets:
        text = text[:offset] + token + text[offset + len(token) :]
    return text


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
