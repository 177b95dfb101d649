"""Where things stand in a TOML text: the line of each key, and the bare words `null`, which TOML does not have.

tomli judges the text; this only follows its shape, and stops without a word where the text stops being TOML.
"""

import re
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field

import tomli

__all__ = ["KeyPath", "Scan", "dotted", "scan"]

KeyPath = tuple[str | int, ...]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL = re.compile(r"'[^'\n]*'")
_LONG_BASIC = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}(?!")', re.DOTALL)
_LONG_LITERAL = re.compile(r"'''.*?'{3,5}(?!')", re.DOTALL)
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_WORD = re.compile(r"[^,\]}#\r\n]*")
_DEEPEST = 400


@dataclass(frozen=True, slots=True)
class Scan:
    """`lines` maps each key path to its line (from 1); the others are offsets of bare values in the text."""

    lines: dict[KeyPath, int] = field(default_factory=dict)
    nulls: list[int] = field(default_factory=list)
    negative_nans: list[int] = field(default_factory=list)

    def line(self, path: KeyPath) -> int:
        """Return the line of a key, or of the nearest table around it; 0 when none is known."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 0


def dotted(path: KeyPath) -> str:
    """Return a key path as one would write it: `trial[0].flags."a b"`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            shown = part if _BARE_KEY.fullmatch(part) else '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"'
            text += ("." if text else "") + shown
    return text


def scan(text: str) -> Scan:
    """Follow the text's shape as far as it goes."""
    walk = _Walk(text)
    with suppress(_Lost):
        walk.document()
    return walk.found


class _Lost(Exception):
    """The text is not TOML from here on."""


class _Walk:
    """One pass over a text; `at` is the offset of the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.found = Scan()
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._table_counts: dict[KeyPath, int] = {}

    def document(self) -> None:
        prefix: KeyPath = ()
        while True:
            self._skip_blank()
            if self.at >= len(self.text):
                return
            if self.text.startswith("[", self.at):
                prefix = self._header()
            else:
                self._pair(prefix)

    def _skip_blank(self) -> None:
        match = _BLANK.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def _take(self, token: str) -> None:
        if not self.text.startswith(token, self.at):
            raise _Lost
        self.at += len(token)

    def _take_pattern(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise _Lost
        self.at = match.end()
        return match.group()

    def _skip_spaces(self) -> None:
        while self.text.startswith((" ", "\t"), self.at):
            self.at += 1

    def _note(self, path: KeyPath, at: int) -> None:
        line = bisect_right(self._line_starts, at)
        for length in range(1, len(path) + 1):
            self.found.lines.setdefault(path[:length], line)

    def _header(self) -> KeyPath:
        start = self.at
        is_array = self.text.startswith("[[", start)
        self._take("[[" if is_array else "[")
        parts = self._key()
        self._take("]]" if is_array else "]")
        path: KeyPath = ()
        for number, part in enumerate(parts, start=1):
            path = (*path, part)
            if is_array and number == len(parts):
                self._table_counts[path] = self._table_counts.get(path, 0) + 1
            if path in self._table_counts:
                path = (*path, self._table_counts[path] - 1)
        self._note(path, start)
        # A header's own line beats the one noted for it as a part of an earlier, deeper header.
        self.found.lines[path] = bisect_right(self._line_starts, start)
        return path

    def _key(self) -> tuple[str, ...]:
        parts = []
        while True:
            self._skip_spaces()
            if self.text.startswith('"', self.at):
                parts.append(_plain(self._take_pattern(_BASIC)))
            elif self.text.startswith("'", self.at):
                parts.append(self._take_pattern(_LITERAL)[1:-1])
            else:
                parts.append(self._take_pattern(_BARE_KEY))
            self._skip_spaces()
            if not self.text.startswith(".", self.at):
                return tuple(parts)
            self.at += 1

    def _pair(self, prefix: KeyPath) -> None:
        start = self.at
        path: KeyPath = (*prefix, *self._key())
        self._take("=")
        self._note(path, start)
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        self._skip_spaces()
        for opening, pattern in (('"""', _LONG_BASIC), ("'''", _LONG_LITERAL), ('"', _BASIC), ("'", _LITERAL)):
            if self.text.startswith(opening, self.at):
                self._take_pattern(pattern)
                return
        if self.text.startswith(("[", "{"), self.at):
            self.depth += 1
            if self.depth > _DEEPEST:
                raise _Lost
            if self.text.startswith("[", self.at):
                self._array(path)
            else:
                self._inline_table(path)
            self.depth -= 1
            return
        start = self.at
        word = self._take_pattern(_WORD).strip()
        if word == "null":
            self.found.nulls.append(start)
        elif word == "-nan":
            self.found.negative_nans.append(start)

    def _array(self, path: KeyPath) -> None:
        self._take("[")
        index = 0
        while True:
            self._skip_blank()
            if self.text.startswith("]", self.at):
                break
            self._note((*path, index), self.at)
            self._value((*path, index))
            index += 1
            self._skip_blank()
            if not self.text.startswith(",", self.at):
                break
            self.at += 1
        self._take("]")

    def _inline_table(self, path: KeyPath) -> None:
        self._take("{")
        while True:
            self._skip_blank()
            if self.text.startswith("}", self.at):
                break
            self._pair(path)
            self._skip_blank()
            if not self.text.startswith(",", self.at):
                break
            self.at += 1
        self._take("}")


def _plain(quoted: str) -> str:
    try:
        return str(tomli.loads(f"key = {quoted}")["key"])
    except tomli.TOMLDecodeError:
        raise _Lost from None
