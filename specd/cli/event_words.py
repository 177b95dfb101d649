"""One event of the stream in words. External text in it comes out harmless, on one line."""

from collections.abc import Callable, Mapping
from typing import Any

from specd.cli.figures import level_figure, load_words
from specd.cli.text import clean, duration, figure, local_time

__all__ = ["event_words", "figures_words", "progress_words", "requests_words"]

Event = Mapping[str, Any]


def event_words(event: Event) -> str:
    """Return an event as one line; one of a newer version by its name and fields."""
    words = _WORDS.get(str(event.get("type")))
    if words is not None:
        return clean(words(event))
    shown = {key: value for key, value in event.items() if key not in {"v", "type", "seq", "at", "trial"}}
    return clean(" ".join([str(event.get("type")), *(f"{key}={value}" for key, value in shown.items())]))


def progress_words(event: Event) -> str:
    """Return a StageProgressed's stage, share, estimate and source, as far as they are known."""
    fraction, eta_s, source = event.get("fraction"), event.get("eta_s"), event.get("source")
    parts = [str(event.get("stage") or "")]
    if isinstance(fraction, int | float):
        parts.append(f"{fraction:.0%}")
    if event.get("detail"):
        parts.append(str(event["detail"]))
    if isinstance(eta_s, int | float):
        parts.append(f"about {duration(eta_s)} left")
    if source:
        parts.append(f"(from {source})")
    return clean(" ".join(part for part in parts if part))


def figures_words(summary: Mapping[str, Any]) -> str:
    """Return a level's figures on one line."""
    parts = []
    for key, unit, digits in (
        ("ttft_ms.median", "ms to the first token", 0),
        ("tpot_ms.median", "ms a token", 2),
        ("output_tok_s", "tok/s", 1),
    ):
        value = level_figure(summary, key)
        if value is not None:
            parts.append(f"{figure(value, digits)} {unit}")
    length = level_figure(summary, "acceptance_length")
    if length is not None:
        parts.append(f"acceptance length {length:.2f}")
    return ", ".join(parts) or "no figures"


def _moved(event: Event) -> str:
    text = f"{event.get('source')} -> {event.get('target')} ({event.get('trigger')})"
    if event.get("cause"):
        text += f": {str(event['cause']).strip()}"
    if event.get("outcome"):
        text += f" [{event['outcome']}]"
    return text


def _finished_check(event: Event) -> str:
    text = f"check {event.get('name')}: {event.get('status')}"
    text += f", {event['evidence']}" if event.get("evidence") else ""
    return text + (f"; to mend it: {event['fix']}" if event.get("fix") else "")


def requests_words(event: Event) -> str:
    """Return a BenchmarkProgressed's requests and speed, without the measurement's share and end."""
    text = f"{event.get('side')}, {load_words(event)}, repeat {event.get('repeat')}: "
    text += f"{event.get('done')} of {event.get('total')} requests" if event.get("total") else "warm-up"
    text += f", {event['failed']} failed" if event.get("failed") else ""
    speed = event.get("output_tok_s")
    return clean(text + (f", {speed:.1f} tok/s" if isinstance(speed, int | float) else ""))


def _measuring(event: Event) -> str:
    text, fraction, eta_s = requests_words(event), event.get("fraction"), event.get("eta_s")
    text += f"; {fraction:.0%} of it done" if isinstance(fraction, int | float) else ""
    return text + (f", about {duration(eta_s)} left" if isinstance(eta_s, int | float) else "")


def _measured(event: Event) -> str:
    side = f"{event.get('side')}, {load_words(event)}, repeat {event.get('repeat')}"
    return f"measured {side}: {figures_words(event.get('summary') or {})}"


def _guard(event: Event) -> str:
    until = f" until {local_time(event['until'])}" if event.get("until") else ""
    return f"guard on the host {event.get('state')}{until}"


_WORDS: dict[str, Callable[[Event], str]] = {
    "DaemonStarted": lambda e: f"daemon {e.get('version')} started (pid {e.get('pid')})",
    "DaemonStopped": lambda e: "daemon stopped" + "".join(f"; goes on: {item}" for item in e.get("left_behind") or ()),
    "TrialSubmitted": lambda e: f"queued for {e.get('service')} on {e.get('host')}",
    "TrialMoved": _moved,
    "TrialResumed": lambda e: f"taken up again in {e.get('state')}: {e.get('found')}",
    "TriggerIgnored": lambda e: f"{e.get('trigger')} ignored in {e.get('state')}: {e.get('why')}",
    "CancelRequested": lambda e: f"cancel asked by {e.get('by')}" + (f": {e['why']}" if e.get("why") else ""),
    "DeadlineExtended": lambda e: (
        f"{e.get('state')} may last {e.get('minutes'):g} min longer, until {local_time(e.get('deadline_at'))}"
    ),
    "StageProgressed": lambda e: f"{e.get('state')}: {progress_words(e)}",
    "CheckFinished": _finished_check,
    "BaselineReused": lambda e: f"baseline measured at {local_time(e.get('measured_at'))} is used again",
    "BenchmarkProgressed": _measuring,
    "LevelMeasured": _measured,
    "VerdictReached": lambda e: f"verdict: {e.get('outcome')}: {e.get('reason')}",
    "GuardChanged": _guard,
    "HostLost": lambda e: f"host {e.get('host')} does not answer: {e.get('why')}",
    "HostBack": lambda e: f"host {e.get('host')} answers again after {duration(float(e.get('away_s') or 0))}",
    "TaskRestarted": lambda e: f"{e.get('task')} began anew after an error: {e.get('error')}",
    "NoteAdded": lambda e: f"{e.get('level')}: {e.get('text')}",
}
