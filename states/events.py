"""What happened, as frozen records in the past tense; the daemon's stream is made of these and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "BaselineReused",
    "BenchmarkProgressed",
    "CancelRequested",
    "CheckFinished",
    "DaemonStarted",
    "DaemonStopped",
    "DeadlineExtended",
    "Event",
    "GuardChanged",
    "HostBack",
    "HostLost",
    "LevelMeasured",
    "NoteAdded",
    "StageProgressed",
    "TaskRestarted",
    "TrialMoved",
    "TrialResumed",
    "TrialSubmitted",
    "TriggerIgnored",
    "VerdictReached",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events. `seq` is the stream's position (0 before it is stored), `at` an RFC 3339 UTC time."""

    seq: int = 0
    at: str = ""
    trial: str | None = None
    service: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStarted(Event):
    """The daemon serves its API; `open_trials` are the ids it took up again."""

    version: str
    pid: int
    open_trials: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStopped(Event):
    """The daemon ends in good order; `left_behind` says what goes on without it."""

    left_behind: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSubmitted(Event):
    """A trial was accepted and queued."""

    name: str
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialMoved(Event):
    """A durable move; state names as in the table, `outcome` as far as it is known."""

    source: str
    trigger: str
    target: str
    cause: str = ""
    outcome: str | None = None
    deadline_at: str | None = None
    expected_end_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResumed(Event):
    """The daemon took up an open trial where the host really is."""

    state: str
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerIgnored(Event):
    """A trigger came too late or in a state that has no move for it."""

    state: str
    trigger: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested(Event):
    """An operator asked to end the trial."""

    by: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineExtended(Event):
    """An operator gave the running state more time."""

    state: str
    minutes: float
    deadline_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProgressed(Event):
    """Work in a state moved: `fraction` 0..1 of the stage or None, `source` what it was read from.

    `overall` is the share of a whole start, over all its stages, and `eta_s` the seconds to its end, where earlier
    starts tell.
    """

    state: str
    stage: str
    fraction: float | None = None
    overall: float | None = None
    source: str = ""
    eta_s: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFinished(Event):
    """One check of preflight or verify: status is passed, failed, warning or unchecked."""

    state: str
    name: str
    status: str
    evidence: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineReused(Event):
    """A measurement of the same invocation was fresh enough to be used again."""

    invocation: str
    measured_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkProgressed(Event):
    """Requests of one level so far (a total of 0 is its warm-up); side is baseline or candidate.

    `rate` is in requests per second; in its levels concurrency is 0, and in those of a concurrency it is 0.
    `fraction` and `eta_s` tell how far the measurement of this side is as a whole, None while that is not known.
    """

    side: str
    concurrency: int
    repeat: int
    done: int
    total: int
    failed: int = 0
    output_tok_s: float | None = None
    fraction: float | None = None
    eta_s: float | None = None
    rate: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelMeasured(Event):
    """A level of one side is complete and stored; `summary` holds its figures."""

    side: str
    concurrency: int
    repeat: int
    summary: Mapping[str, Any] = field(default_factory=dict)
    rate: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictReached(Event):
    """The comparison is stored; `comparison` as in `show --json`."""

    outcome: str
    reason: str
    comparison: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardChanged(Event):
    """The dead-man's switch on the host: state is armed, renewed, fired or disarmed; `until` its lease's end."""

    state: str
    until: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLost(Event):
    """The link to a host is gone; trials on it wait and their deadlines go on."""

    host: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBack(Event):
    """The link to a host works again."""

    host: str
    away_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRestarted(Event):
    """A long-lived task of the daemon died of an error and was started again."""

    task: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteAdded(Event):
    """Something a person should know that is no move: level is info, warning or alarm."""

    level: str
    text: str
