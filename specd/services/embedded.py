"""The service manager of a machine without systemd: a client of specd's own process supervisor."""

import asyncio
import errno
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from specd.checks import Check
from specd.errors import FileProblem, HostUnreachable, UnitError
from specd.services import embedded_claims
from specd.services.effect import effect
from specd.services.embedded_checks import examine_candidate, preflight_unit
from specd.services.embedded_link import Link, LostLink
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
from specd.supervisor.unit import BadUnit, UnitFile, base_environment, normal_name, parse_unit, render_unit
from specd.uncut import to_the_end_in_thread

__all__ = ["EmbeddedManager"]

REJOIN_S = 60.0
REJOIN_FIRST_S = 0.05
REJOIN_MOST_S = 1.0
REASONS = {"ENOENT": "missing", "EROFS": "read-only", "ENOSPC": "no-space", "EDQUOT": "no-space"}
DENIED = {"EACCES", "EPERM"}
_T = TypeVar("_T")


class EmbeddedManager:
    """Units in `directory`, run by a supervisor that this starts on demand and that outlives it.

    With `spawns` False a supervisor that does not run raises HostUnreachable. `lifeline` is the read end of a pipe: a
    supervisor started from here ends, with all its units, when the other end closes.
    """

    kind = "embedded"

    def __init__(self, directory: Path, *, spawns: bool = True, lifeline: int | None = None) -> None:
        self.directory = directory.absolute()
        self._units = self.directory / "units"
        self._link = Link(self.directory, spawns=spawns, lifeline=lifeline)

    async def facts(self, unit: str, *, as_loaded: bool = False) -> UnitFacts:
        """Read a unit; raises UnitError when it does not exist or its file is not as it must be.

        The supervisor reads the file at each start, so there is nothing that is loaded otherwise.
        """
        raw = await self._link.ask("facts", unit=unit)
        extra = {
            "Type": "simple",
            "KillMode": "control-group",
            "Restart": raw["restart"],
            "TimeoutStopUSec": str(int(raw["stop_timeout_s"] * 1_000_000)),
            "User": raw["user"],
            "Description": raw["description"],
        }
        return UnitFacts(
            name=raw["name"],
            argv=tuple(raw["argv"]),
            environment=raw["environment"],
            user=raw["user"],
            working_directory=raw["working_directory"],
            enabled="enabled" if raw["enabled"] else "disabled",
            files=raw["files"],
            text=raw["text"],
            fragment_path=raw["path"],
            extra=extra,
        )

    async def status(self, unit: str) -> UnitStatus:
        """Read what the unit is doing; never raises for a missing unit."""
        raw = await self._link.ask("status", unit=unit)
        return UnitStatus(
            name=unit,
            exists=raw["exists"],
            active=raw["active"],
            sub=raw["sub"],
            invocation=raw["invocation"],
            main_pid=raw["main_pid"],
            result=raw["result"],
            exec_code=raw["code"],
            exec_status=raw["status"],
            restarts=raw["restarts"],
            needs_reload=raw["needs_reload"],
            job=raw["job"],
        )

    async def dependents(self, unit: str) -> tuple[Dependent, ...]:
        """Return nothing: no unit of the supervisor depends on another."""
        return ()

    def candidate_name(self, trial: str) -> str:
        """Return the name that the trial's candidate unit has; raises UnitError when that can be no name."""
        return _checked_name(f"specd-{trial}")

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
        """Make the candidate's unit file; raises UnitError for what can't be expressed."""
        name = self.candidate_name(trial)
        unsettable = [key for key, value in env.items() if value is None and key in base_environment()]
        if unsettable:
            raise UnitError(f"every unit has {unsettable[0]}: it can be set, not unset", unit=base.name)
        environment = {**base.environment, **{key: value for key, value in env.items() if value is not None}}
        for key in (key for key, value in env.items() if value is None):
            environment.pop(key, None)
        path = str(self._units / f"{name}.json")
        content = render_unit(
            UnitFile(
                name=name,
                path=path,
                digest="",
                description=f"specd trial {trial} of {base.name}",
                argv=argv,
                environment=environment,
                working_directory=base.working_directory,
                stop_timeout_s=stop_timeout_s,
                trial=trial,
                installation=installation,
            )
        )
        try:
            parse_unit(name, content, path)
        except BadUnit as error:
            raise UnitError(f"the candidate can't be expressed: {error}", unit=base.name) from None
        return Candidate(name=name, trial=trial, path=path, content=content, argv=argv, environment=environment)

    async def install(self, candidate: Candidate) -> None:
        """Write the unit atomically and make the supervisor read it; safe to repeat.

        Raises UnitError when a unit without our mark is in the way, FileProblem when it can't be written.
        """
        if candidate.side_files:
            raise UnitError("a unit of the embedded manager has no files beside it", unit=candidate.name)
        await self._link.ask("ping")
        with effect("write", candidate.path):
            await to_the_end_in_thread(_write_marked, Path(candidate.path), candidate.content, candidate.name)
        await self._link.ask("reload")

    async def uninstall(self, unit: str) -> None:
        """Remove a unit that carries our mark, and its failed state; safe to repeat. Raises UnitError, FileProblem."""
        path = self._units / f"{_checked_name(unit)}.json"
        with effect("remove", str(path)):
            was_there = await to_the_end_in_thread(_remove_marked, path, unit)
        if was_there:
            await self._link.ask("clear-failure", unit=unit)
        await self._link.ask("reload")

    async def life(self) -> str:
        """Return what names this run of the supervisor; its end ends its units, too."""
        return str((await self._link.ask("ping"))["life"])

    async def own_units(self) -> list[OwnUnit]:
        """List the units that carry specd's mark."""
        raw = await self._link.ask("units")
        return [OwnUnit(u["name"], u["trial"], u["installation"], u["path"]) for u in raw["units"] if u["trial"]]

    async def examine(self, candidate: Candidate) -> list[Check]:
        """Prove the installed candidate by what the supervisor has read of it."""
        status, raw = await self.status(candidate.name), await self._link.ask("facts", unit=candidate.name)
        return await asyncio.to_thread(examine_candidate, candidate, status, raw)

    async def preflight(self, unit: str) -> list[Check]:
        """Check that this unit can be driven; changes nothing."""
        try:
            ping = await self._link.ask("ping")
        except HostUnreachable as error:
            return [Check.failed("manager.supervisor", str(error), "look at supervisor.log in its directory")]
        raw: Mapping[str, Any] | None = None
        why = ""
        try:
            raw = await self._link.ask("facts", unit=unit)
        except UnitError as error:
            why = error.what
        return await asyncio.to_thread(preflight_unit, self.directory, ping["pid"], unit, raw, why)

    async def start(self, unit: str) -> None:
        """Ask for a start and return at once."""
        await self._link.ask("start", unit=unit)

    async def stop(self, unit: str) -> None:
        """Ask for a stop and return at once."""
        await self._link.ask("stop", unit=unit)

    async def kill(self, unit: str) -> None:
        """SIGKILL every process of the unit."""
        await self._link.ask("kill", unit=unit)

    async def processes(self, unit: str) -> list[Process]:
        """List the unit's processes, main process first."""
        return [
            Process(
                pid=raw["pid"],
                argv=tuple(raw["argv"]),
                rss_bytes=raw["rss_bytes"],
                cpu_s=raw["cpu_s"],
                read_bytes=raw["read_bytes"],
            )
            for raw in await self._link.ask("processes", unit=unit)
        ]

    async def port_owners(self, port: int) -> list[PortOwner]:
        """List who listens on a TCP port."""
        return [PortOwner(raw["pid"], raw["unit"], raw["command"]) for raw in await self._link.ask("ports", port=port)]

    def journal(
        self, unit: str, invocation: str, *, after: str = ""
    ) -> AbstractAsyncContextManager[AsyncIterator[JournalRecord]]:
        """Follow the records of one invocation, each once, in order, without end.

        Rejoins a restarted supervisor where it was; HostUnreachable when none is back within REJOIN_S.
        """
        return self._journal(unit, invocation, after)

    @asynccontextmanager
    async def _journal(self, unit: str, invocation: str, after: str) -> AsyncIterator[AsyncIterator[JournalRecord]]:
        records = self._follow(unit, invocation, after)
        try:
            yield records
        finally:
            await records.aclose()

    async def _follow(self, unit: str, invocation: str, cursor: str) -> AsyncGenerator[JournalRecord, None]:
        pause_s = REJOIN_FIRST_S
        lost_at: float | None = None
        while True:
            try:
                async with aclosing(self._link.follow(unit, invocation, cursor)) as records:
                    async for raw in records:
                        record = _record(raw)
                        cursor = record.cursor
                        pause_s, lost_at = REJOIN_FIRST_S, None
                        yield record
            except LostLink:
                now = time.monotonic()
                lost_at = now if lost_at is None else lost_at
                if now - lost_at > REJOIN_S:
                    raise
            # Somebody else starts it again, if anybody: nothing tells us when.
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, REJOIN_MOST_S)

    async def history(self, unit: str, invocation: str, *, last: int = 2000) -> list[JournalRecord]:
        """Return the last records of one invocation, oldest first."""
        return [_record(raw) for raw in await self._link.history(unit, invocation, last)] if last > 0 else []

    async def claim(self, claim: Claim, *, take: bool = False) -> Claim | None:
        """Take or renew a claim on a unit; raises FileProblem."""
        with effect("claim", claim.unit):
            return await self._claims(embedded_claims.take, claim, over=take)

    async def release_claim(self, unit: str, installation: str) -> None:
        """Give our own claim back; raises FileProblem."""
        with effect("release-claim", unit):
            await self._claims(embedded_claims.release, unit, installation)

    async def claimed(self, unit: str) -> Claim | None:
        """Return who holds a unit; raises FileProblem."""
        return await self._claims(embedded_claims.look, unit)

    async def _claims(self, do: Callable[..., _T], *words: object, **more: object) -> _T:
        try:
            return await to_the_end_in_thread(partial(do, self.directory, *words, **more))
        except OSError as error:
            raise _problem(error, self.directory / "claims") from None

    async def arm_guard(self, plan: GuardPlan) -> None:
        """Arm or renew the guard; a fired one stays fired. Raises FileProblem when a new one can't be stored."""
        await self._link.ask(
            "guard-arm",
            unit=plan.baseline,
            trial=plan.trial,
            candidate=plan.candidate,
            baseline=plan.baseline,
            lease_s=plan.lease_s,
        )

    async def disarm_guard(self, trial: str, *, fired_too: bool = True) -> bool:
        """Take the guard away; safe to repeat. False when it has fired and stays, without `fired_too`."""
        return bool(await self._link.ask("guard-disarm", trial=trial, fired_too=fired_too))

    async def guard(self, trial: str) -> ArmedGuard | None:
        """Look at the trial's guard; None when there is none."""
        raw = await self._link.ask("guard", trial=trial)
        if raw is None:
            return None
        state = raw["state"]
        is_acting = state == "fired" and not raw["done"]
        return ArmedGuard(trial=trial, state=state, remaining_s=raw["remaining_s"], is_acting=is_acting)


def _record(raw: Mapping[str, Any]) -> JournalRecord:
    return JournalRecord(
        cursor=str(raw["seq"]),
        at=raw["at"],
        pid=raw["pid"],
        text=raw["text"],
        from_manager=raw["stream"] == "manager",
    )


def _checked_name(unit: str) -> str:
    try:
        return normal_name(unit)
    except BadUnit as error:
        raise UnitError(str(error), unit=unit) from None


def _problem(error: OSError, path: Path) -> FileProblem:
    name = errno.errorcode.get(error.errno or 0, "")
    reason = "denied" if name in DENIED else REASONS.get(name, "other")
    return FileProblem(f"{path}: {error.strerror}", path=str(path), reason=reason)


def _is_marked(path: Path, unit: str) -> bool:
    """True for a unit file with our mark; raises UnitError for one that can't be understood, FileNotFoundError."""
    try:
        return bool(parse_unit(_checked_name(unit), path.read_bytes(), str(path)).trial)
    except BadUnit as error:
        raise UnitError(f"{path} is in the way: {error}", unit=unit) from None


def _write_marked(path: Path, content: bytes, unit: str) -> None:
    temporary = path.with_name(f".{path.name}.new")
    try:
        with suppress(FileNotFoundError):
            if not _is_marked(path, unit):
                raise UnitError(f"{path} is in the way: it does not carry specd's mark", unit=unit)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise _problem(error, path) from None


def _remove_marked(path: Path, unit: str) -> bool:
    """Remove a marked unit's file; False when there is none."""
    try:
        if not _is_marked(path, unit):
            raise UnitError(f"{path} does not carry specd's mark and stays", unit=unit)
        path.unlink()
        _sync_directory(path.parent)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _problem(error, path) from None
    return True


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
