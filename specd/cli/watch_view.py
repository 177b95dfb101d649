"""What `watch` shows: a live line and finished states on a terminal, one line an event elsewhere, JSON on request."""

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from specd.cli.event_words import event_words, progress_words, requests_words
from specd.cli.terminal import Terminal, print_json
from specd.cli.text import clean, duration, local_time, moment
from states.table import DESCRIPTIONS, PARKED, State

__all__ = ["JsonView", "LineView", "LiveView", "View"]

Event = Mapping[str, Any]

_BAR, _SHORT_BAR = 20, 8
_NARROW = 72
# Where the words of a line begin, after its time and mark.
_HANGING = 11
_LIVE_ONLY = frozenset({"StageProgressed", "BenchmarkProgressed"})
_TITLES = {state.value: text for state, text in DESCRIPTIONS.items()}
_PARKED = frozenset(state.value for state in PARKED)


class View(Protocol):
    """Something that shows a stream of events."""

    def take(self, event: Event) -> None:
        """Show what an event changes."""
        ...

    def tick(self) -> None:
        """Show that time goes on."""
        ...

    def lost(self, why: str) -> None:
        """Show that the daemon does not answer; called once for each loss."""
        ...

    def warn(self, text: str) -> None:
        """Show what the daemon says of its own health."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


class JsonView:
    """One JSON event a line, as it came."""

    def take(self, event: Event) -> None:
        print_json(event)

    def tick(self) -> None:
        pass

    def lost(self, why: str) -> None:
        pass

    def warn(self, text: str) -> None:
        sys.stderr.write(f"specd: {clean(text)}\n")

    def close(self) -> None:
        pass


class LineView:
    """One line an event: time, trial, words."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._names: dict[str, str] = {}

    def take(self, event: Event) -> None:
        trial = str(event.get("trial") or "-")
        if event.get("type") == "TrialSubmitted":
            self._names[trial] = clean(event.get("name"))
        self._terminal.line(
            f"{local_time(event.get('at'))} {self._names.get(trial, clean(trial))} {event_words(event)}"
        )

    def tick(self) -> None:
        pass

    def lost(self, why: str) -> None:
        self._terminal.line(f"{local_time(datetime.now(UTC).isoformat())} - {clean(why)}; trying again")

    def warn(self, text: str) -> None:
        self._terminal.line(f"{local_time(datetime.now(UTC).isoformat())} - {clean(text)}")

    def close(self) -> None:
        pass


class LiveView:
    """One trial on a terminal: each finished state stays as a line, the running one is drawn over."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._state = ""
        self._since: datetime | None = None
        self._ends: datetime | None = None
        self._guard_acts: datetime | None = None
        self._progress: Event | None = None
        # By this machine's clock: the daemon's may be another one's.
        self._told = datetime.now(UTC)
        self._lost = ""

    def take(self, event: Event) -> None:
        self._lost = ""
        kind = event.get("type")
        if kind == "TrialMoved":
            self._moved(event)
        elif kind in _LIVE_ONLY:
            self._progress, self._told = event, datetime.now(UTC)
        elif kind == "TrialSubmitted":
            self._state, self._since = State.QUEUED.value, moment(event.get("at"))
            self._line(event, "bold")
        elif kind == "GuardChanged":
            self._guard_acts = moment(event.get("until"))
            if event.get("state") != "renewed":
                self._line(event, _colour(event))
        elif kind != "CheckFinished" or event.get("status") != "passed":
            self._line(event, _colour(event))
        if kind not in _LIVE_ONLY:
            self.tick()

    def tick(self) -> None:
        if self._lost:
            self._terminal.draw(f"  {self._lost}; trying again")
        elif self._state:
            self._terminal.draw(self._live_text(datetime.now(UTC)))

    def lost(self, why: str) -> None:
        self._lost = clean(why)
        self.tick()

    def warn(self, text: str) -> None:
        self._lost = ""
        self._paragraph(f"{local_time(datetime.now(UTC).isoformat())}   {clean(text)}", "red")

    def close(self) -> None:
        self._terminal.clear()

    def _moved(self, event: Event) -> None:
        at = moment(event.get("at"))
        took = duration((at - self._since).total_seconds()) if at and self._since else ""
        trigger = clean(event.get("trigger"))
        is_good = trigger not in {"failed", "timed-out", "guard-fired"}
        mark = ("✓" if is_good else "✗") if self._terminal.unicode else ("ok" if is_good else "!!")
        text = f"{local_time(event.get('at'))} {mark} {clean(event.get('source')):<18}{took:>13}  {trigger}"
        if event.get("cause"):
            text += f": {clean(event['cause'])}"
        self._paragraph(text, "green" if is_good else "red")
        self._state, self._since, self._progress = clean(event.get("target")), at, None
        self._ends = moment(event.get("expected_end_at"))
        if self._state in _PARKED:
            self._paragraph("!! the baseline is not proven to serve: a person is needed", "red")

    def _line(self, event: Event, colour: str) -> None:
        self._paragraph(f"{local_time(event.get('at'))}   {event_words(event)}", colour)

    def _paragraph(self, text: str, colour: str) -> None:
        self._terminal.paragraph(self._terminal.style(text, colour), _HANGING)

    def _live_text(self, now: datetime) -> str:
        """Return what matters most first: a narrow terminal cuts the end off."""
        fraction, left_s = self._ahead(now)
        parts = [
            self._state,
            self._bar(fraction),
            f"{self._stage()} {fraction:.0%}".lstrip() if fraction is not None else "",
            f"about {duration(left_s)} left" if left_s else "",
            f"{duration((now - self._since).total_seconds())} so far" if self._since else "",
            self._detail(),
            f"guard acts in {duration((self._guard_acts - now).total_seconds())}" if self._guard_acts else "",
        ]
        title = f"{self._state}: {_TITLES.get(self._state, '')}"
        short, whole = ("  " + "  ".join(part for part in row if part) for row in (parts, [title, *parts[1:]]))
        return whole if len(whole) <= self._terminal.width else short

    def _ahead(self, now: datetime) -> tuple[float | None, float | None]:
        """Return the share done and the seconds left: as last told, else as the move's expected end has it."""
        told = self._progress or {}
        eta_s = told.get("eta_s")
        fraction = told.get("fraction") if told.get("overall") is None else told["overall"]
        share = min(max(float(fraction), 0.0), 1.0) if isinstance(fraction, int | float) else None
        if isinstance(eta_s, int | float):
            return share, max(eta_s - (now - self._told).total_seconds(), 0.0)
        return share, (self._ends - now).total_seconds() if self._ends is not None and self._ends > now else None

    def _stage(self) -> str:
        """Return the stage that the share is one of; nothing where it is one of the whole."""
        told = self._progress or {}
        return "" if told.get("overall") is not None else clean(told.get("stage") or "")

    def _detail(self) -> str:
        told = self._progress
        if told is None:
            return ""
        if told.get("type") == "BenchmarkProgressed":
            return requests_words(told)
        is_whole = told.get("overall") is not None or told.get("fraction") is None
        return progress_words({**told, "eta_s": None, **({} if is_whole else {"stage": "", "fraction": None})})

    def _bar(self, fraction: float | None) -> str:
        if fraction is None:
            return ""
        full, empty = ("█", "░") if self._terminal.unicode else ("#", ".")
        length = _BAR if self._terminal.width >= _NARROW else _SHORT_BAR
        count = round(fraction * length)
        return "[" + full * count + empty * (length - count) + "]"


def _colour(event: Event) -> str:
    if event.get("type") == "VerdictReached":
        return "bold"
    if event.get("status") == "failed" or event.get("level") == "alarm":
        return "red"
    if event.get("status") == "warning" or event.get("level") == "warning" or event.get("type") == "HostLost":
        return "yellow"
    return "dim"
