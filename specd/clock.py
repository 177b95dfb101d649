"""Wall-clock time in the one form the product shows: RFC 3339, UTC, milliseconds."""

from datetime import UTC, datetime, timedelta

__all__ = ["after", "now", "seconds_between"]


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
