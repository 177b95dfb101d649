"""Environment files: read as systemd reads them, written so that it reads back what was meant."""

import re
from collections.abc import Mapping

from specd.services.systemd.words import is_utf8

__all__ = ["encode_environment", "is_variable_name", "parse_environment"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BLANK = " \t\n\r"
_NEWLINE = "\n\r"
# From this version on, a comment's trailing backslash no longer swallows the next line.
_COMMENTS_END_AT_LINE = 254


def is_variable_name(name: str) -> bool:
    """True for a name that systemd takes for an environment variable."""
    return _NAME.fullmatch(name) is not None


def parse_environment(content: bytes, *, version: int = 252) -> dict[str, str]:
    """Read an environment file as systemd of `version` does; assignments it would ignore are left out.

    Raises ValueError where systemd would refuse the file: a NUL, a name or value that is not UTF-8 (a comment may).
    """
    if b"\0" in content:
        raise ValueError("it holds a NUL character")
    found = _Reader(content.decode(errors="surrogateescape"), version).read()
    for name, value in found:
        if not (is_utf8(name) and is_utf8(value)):
            raise ValueError("a name or value in it is not UTF-8")
    return {name: value for name, value in found if is_variable_name(name)}


def encode_environment(values: Mapping[str, str]) -> str:
    """Write assignments so that systemd reads back exactly `values`, whatever is in them but NUL."""
    lines = []
    for name, value in values.items():
        quoted = "".join("\\" + char if char in '"\\`$' else char for char in value)
        lines.append(f'{name}="{quoted}"\n')
    return "".join(lines)


class _Reader:
    """The state machine of systemd's own parser, one method a state."""

    def __init__(self, text: str, version: int) -> None:
        self._text = text
        self._at = 0
        self._comments_end_at_line = version >= _COMMENTS_END_AT_LINE

    def read(self) -> list[tuple[str, str]]:
        """Return all assignments in order."""
        found: list[tuple[str, str]] = []
        while (char := self._take()) is not None:
            if char in "#;":
                self._skip_comment()
            elif char not in _BLANK and (name := self._key(char)) is not None:
                found.append((name, self._value()))
        return found

    def _take(self) -> str | None:
        if self._at >= len(self._text):
            return None
        self._at += 1
        return self._text[self._at - 1]

    def _skip_comment(self) -> None:
        while (char := self._take()) is not None:
            if char == "\\":
                after = self._take()
                if self._comments_end_at_line and after is not None and after in _NEWLINE:
                    return
            elif char in _NEWLINE:
                return

    def _key(self, first: str) -> str | None:
        name = [first]
        while (char := self._take()) is not None:
            if char in _NEWLINE:
                return None
            if char == "=":
                return "".join(name).rstrip(_BLANK)
            name.append(char)
        return None

    def _value(self) -> str:
        """Read a value from after `=`: quotes may open only before its first bare character."""
        out: list[str] = []
        while (char := self._take()) is not None and char not in _NEWLINE:
            if char == "'":
                self._single_quoted(out)
            elif char == '"':
                self._double_quoted(out)
            elif char == "\\":
                self._escaped(out)
                return self._bare(out)
            elif char not in _BLANK:
                out.append(char)
                return self._bare(out)
        return "".join(out)

    def _bare(self, out: list[str]) -> str:
        """Read on without quotes; blanks at the end are cut, down to the last escaped character."""
        fixed = len(out)
        while (char := self._take()) is not None and char not in _NEWLINE:
            if char == "\\":
                self._escaped(out)
                fixed = len(out)
            else:
                out.append(char)
        return "".join(out[:fixed]) + "".join(out[fixed:]).rstrip(_BLANK)

    def _escaped(self, out: list[str]) -> None:
        char = self._take()
        if char is not None and char not in _NEWLINE:
            out.append(char)

    def _single_quoted(self, out: list[str]) -> None:
        while (char := self._take()) is not None and char != "'":
            out.append(char)

    def _double_quoted(self, out: list[str]) -> None:
        while (char := self._take()) is not None and char != '"':
            if char != "\\":
                out.append(char)
                continue
            after = self._take()
            if after is None:
                return
            if after in '"\\`$':
                out.append(after)
            elif after != "\n":
                out += ["\\", after]
