"""What the reducer takes in besides the daemon's events: snapshots that were read, and the daemon coming and going."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from states.events import Event

__all__ = [
    "DaemonAway",
    "DaemonFound",
    "PastLoaded",
    "ServicesLoaded",
    "TrialLoaded",
    "TrialsLoaded",
    "Update",
]

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DaemonFound:
    """The daemon answers; `seq` is the stream's position at that moment, `problem` what it says is wrong with it."""

    version: str
    at: str
    seq: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class DaemonAway:
    """The daemon does not answer, for a reason in words."""

    why: str
    at: str


@dataclass(frozen=True, slots=True)
class ServicesLoaded:
    """All services, as the API shows them."""

    services: Sequence[Json]
    at: str


@dataclass(frozen=True, slots=True)
class TrialsLoaded:
    """The latest trials, newest first, as the API shows them."""

    trials: Sequence[Json]
    at: str


@dataclass(frozen=True, slots=True)
class TrialLoaded:
    """One trial, whole, as the API shows it."""

    trial: Json
    at: str


@dataclass(frozen=True, slots=True)
class PastLoaded:
    """Earlier events of one trial, oldest first: for what no snapshot holds."""

    events: Sequence[Event]


Update = Event | DaemonFound | DaemonAway | ServicesLoaded | TrialsLoaded | TrialLoaded | PastLoaded
