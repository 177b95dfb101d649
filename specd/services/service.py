"""Seam 2, the service manager: read, render, verify, start, stop and observe units; the journal; the guard."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from specd.checks import Check
from specd.services.claim import Claim

__all__ = [
    "ArmedGuard",
    "Candidate",
    "Claim",
    "Dependent",
    "GuardPlan",
    "JournalRecord",
    "OwnUnit",
    "PortOwner",
    "Process",
    "ServiceManager",
    "UnitFacts",
    "UnitStatus",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFacts:
    """A unit as its manager reads it: all drop-ins applied, specifiers and variables resolved as it does.

    `argv` is the one command it would execute, element by element, as the process will get it (after $ expansion).
    `environment` is the effective environment the unit itself sets: Environment= then EnvironmentFile=, masked nowhere.
    `files` maps each file the unit is made of (fragment, drop-ins, environment files) to its sha256, to prove later
    that nothing of it changed. `text` is what `systemctl cat` would show (or the embedded manager's file).
    `extra` holds directives by name that checks look at (Type, Restart, KillMode, TimeoutStopUSec, User, ...).
    """

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    user: str
    working_directory: str
    enabled: str
    files: Mapping[str, str]
    text: str
    fragment_path: str
    drop_in_paths: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitStatus:
    """What a unit is doing now. `invocation` names one start ("" if never started); `exists` is false for no such unit.

    `result`, `exec_status` and `exec_code` tell how the last main process ended (exec_code: exited, killed, dumped
    or "");
    `restarts` counts automatic restarts; `needs_reload` says that files are newer than what the manager has read.
    """

    name: str
    exists: bool
    active: str
    sub: str
    invocation: str
    main_pid: int = 0
    result: str = ""
    exec_code: str = ""
    exec_status: int = 0
    restarts: int = 0
    control_group: str = ""
    needs_reload: bool = False
    job: str = ""

    @property
    def is_running(self) -> bool:
        """True while the unit has, or is about to have, a process."""
        return self.active in {"active", "activating", "deactivating", "reloading"} and self.sub != "auto-restart"

    @property
    def is_down(self) -> bool:
        """True when nothing of the unit runs and no start is pending."""
        return self.active in {"inactive", "failed"} and not self.job


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A rendered candidate unit, not yet written. `content` is its exact bytes; `side_files` go beside it (path to
    bytes).

    `argv` and `environment` are the intended lists; verify proves them against what the manager reports.
    """

    name: str
    trial: str
    path: str
    content: bytes
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    side_files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dependent:
    """A unit that the manager stops when another one stops, and does not start again with it.

    `relation` is the manager's word for the tie, as the stopped unit has it: RequiredBy, RequisiteOf, BoundBy,
    ConsistsOf, PropagatesStopTo. `is_active` tells whether a stop now would take something away.
    """

    unit: str
    relation: str
    is_active: bool


@dataclass(frozen=True, slots=True)
class OwnUnit:
    """A unit on the host that carries specd's mark: its name, its trial's id and the daemon's installation id."""

    name: str
    trial: str
    installation: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process of a unit's cgroup. Bytes and seconds since its start; `read_bytes` None where the host will not
    tell."""

    pid: int
    argv: tuple[str, ...]
    rss_bytes: int
    cpu_s: float
    read_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PortOwner:
    """Who listens on a TCP port: pid 0, unit "" and command "" where the host will not tell."""

    pid: int
    unit: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRecord:
    """One journal record of one invocation. `cursor` resumes after it; `at` is Unix seconds by the host's clock.

    `text` is decoded with replacement, may hold carriage returns and any control character: it is data.
    `pid` is the writer (the manager's own lines have `from_manager`).
    """

    cursor: str
    at: float
    pid: int
    text: str
    from_manager: bool = False

    @property
    def tells_stop(self) -> bool:
        """True for the manager's word that it was asked to stop the unit."""
        return self.from_manager and self.text.lower().startswith("stopping")


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardPlan:
    """What the dead-man's switch does when its lease runs out: stop `candidate`, clear failed states, start
    `baseline`."""

    trial: str
    candidate: str
    baseline: str
    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmedGuard:
    """A guard on the host as it is now: `state` is armed or fired; `remaining_s` until it fires (0 once fired).

    One that has fired `is_acting` until it has asked for the baseline's start.
    """

    trial: str
    state: str
    remaining_s: float
    is_acting: bool = False


class ServiceManager(Protocol):
    """Units on one host in one scope. Every method may raise the host's errors; UnitError where the unit is at
    fault."""

    kind: str

    async def facts(self, unit: str, *, as_loaded: bool = False) -> UnitFacts:
        """Read a unit; raises UnitError when it does not exist, is masked, is no service, or has not exactly one
        command.

        Files that have changed since the manager read them are an error too, unless `as_loaded`: then what it would
        start now counts.
        """
        ...

    async def status(self, unit: str) -> UnitStatus:
        """Read what the unit is doing; never raises for a missing unit."""
        ...

    async def dependents(self, unit: str) -> tuple[Dependent, ...]:
        """List the units that stop when this one stops, also through one another, nearest first.

        Raises UnitError when there is no such unit.
        """
        ...

    def candidate_name(self, trial: str) -> str:
        """Return the name that the trial's candidate unit has."""
        ...

    def render(
        self,
        base: UnitFacts,
        *,
        trial: str,
        installation: str,
        argv: tuple[str, ...],
        env: Mapping[str, str | None],
        stop_timeout_s: float,
    ) -> Candidate:
        """Make the candidate: the baseline's effective settings with `argv` and `env` changes (None unsets).

        Never enabled, no automatic restart, own stop rules, the mark. Raises UnitError for what can't be expressed.
        """
        ...

    async def install(self, candidate: Candidate) -> None:
        """Write the unit and its side files atomically and make the manager read them; safe to repeat.

        Raises UnitError when a unit of that name without our mark is in the way, FileProblem when it can't be written
        (and then leaves nothing).
        """
        ...

    async def uninstall(self, unit: str) -> None:
        """Remove a unit that carries our mark, its side files and failed state; safe to repeat."""
        ...

    async def life(self) -> str:
        """Return what names this run of the manager: another one after a reboot of the host."""
        ...

    async def own_units(self) -> list[OwnUnit]:
        """List the units on the host that carry specd's mark."""
        ...

    async def examine(self, candidate: Candidate) -> list[Check]:
        """Prove the installed candidate: bytes, diagnostics, reload state, effective argv and environment,
        executable."""
        ...

    async def preflight(self, unit: str) -> list[Check]:
        """Check that this unit can be driven: rights for each command to come, directories writable, tools, scope.

        Changes nothing on the host.
        """
        ...

    async def start(self, unit: str) -> None:
        """Ask for a start and return at once; clears a start limit first."""
        ...

    async def stop(self, unit: str) -> None:
        """Ask for a stop and return at once."""
        ...

    async def kill(self, unit: str) -> None:
        """SIGKILL every process of the unit's cgroup."""
        ...

    async def processes(self, unit: str) -> list[Process]:
        """List the processes in the unit's cgroup, main process first; empty when it is gone."""
        ...

    async def port_owners(self, port: int) -> list[PortOwner]:
        """List who listens on a TCP port of the host, any address; empty when it is free."""
        ...

    def journal(
        self, unit: str, invocation: str, *, after: str = ""
    ) -> AbstractAsyncContextManager[AsyncIterator[JournalRecord]]:
        """Follow the records of one invocation from its start (or after a cursor), each once, in order, without end."""
        ...

    async def history(self, unit: str, invocation: str, *, last: int = 2000) -> list[JournalRecord]:
        """Return the records of one invocation that exist now, at most the `last` ones, oldest first."""
        ...

    async def claim(self, claim: Claim, *, take: bool = False) -> Claim | None:
        """Take or renew a claim on a unit; returns another installation's claim that stands in the way.

        With `take`, that one loses it. A claim is never taken over otherwise, however long it was not renewed.
        """
        ...

    async def release_claim(self, unit: str, installation: str) -> None:
        """Give our own claim back; safe to repeat."""
        ...

    async def claimed(self, unit: str) -> Claim | None:
        """Return who holds a unit, None for nobody."""
        ...

    async def arm_guard(self, plan: GuardPlan) -> None:
        """Arm or renew the dead-man's switch: it fires `lease_s` from now unless renewed or disarmed."""
        ...

    async def disarm_guard(self, trial: str, *, fired_too: bool = True) -> bool:
        """Take the guard away; safe to repeat. One that has fired stays without `fired_too`: then False is returned."""
        ...

    async def guard(self, trial: str) -> ArmedGuard | None:
        """Look at the trial's guard; None when there is none."""
        ...
