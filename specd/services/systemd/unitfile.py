"""Unit files: the text of a fragment and its drop-ins taken apart as systemd's own reader does, and put together."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Assignment", "join_text", "marks_of", "parse_parts", "parse_unit"]

_BLANK = " \t\n\r"
_LINE_END = re.compile("\r\n|\n\r|\n|\r|\0")
MARK_SECTION = "X-Specd"


@dataclass(frozen=True, slots=True)
class Assignment:
    """One `key=value` of a section, continuation lines joined; an empty value often is a reset."""

    section: str
    key: str
    value: str


def parse_unit(text: str) -> list[Assignment]:
    """Return the assignments of one file in order; what systemd would ignore (no section, no `=`) is left out."""
    found: list[Assignment] = []
    section = ""
    for line in _logical_lines(text.removeprefix("\ufeff")):
        if line.startswith("["):
            section = line[1:-1] if line.endswith("]") else section
            continue
        key, separator, value = line.partition("=")
        if separator and section:
            found.append(Assignment(section, key.rstrip(_BLANK), value.lstrip(_BLANK)))
    return found


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    held = ""
    holding = False
    for raw in _LINE_END.split(text):
        if raw.lstrip(_BLANK)[:1] in {"#", ";"}:
            continue
        line = held + raw if holding else raw
        trailing = len(line) - len(line.rstrip("\\"))
        holding = trailing % 2 == 1
        if holding:
            held = line[:-1] + " "
            continue
        lines.append(line.strip(_BLANK))
    if holding:
        lines.append(held.strip(_BLANK))
    return [line for line in lines if line]


def join_text(files: Mapping[str, str]) -> str:
    """Put files together as `systemctl cat` shows them: a comment with the path before each.

    A line of a file that looks like such a comment is changed by one blank, so that parse_parts can't be misled.
    """
    markers = {f"# {path}" for path in files}
    parts = []
    for path, text in files.items():
        body = "\n".join("#  " + line[2:] if line in markers else line for line in text.split("\n"))
        parts.append(f"# {path}\n{body}\n")
    return "\n".join(parts)


def parse_parts(text: str, paths: Sequence[str]) -> dict[str, list[Assignment]]:
    """Take join_text's form apart again: the assignments of each file, in the order of `paths`."""
    markers = {f"# {path}": path for path in paths}
    bodies: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.split("\n"):
        if line in markers:
            current = bodies.setdefault(markers[line], [])
        else:
            current.append(line)
    return {path: parse_unit("\n".join(bodies.get(path, []))) for path in paths}


def marks_of(text: str) -> dict[str, str]:
    """Return the marks specd has put into a unit file (Trial, Installation, Baseline, Mode); empty for other files."""
    prefix = "X-Specd-"
    return {
        item.key.removeprefix(prefix): item.value
        for item in parse_unit(text)
        if item.section == MARK_SECTION and item.key.startswith(prefix)
    }
