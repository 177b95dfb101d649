"""Words for a person: external text made harmless, durations, times, tables. No I/O."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

__all__ = ["clean", "duration", "figure", "local_day", "local_time", "table", "value_text"]

# Whole terminal sequences first (CSI, OSC and the other strings, two-byte escapes), then what is left of control.
_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?|\x9b[0-?]*[@-~]"
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_SPACE = re.compile(r"[\t\n\r\v\f\x85\u2028\u2029]+")


def clean(text: Any, *, lines: bool = False) -> str:
    """Return external text without anything a terminal obeys; on one line, or with its line breaks kept."""
    bare = _SEQUENCE.sub("", str(text))
    bare = bare.replace("\r\n", "\n").replace("\t", "    ") if lines else _SPACE.sub(" ", bare)
    return _CONTROL.sub("", bare)


def duration(seconds: float) -> str:
    """Return seconds in words: 0.4 s, 42 s, 3 min 05 s, 1 h 02 min."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min"


def moment(at: Any) -> datetime | None:
    """Return an RFC 3339 time, None when it is none."""
    try:
        return datetime.fromisoformat(str(at))
    except ValueError:
        return None


def local_time(at: Any) -> str:
    """Return an RFC 3339 time as this machine's clock shows it: 12:03:11."""
    found = moment(at)
    return found.astimezone().strftime("%H:%M:%S") if found else clean(at)


def local_day(at: Any) -> str:
    """Return an RFC 3339 time with its day and zone, by this machine's clock."""
    found = moment(at)
    return found.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z") if found else clean(at)


def figure(value: Any, digits: int = 1) -> str:
    """Return a number with so many decimals; "-" for none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-"
    return f"{value:.{digits}f}"


def value_text(value: Any) -> str:
    """Return a JSON value as short text: strings bare, all else as JSON."""
    if isinstance(value, str):
        return clean(value)
    import json

    return clean(json.dumps(value, ensure_ascii=False))


def table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: str = "") -> list[str]:
    """Return rows as aligned lines; columns in `right` are aligned to the right, the last one is not padded."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines
