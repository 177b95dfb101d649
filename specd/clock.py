"""Wall-clock time in the one form the product shows (RFC 3339, UTC, milliseconds); spans that no step of it bends."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

__all__ = ["after", "elapsed_s", "mark", "now", "seconds_between"]

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def now() -> str:
    """Return the current time, as `2026-01-31T12:00:00.000Z`."""
    return _text(datetime.now(UTC))


def after(seconds: float, since: str = "") -> str:
    """Return the time `seconds` from now, or from the time `since`."""
    begin = datetime.fromisoformat(since) if since else datetime.now(UTC)
    return _text(begin + timedelta(seconds=seconds))


def seconds_between(earlier: str, later: str) -> float:
    """Return `later - earlier` in seconds; both as `now` makes them."""
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


def mark() -> dict[str, Any]:
    """Return an instant to measure from, also in another process: by the boot's clock, and by the wall's for later."""
    return {"boot": _boot(), "boot_s": time.clock_gettime(time.CLOCK_BOOTTIME), "at": now()}


def elapsed_s(since: dict[str, Any]) -> float:
    """Return the seconds since a mark; by the wall clock, and never less than 0, once this machine was rebooted."""
    if since["boot"] == _boot():
        return time.clock_gettime(time.CLOCK_BOOTTIME) - float(since["boot_s"])
    return max(0.0, seconds_between(since["at"], now()))


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return "unknown"
