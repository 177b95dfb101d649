"""The states of a trial, the triggers that move it, and every legal move. All else derives from this table."""

from dataclasses import dataclass
from enum import Enum

__all__ = [
    "BEFORE_RESTART",
    "CANDIDATE_OWNS",
    "DESCRIPTIONS",
    "MOVES",
    "ORDER",
    "PARKED",
    "TERMINAL",
    "WORKING",
    "Move",
    "Outcome",
    "State",
    "Trigger",
    "destination",
    "triggers_from",
]


class State(Enum):
    """Where a trial is."""

    QUEUED = "queued"
    BASELINE = "baseline"
    WRITE_UNIT = "write-unit"
    VERIFY = "verify"
    RESTART = "restart"
    LOADING = "loading"
    CUDAGRAPH_COMPILE = "cudagraph-compile"
    READY = "ready"
    BENCHMARK = "benchmark"
    ROLLBACK = "rollback"
    KEPT = "kept"
    RESTORED = "restored"
    WITHDRAWN = "withdrawn"
    ROLLBACK_FAILED = "rollback-failed"


class Trigger(Enum):
    """What can happen to a trial; a state's work ends by naming one."""

    START = "start"
    BASELINE_MEASURED = "baseline-measured"
    UNIT_WRITTEN = "unit-written"
    VERIFIED = "verified"
    CANDIDATE_STARTED = "candidate-started"
    WEIGHTS_LOADED = "weights-loaded"
    ENGINE_UP = "engine-up"
    TOKEN_SEEN = "token-seen"
    RESTORE = "restore"
    KEEP = "keep"
    RESTORED = "restored"
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    CANCEL = "cancel"
    ROLLBACK = "rollback"
    GUARD_FIRED = "guard-fired"


class Outcome(Enum):
    """What a trial found; a fact apart from the state it is in."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Move:
    """One legal move: in `source`, `trigger` leads to `target`."""

    source: State
    trigger: Trigger
    target: State


ORDER: tuple[State, ...] = tuple(State)
BEFORE_RESTART = (State.QUEUED, State.BASELINE, State.WRITE_UNIT, State.VERIFY)
CANDIDATE_OWNS = (State.RESTART, State.LOADING, State.CUDAGRAPH_COMPILE, State.READY, State.BENCHMARK)
WORKING = (*BEFORE_RESTART, *CANDIDATE_OWNS, State.ROLLBACK)
TERMINAL = frozenset({State.KEPT, State.RESTORED, State.WITHDRAWN})
PARKED = frozenset({State.ROLLBACK_FAILED})

_FORWARD = (
    Move(State.QUEUED, Trigger.START, State.BASELINE),
    Move(State.BASELINE, Trigger.BASELINE_MEASURED, State.WRITE_UNIT),
    Move(State.WRITE_UNIT, Trigger.UNIT_WRITTEN, State.VERIFY),
    Move(State.VERIFY, Trigger.VERIFIED, State.RESTART),
    Move(State.RESTART, Trigger.CANDIDATE_STARTED, State.LOADING),
    Move(State.LOADING, Trigger.WEIGHTS_LOADED, State.CUDAGRAPH_COMPILE),
    Move(State.LOADING, Trigger.ENGINE_UP, State.READY),
    Move(State.CUDAGRAPH_COMPILE, Trigger.ENGINE_UP, State.READY),
    Move(State.READY, Trigger.TOKEN_SEEN, State.BENCHMARK),
    Move(State.BENCHMARK, Trigger.RESTORE, State.ROLLBACK),
    Move(State.BENCHMARK, Trigger.KEEP, State.KEPT),
    Move(State.ROLLBACK, Trigger.RESTORED, State.RESTORED),
)
# Before `restart` the baseline is untouched, so every way out is `withdrawn`; from `restart` on it is `rollback`.
_WAYS_OUT = tuple(
    Move(source, trigger, State.WITHDRAWN)
    for source in BEFORE_RESTART
    for trigger in (Trigger.FAILED, Trigger.TIMED_OUT, Trigger.CANCEL)
) + tuple(
    Move(source, trigger, State.ROLLBACK)
    for source in CANDIDATE_OWNS
    for trigger in (Trigger.FAILED, Trigger.TIMED_OUT, Trigger.CANCEL, Trigger.ROLLBACK, Trigger.GUARD_FIRED)
)
_ROLLBACK = (
    Move(State.ROLLBACK, Trigger.FAILED, State.ROLLBACK_FAILED),
    Move(State.ROLLBACK, Trigger.TIMED_OUT, State.ROLLBACK_FAILED),
    Move(State.ROLLBACK_FAILED, Trigger.ROLLBACK, State.ROLLBACK),
    # A kept candidate serves by decision; the same command takes the decision back.
    Move(State.KEPT, Trigger.ROLLBACK, State.ROLLBACK),
)
MOVES: tuple[Move, ...] = _FORWARD + _WAYS_OUT + _ROLLBACK
_TARGETS = {(move.source, move.trigger): move.target for move in MOVES}

DESCRIPTIONS: dict[State, str] = {
    State.QUEUED: "waits for its turn on the service",
    State.BASELINE: "measures the running baseline",
    State.WRITE_UNIT: "writes the candidate's unit",
    State.VERIFY: "proves the unit and asks the engine",
    State.RESTART: "stops the baseline, starts the candidate",
    State.LOADING: "loads the weights",
    State.CUDAGRAPH_COMPILE: "compiles and captures graphs",
    State.READY: "asks for a first token",
    State.BENCHMARK: "measures the candidate",
    State.ROLLBACK: "brings the baseline back",
    State.KEPT: "the candidate serves, by decision",
    State.RESTORED: "the baseline serves, proven",
    State.WITHDRAWN: "ended; the baseline was not touched",
    State.ROLLBACK_FAILED: "the baseline is not proven: needs a person",
}


def destination(state: State, trigger: Trigger) -> State | None:
    """Return where `trigger` leads from `state`, or None where the table has no such move."""
    return _TARGETS.get((state, trigger))


def triggers_from(state: State) -> tuple[Trigger, ...]:
    """Return the triggers that are legal in `state`, in the table's order."""
    return tuple(move.trigger for move in MOVES if move.source is state)
