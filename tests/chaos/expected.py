"""What must come of a fault that strikes at the very beginning of a state: data, with the reasons."""

from dataclasses import dataclass

__all__ = [
    *("CELLS", "ENDING", "FAILED", "KEPT", "MEASURED", "STATES", "SURVIVED", "WITHDRAWN", "WORKING"),
    *("Cell", "ends_of", "more_starts"),
]

End = tuple[str, str]

BEFORE = ("baseline", "write-unit", "verify")
OWNS = ("loading", "cudagraph-compile", "ready", "benchmark")
WORKING = (*BEFORE, "restart", *OWNS, "rollback")
STATES = ("queued", *WORKING, "kept")

MEASURED = frozenset(("restored", outcome) for outcome in ("worse", "better", "equivalent", "inconclusive", "invalid"))
FAILED = frozenset({("restored", "failed")})
WITHDRAWN = frozenset({("withdrawn", "failed")})
KEPT = frozenset({("kept", "better")})
TAKEN_BACK = frozenset({("restored", "better")})

# Seconds that each lasts. Those of the first kind cost a trial nothing, so that one trial bears them in every state.
SURVIVED = {
    "link-cut": 5.0,
    "packets-lost": 2.0,
    "sshd-restarted": 0.2,
    "journald-restarted": 0.2,
    "systemd-reexecuted": 0.2,
    "database-locked": 2.0,
    "daemon-disk-full": 1.5,
    "daemon-frozen": 1.0,
    "daemon-killed": 0.2,
    "clock-stepped": 0.0,
}
# The lease of a guard is 6 s in these trials.
ENDING = {
    "link-cut": 12.0,
    "packets-lost": 12.0,
    "host-frozen": 12.0,
    "host-rebooted": 0.5,
    "power-cut": 0.5,
    "host-disk-full": 4.0,
    "engine-killed": 0.3,
    "engine-frozen": 9.0,
    "orphans-left": 0.3,
    "daemon-killed": 12.0,
    "daemon-frozen": 12.0,
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A fault, the state in which it strikes, how long it lasts; the daemon may be killed (-9) right before and started
    in the midst of it."""

    state: str
    fault: str
    seconds: float
    daemon_dies: bool = False

    def __str__(self) -> str:
        return f"{self.state} x {self.fault}" + (" + kill -9 of the daemon" if self.daemon_dies else "")


CELLS = tuple(
    Cell(state, fault, seconds, dies)
    for state in STATES
    for fault, seconds in ENDING.items()
    for dies in ((False,) if fault in {"daemon-killed", "daemon-frozen"} else (False, True))
)


_OUT_OF_SIGHT = frozenset({"link-cut", "packets-lost", "daemon-killed", "daemon-frozen"})
_BOOTED = frozenset({"host-rebooted", "power-cut"})
_ENGINE_DEAD = frozenset({"engine-killed", "orphans-left"})


def ends_of(cell: Cell) -> frozenset[End]:
    """Return the ends that are right."""
    fault = cell.fault
    if cell.state in {"queued", "rollback"}:
        # It was not its turn yet, or its result is known: whatever happens changes nothing of it.
        return MEASURED
    if cell.state == "kept":
        return TAKEN_BACK if fault in _BOOTED | _ENGINE_DEAD else KEPT
    if cell.state in BEFORE:
        return _before(cell.state, fault)
    if cell.state == "restart":
        return _restart(fault)
    return _owned(cell.state, fault)


def _before(state: str, fault: str) -> frozenset[End]:
    if fault in _OUT_OF_SIGHT | {"host-frozen"}:
        return MEASURED
    if fault in _BOOTED and state != "baseline":
        # What was measured is not what serves now.
        return WITHDRAWN
    if fault == "host-disk-full":
        # The last thing that needs room is the guard, just before the baseline would be stopped.
        return WITHDRAWN | MEASURED | FAILED
    # It is refused if it was seen, and was over otherwise.
    return WITHDRAWN | MEASURED


def _restart(fault: str) -> frozenset[End]:
    if fault in _OUT_OF_SIGHT | {"host-frozen", "engine-frozen"}:
        # No guard is armed yet and the baseline is to be stopped anyway.
        return MEASURED
    # On a systemd host the candidate's unit does not outlive a boot; an embedded supervisor finds it again.
    return FAILED | MEASURED


def _owned(state: str, fault: str) -> frozenset[End]:
    if fault == "host-frozen":
        # The lease ran out, but so did everything else; who is first when it goes on is open.
        return FAILED | MEASURED
    if fault == "engine-frozen" and state in {"ready", "benchmark"}:
        return FAILED | MEASURED
    if fault == "host-disk-full":
        return MEASURED
    return FAILED


def more_starts(cell: Cell) -> int:
    """Return how often the baseline may be started besides once for each candidate that took its place."""
    if cell.state in BEFORE and cell.fault in _BOOTED:
        return 1
    # The baseline's own unit starts it again.
    return int(cell.state in (*BEFORE, "restart") and cell.fault in _ENGINE_DEAD)
