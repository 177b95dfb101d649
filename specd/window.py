"""Maintenance windows: when a trial may begin, by the local time of the daemon's machine.

`02:00-05:30` is each night, `Sat,Sun 22:00-06:00` begins on those days and may end on the next one.
"""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

__all__ = ["ALWAYS", "Windows", "is_window"]

ALWAYS = "00:00-24:00"

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_FORM = re.compile(r"(?:(?P<days>[A-Za-z]{3}(?:[-,][A-Za-z]{3})*)\s+)?(?P<begin>\d{1,2}:\d\d)-(?P<end>\d{1,2}:\d\d)")
_DAY = timedelta(days=1)


def is_window(text: str) -> bool:
    """True for a window that can be read."""
    try:
        Window(text)
    except ValueError:
        return False
    return True


class Window:
    """One window; raises ValueError for a text that is none."""

    def __init__(self, text: str) -> None:
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} is no window")
        self._days = _days(found["days"] or "Mon-Sun")
        self._begin, self._end = _minutes(found["begin"]), _minutes(found["end"])
        if self._begin == self._end:
            raise ValueError(f"{text!r} has no length")

    def spans(self, now: datetime) -> list[tuple[datetime, datetime]]:
        """Return when it is open from the day before `now` to a week after it."""
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        found = []
        for days in range(-1, 9):
            day = midnight + days * _DAY
            if day.weekday() in self._days:
                end = day + timedelta(minutes=self._end) + (_DAY if self._end < self._begin else timedelta())
                found.append((day + timedelta(minutes=self._begin), end))
        return found


class Windows:
    """Several windows; none of them, or one for each whole day, means always."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._windows = [Window(text) for text in texts if text != ALWAYS]
        if len(self._windows) < len(texts):
            self._windows = []

    def _spans(self, now: datetime) -> list[tuple[datetime, datetime]]:
        """Return all spans in order, those that touch joined."""
        joined: list[tuple[datetime, datetime]] = []
        for begin, end in sorted(span for window in self._windows for span in window.spans(now)):
            if joined and begin <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((begin, end))
        return joined

    def left_s(self, now: datetime | None = None) -> float | None:
        """Return how many seconds it is still open; None while it is closed, infinity where there is none."""
        now = now or datetime.now()
        if not self._windows:
            return float("inf")
        return next(((end - now).total_seconds() for begin, end in self._spans(now) if begin <= now < end), None)

    def opens_at(self, now: datetime | None = None) -> datetime:
        """Return when it opens next."""
        now = now or datetime.now()
        return next((begin for begin, _ in self._spans(now) if begin > now), now)

    def opens_words(self) -> str:
        """Return when it opens next, as a person says it."""
        return self.opens_at().strftime("%a %d %b, %H:%M")


def _days(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.lower().split(","):
        first, _, last = part.partition("-")
        begin, end = _DAYS.index(first), _DAYS.index(last or first)
        found |= {day % 7 for day in range(begin, end + (7 if end < begin else 0) + 1)}
    return frozenset(found)


def _minutes(text: str) -> int:
    hours, _, minutes = text.partition(":")
    if int(minutes) > 59 or int(hours) * 60 + int(minutes) > 24 * 60:
        raise ValueError(f"{text!r} is no time of day")
    return int(hours) * 60 + int(minutes)
