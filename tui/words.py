"""Words for a person: external text made harmless, durations, times, figures. No I/O and no clock."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

__all__ = [
    "age",
    "clean",
    "clock_time",
    "clock_words",
    "difference",
    "figure",
    "is_secret_name",
    "load_words",
    "moment",
    "number",
    "seconds_between",
    "short",
    "value_words",
]

MASK = "***"

# Whole sequences first (CSI, the strings OSC/DCS/SOS/PM/APC, two-byte escapes, their 8-bit forms), then bare controls
# and the invisible characters that turn text around.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_BLANKS = re.compile("[\t\n\r\v\f\x85\u2028\u2029]+")
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_SECRET_NAME = re.compile(
    r"(^|[-_.])(api[-_]?key|key|token|secret|password|passwd|passphrase|credentials?|auth)$", re.IGNORECASE
)


def clean(text: Any) -> str:
    """Return external text on one line, without anything that a terminal would obey."""
    raw = str(text)
    # Most text is harmless; one look is much cheaper than three substitutions.
    if raw.isascii() and raw.isprintable():
        return raw
    return _CONTROLS.sub("", _BLANKS.sub(" ", _SEQUENCES.sub("", raw)))


def short(seconds: float) -> str:
    """Return a duration in the shortest form that a person reads at once: 0.4s, 42s, 3m05s, 1h02m, 2d04h."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60}h{minutes % 60:02}m"
    hours = round(seconds / 3600)
    return f"{hours // 24}d{hours % 24:02}h"


def clock_words(seconds: float) -> str:
    """Return a running clock in whole seconds, so that it ticks evenly: 07s, 3m05s, 1h02m."""
    return f"{int(max(seconds, 0.0))}s" if seconds < 60 else short(float(int(seconds)))


def age(seconds: float) -> str:
    """Return how long ago something was, with one unit: now, 5m, 3h, 12d."""
    if seconds < 60:
        return "now"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    raise AssertionError("every span of a minute or more has a unit")


def moment(at: Any) -> datetime | None:
    """Return an RFC 3339 time as an aware datetime, None when it is none."""
    if not isinstance(at, str):
        return None
    try:
        found = datetime.fromisoformat(at)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def seconds_between(earlier: Any, later: datetime | None) -> float | None:
    """Return the seconds from an RFC 3339 time to a moment, None when either is unknown."""
    begin = moment(earlier)
    return (later - begin).total_seconds() if begin and later else None


def clock_time(at: datetime | None, zone: Any = None) -> str:
    """Return a moment as this machine's clock (or `zone`'s) shows it, to the second; "" for none."""
    return at.astimezone(zone).strftime("%H:%M:%S") if at else ""


def ends_at(now: datetime, seconds: float, zone: Any = None) -> str:
    """Return the time of day some seconds from now, to the minute."""
    return (now + timedelta(seconds=seconds)).astimezone(zone).strftime("%H:%M")


def number(value: Any) -> float | None:
    """Return a JSON number as a float; None for all else, true and false included."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def figure(value: float | None, digits: int) -> str:
    """Return a number with so many decimals, "-" for none."""
    return "-" if value is None else f"{value:.{digits}f}"


def load_words(concurrency: int, rate: float) -> str:
    """Return what a level's load is: `concurrency 4`, or `0.5 requests/s` where there is a rate."""
    return f"{rate:g} requests/s" if rate > 0 else f"concurrency {concurrency}"


def difference(before: float | None, after: float | None) -> str:
    """Return the relative difference of two figures as a signed percentage; "" where it says nothing."""
    return f"{after / before - 1:+.1%}" if before and after is not None else ""


def is_secret_name(name: str) -> bool:
    """True for a flag or variable whose name says that its value is a secret."""
    return _SECRET_NAME.search(name.lstrip("-")) is not None


def value_words(name: str, value: Any) -> str:
    """Return a flag's or variable's value as short text: secrets masked, strings bare, null as removed."""
    if value is None:
        return "(removed)"
    if is_secret_name(name):
        return MASK
    if isinstance(value, str):
        return clean(value)
    return clean(json.dumps(_masked(value), ensure_ascii=False))


def _masked(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: MASK if is_secret_name(str(key)) else _masked(inner) for key, inner in value.items()}
    return [_masked(inner) for inner in value] if isinstance(value, list) else value
