"""What `watch` shows: a live line and finished states on a terminal, one line an event elsewhere, JSON on request."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from specd.cli.event_words import event_words, progress_words
from specd.cli.terminal import Terminal, print_json
from specd.cli.text import clean, duration, local_time, moment
from states.table import DESCRIPTIONS, PARKED, State

__all__ = ["JsonView", "LineView", "LiveView", "View"]

Event = Mapping[str, Any]

_BAR = 20
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

    def close(self) -> None:
        pass


class LiveView:
    """One trial on a terminal: each finished state stays as a line, the running one is drawn over."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._state = ""
        self._since: datetime | None = None
        self._progress: Event | None = None
        self._requests: Event | None = None
        self._lost = ""

    def take(self, event: Event) -> None:
        self._lost = ""
        kind = event.get("type")
        if kind == "TrialMoved":
            self._moved(event)
        elif kind == "StageProgressed":
            self._progress = event
        elif kind == "BenchmarkProgressed":
            self._requests = event
        elif kind == "TrialSubmitted":
            self._state, self._since = State.QUEUED.value, moment(event.get("at"))
            self._line(event, "bold")
        elif kind == "GuardChanged" and event.get("state") == "renewed":
            pass
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
        self._terminal.line(self._terminal.style(text, "green" if is_good else "red"))
        self._state, self._since = clean(event.get("target")), at
        self._progress = self._requests = None
        if self._state in _PARKED:
            self._terminal.line(
                self._terminal.style("!! the baseline is not proven to serve: a person is needed", "red")
            )

    def _line(self, event: Event, colour: str) -> None:
        text = f"{local_time(event.get('at'))}   {event_words(event)}"
        self._terminal.line(self._terminal.style(text, colour))

    def _live_text(self, now: datetime) -> str:
        elapsed = f"{duration((now - self._since).total_seconds())} so far" if self._since else ""
        fraction = self._fraction()
        parts = [f"{self._state}: {_TITLES.get(self._state, '')}", self._bar(fraction), elapsed]
        if self._requests is not None:
            parts.append(event_words(self._requests))
        if self._progress is not None:
            parts.append(progress_words(self._progress))
        return "  " + "  ".join(part for part in parts if part)

    def _fraction(self) -> float | None:
        if self._progress is not None and isinstance(self._progress.get("fraction"), int | float):
            return float(self._progress["fraction"])
        return None

    def _bar(self, fraction: float | None) -> str:
        if fraction is None:
            return ""
        full, empty = ("█", "░") if self._terminal.unicode else ("#", ".")
        count = round(min(max(fraction, 0.0), 1.0) * _BAR)
        return "[" + full * count + empty * (_BAR - count) + "]"


def _colour(event: Event) -> str:
    if event.get("type") == "VerdictReached":
        return "bold"
    if event.get("status") == "failed" or event.get("level") == "alarm":
        return "red"
    if event.get("status") == "warning" or event.get("level") == "warning" or event.get("type") == "HostLost":
        return "yellow"
    return "dim"
