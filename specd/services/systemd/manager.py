"""Units under systemd, in the system's scope or a user's own: the seam's implementation, a thin front of its parts."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager

from specd.checks import Check
from specd.errors import CommandFailed, UnitError
from specd.hosts.host import Host
from specd.services.service import (
    ArmedGuard,
    Candidate,
    Claim,
    Dependent,
    GuardPlan,
    JournalRecord,
    OwnUnit,
    PortOwner,
    Process,
    UnitFacts,
    UnitStatus,
)
from specd.services.systemd import examine, facts, install, preflight, render, status
from specd.services.systemd.bus import check_unit_name
from specd.services.systemd.claim import Claims
from specd.services.systemd.dependents import read_dependents
from specd.services.systemd.guard import Guard, kill_option
from specd.services.systemd.journal import Journal
from specd.services.systemd.processes import PortReader, read_processes
from specd.services.systemd.rights import Rights
from specd.services.systemd.scope import Scope

__all__ = ["SystemdManager"]

_TRIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,150}")


class SystemdManager:
    """The systemd of one scope (system or user) on one host.

    Candidates live in the runtime directory, so that a reboot forgets them, unless `unit_dir` names another. `tag` sets
    the names of one installation's units apart.
    """

    kind = "systemd"

    def __init__(self, host: Host, *, scope: str, unit_dir: str = "", tag: str = "") -> None:
        self._scope = Scope(host, scope, unit_dir)
        self._tag = tag
        self._journal = Journal(self._scope)
        self._ports = PortReader(self._scope)
        self._claims = Claims(self._scope)
        self._guard = Guard(self._scope)

    async def facts(self, unit: str, *, as_loaded: bool = False) -> UnitFacts:
        """Read a unit as systemd does; raises UnitError for one that can't be the subject of a trial."""
        return await facts.read_facts(self._scope, unit, as_loaded=as_loaded)

    async def status(self, unit: str) -> UnitStatus:
        """Read what the unit is doing."""
        return await status.read_status(self._scope, check_unit_name(unit))

    async def dependents(self, unit: str) -> tuple[Dependent, ...]:
        """List the units that stop when this one stops."""
        return await read_dependents(self._scope, check_unit_name(unit))

    def candidate_name(self, trial: str) -> str:
        """Return the candidate unit's name; raises UnitError for an id that can't be part of one."""
        if not _TRIAL.fullmatch(trial):
            raise UnitError(f"{trial!r} can't be part of a unit's name")
        return f"specd-{self._tag}-{trial}.service" if self._tag else f"specd-{trial}.service"

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
        """Make the candidate from the baseline's facts; the same input gives the same bytes."""
        return render.render_candidate(
            base,
            name=self.candidate_name(trial),
            trial=trial,
            installation=installation,
            argv=argv,
            env=env,
            stop_timeout_s=stop_timeout_s,
        )

    async def install(self, candidate: Candidate) -> None:
        """Write the candidate and make systemd read it; leaves nothing after a failure."""
        await install.install(self._scope, candidate)

    async def uninstall(self, unit: str) -> None:
        """Remove a unit that carries the mark."""
        await install.uninstall(self._scope, unit)

    async def life(self) -> str:
        """Return when systemd began to run, which a re-execution does not change; another word while it ends."""
        read = await self._scope.manager("UserspaceTimestamp", "SystemState")
        return "ending" if read.text("SystemState") == "stopping" else str(read.number("UserspaceTimestamp"))

    async def own_units(self) -> list[OwnUnit]:
        """List units with the mark in the directories where specd writes."""
        return await install.own_units(self._scope)

    async def examine(self, candidate: Candidate) -> list[Check]:
        """Prove the installed candidate."""
        return await examine.examine(self._scope, candidate)

    async def preflight(self, unit: str) -> list[Check]:
        """Check rights, tools and the unit; changes nothing."""
        trial = "preflight-probe"
        rights = Rights(self._scope, self.candidate_name(trial), trial)
        return await preflight.preflight(self._scope, self._journal, rights, unit)

    async def start(self, unit: str) -> None:
        """Clear a start limit and failed state, then ask for a start."""
        unit = check_unit_name(unit)
        # A unit that systemd has not loaded has no failed state; the start itself says when there is no such unit.
        await self._scope.systemctl("reset-failed", "--", unit, check=False)
        await self._ask("start", unit)

    async def stop(self, unit: str) -> None:
        """Ask for a stop; a unit that is not there has stopped already."""
        await self._ask("stop", check_unit_name(unit), fine_when_gone=True)

    async def _ask(self, verb: str, unit: str, *, fine_when_gone: bool = False) -> None:
        try:
            await self._scope.systemctl(verb, "--no-block", "--", unit)
        except CommandFailed as error:
            # systemctl's status for "not loaded" and "not found".
            if error.status != 5:
                raise
            if not fine_when_gone:
                raise UnitError(f"systemd can't {verb} {unit}: {error.stderr.strip()}", unit=unit) from error

    async def kill(self, unit: str) -> None:
        """SIGKILL every process of the unit's cgroup; one without processes is fine."""
        unit = check_unit_name(unit)
        option = kill_option(await self._scope.version())
        try:
            await self._scope.systemctl("kill", option, "--signal=KILL", "--", unit)
        except CommandFailed:
            if await self.processes(unit):
                raise

    async def processes(self, unit: str) -> list[Process]:
        """List the processes in the unit's cgroup, main process first."""
        return await read_processes(self._scope, check_unit_name(unit))

    async def port_owners(self, port: int) -> list[PortOwner]:
        """List who listens on a TCP port."""
        return await self._ports.owners(port)

    def journal(
        self, unit: str, invocation: str, *, after: str = ""
    ) -> AbstractAsyncContextManager[AsyncIterator[JournalRecord]]:
        """Follow the records of one invocation, those of its processes and what systemd says about it."""
        return self._journal.follow(check_unit_name(unit), invocation, after)

    async def history(self, unit: str, invocation: str, *, last: int = 2000) -> list[JournalRecord]:
        """Return the newest `last` records of one invocation, oldest first."""
        return await self._journal.history(check_unit_name(unit), invocation, last)

    async def claim(self, claim: Claim, *, take: bool = False) -> Claim | None:
        """Take or renew a claim on a unit."""
        return await self._claims.take(claim, take=take)

    async def release_claim(self, unit: str, installation: str) -> None:
        """Give our own claim back."""
        await self._claims.release(unit, installation)

    async def claimed(self, unit: str) -> Claim | None:
        """Return who holds a unit."""
        return await self._claims.look(unit)

    async def arm_guard(self, plan: GuardPlan) -> None:
        """Arm or renew the dead-man's switch."""
        await self._guard.arm(plan)

    async def disarm_guard(self, trial: str, *, fired_too: bool = True) -> bool:
        """Take the guard away; False when it has fired and stays, without `fired_too`."""
        return await self._guard.disarm(trial, fired_too=fired_too)

    async def guard(self, trial: str) -> ArmedGuard | None:
        """Look at the trial's guard."""
        return await self._guard.look(trial)
