"""What a trial's history says at a moment: its stages, its outage clock, its guard, its progress. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from states.table import CANDIDATE_OWNS, WORKING, State, Trigger
from tui.model import SETTLED
from tui.records import Detail, Guard, Progress, Step, Trial
from tui.words import moment, number, seconds_between

__all__ = ["Gauge", "Outage", "Stage", "gauge", "guard_left_s", "outage", "stages"]

_BAD_ENDS = frozenset({Trigger.FAILED.value, Trigger.TIMED_OUT.value, Trigger.GUARD_FIRED.value})
_STOPS = frozenset({Trigger.CANCEL.value, Trigger.ROLLBACK.value})
_NAMES = [state.value for state in WORKING]
_AWAY = frozenset(state.value for state in (*CANDIDATE_OWNS, State.ROLLBACK, State.ROLLBACK_FAILED))


@dataclass(frozen=True, slots=True)
class Stage:
    """A state on a trial's way: kind is done, now, later, skipped, failed, stopped or end.

    `took_s` counts all visits, the running one included; `expected_s` is the usual length of one, where known.
    """

    state: str
    kind: str
    took_s: float | None = None
    expected_s: float | None = None


@dataclass(frozen=True, slots=True)
class Outage:
    """How long the baseline has been away; `is_over` when something proven serves again."""

    seconds: float
    is_over: bool


@dataclass(frozen=True, slots=True)
class Gauge:
    """Progress of the running state: a true share or None, seconds left (negative: late by so much), words."""

    fraction: float | None
    eta_s: float | None
    stage: str
    source: str


def _visits(trial: Trial, detail: Detail | None) -> list[Step]:
    begin = Step(State.QUEUED.value, "", trial.created_at)
    if detail is not None:
        return [begin, *detail.history]
    return [begin] if trial.state == State.QUEUED.value else [begin, Step(trial.state, "", trial.updated_at)]


def stages(trial: Trial, detail: Detail | None, now: datetime) -> list[Stage]:
    """Return every stage of the way in order, and the end that was reached."""
    visits = _visits(trial, detail)
    took: dict[str, float] = {}
    left_by: dict[str, str] = {}
    for step, following in zip(visits, [*visits[1:], None], strict=True):
        end = moment(following.at) if following else None if step.state in SETTLED else now
        seconds = seconds_between(step.at, end)
        if seconds is not None:
            took[step.state] = took.get(step.state, 0.0) + max(seconds, 0.0)
        if following is not None:
            left_by[step.state] = following.trigger
    reached = max((_NAMES.index(step.state) for step in visits if step.state in _NAMES), default=0)
    expected = detail.expected_s if detail else {}
    known = {step.state for step in visits}
    found = [
        Stage(name, _kind(trial, name, index < reached, name in known, left_by), took.get(name), expected.get(name))
        for index, name in enumerate(_NAMES)
    ]
    return [*found, Stage(trial.state, "end")] if trial.state in SETTLED else found


def _kind(trial: Trial, name: str, is_behind: bool, is_known: bool, left_by: dict[str, str]) -> str:
    if name == trial.state:
        return "now"
    if not is_known:
        return "skipped" if is_behind or trial.state in SETTLED else "later"
    trigger = left_by.get(name, "")
    if trigger in _BAD_ENDS:
        return "failed"
    return "stopped" if trigger in _STOPS else "done"


def outage(trial: Trial, detail: Detail, now: datetime) -> Outage | None:
    """Return the baseline's absence since `restart` began; None before that."""
    began = next((step.at for step in detail.history if step.state == State.RESTART.value), None)
    if began is None:
        return None
    is_over = trial.state not in _AWAY
    last = detail.history[-1]
    seconds = seconds_between(began, moment(last.at) if is_over else now)
    return None if seconds is None else Outage(max(seconds, 0.0), is_over)


def guard_left_s(guard: Guard | None, now: datetime) -> float | None:
    """Return the seconds until an armed guard acts unless it is renewed; None when none is armed."""
    if guard is None or guard.state != "armed":
        return None
    until = moment(guard.until)
    return (until - now).total_seconds() if until else None


def gauge(trial: Trial, detail: Detail | None, now: datetime) -> Gauge | None:
    """Return how far the running state is; None for a settled trial or when nothing is known."""
    if trial.state in SETTLED:
        return None
    eta_s = _expected_left_s(trial, now)
    progress = trial.progress if trial.progress and trial.progress.state == trial.state else None
    if progress is not None and progress.share is not None:
        if progress.eta_s is not None:
            eta_s = progress.eta_s - (seconds_between(progress.at, now) or 0.0)
        return Gauge(min(max(progress.share, 0.0), 1.0), eta_s, _stage_words(progress), progress.source)
    if trial.bench is not None:
        return _bench_gauge(trial, detail, eta_s)
    if progress is not None:
        if progress.eta_s is not None:
            eta_s = progress.eta_s - (seconds_between(progress.at, now) or 0.0)
        return Gauge(None, eta_s, _stage_words(progress), progress.source)
    return Gauge(None, eta_s, "", "earlier trials") if eta_s is not None else None


def _stage_words(progress: Progress) -> str:
    return ", ".join(word for word in (progress.stage, progress.detail) if word)


def _expected_left_s(trial: Trial, now: datetime) -> float | None:
    end = moment(trial.expected_end_at)
    return (end - now).total_seconds() if end else None


def _bench_gauge(trial: Trial, detail: Detail | None, eta_s: float | None) -> Gauge | None:
    bench = trial.bench
    assert bench is not None, "the caller has looked"
    words = f"{bench.side}, {bench.load}, repeat {bench.repeat}: {bench.done} of {bench.total}"
    words += f", {bench.failed} failed" if bench.failed else ""
    words += f", {bench.output_tok_s:.1f} tok/s" if bench.output_tok_s is not None else ""
    share = bench.done / bench.total if bench.total else 0.0
    ended = [side for side, _, _ in trial.measured]
    whole = max(ended.count("baseline"), _repeats(detail.baseline) if detail else 0)
    own = ended.count(bench.side)
    is_current_counted = (bench.side, bench.load, bench.repeat) in trial.measured
    if bench.side == "baseline" or whole == 0 or own > whole:
        return Gauge(None, eta_s, words, "requests done")
    return Gauge(min((own + (0.0 if is_current_counted else share)) / whole, 1.0), eta_s, words, "requests done")


def _repeats(levels: Sequence[object]) -> int:
    counts = [number(level.get("repeats")) for level in levels if isinstance(level, dict)]
    return int(sum(count for count in counts if count))
