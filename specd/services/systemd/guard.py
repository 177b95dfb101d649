"""The dead-man's switch: a timer and a job of plain systemd that bring the baseline back when nobody renews them.

Both live in the runtime directory: they survive specd's death and are gone after a reboot of the host, when the
enabled baseline comes up by itself.
"""

import asyncio
from dataclasses import dataclass

from specd.errors import BadAnswer, CommandFailed, FileProblem, HostError, UnitError
from specd.services.service import ArmedGuard, GuardPlan
from specd.services.systemd.bus import check_unit_name
from specd.services.systemd.scope import Scope
from specd.services.systemd.unitfile import marks_of

__all__ = ["Guard", "guard_names"]

# A candidate may take this long to stop by itself; then it is killed.
_STOP_LIMIT_S = 120
_KILLED_LIMIT_S = 30


def guard_names(trial: str) -> tuple[str, str]:
    """Return the names of a trial's guard: its job and its timer."""
    return f"specd-guard-{trial}.service", f"specd-guard-{trial}.timer"


@dataclass(frozen=True, slots=True)
class _Tools:
    systemctl: str
    timeout: str
    kill_whom: str


@dataclass(frozen=True, slots=True)
class _Job:
    has_begun: bool
    is_acting: bool


class Guard:
    """Arms, renews, reads and disarms guards of one scope."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def arm(self, plan: GuardPlan) -> None:
        """Write the guard unless it is there as wanted, and (re)start its timer."""
        job, timer = guard_names(plan.trial)
        for name in (job, plan.candidate, plan.baseline):
            check_unit_name(name)
        directory = await self._scope.runtime_unit_dir()
        files = {
            f"{directory}/{job}": self._job_text(plan, await self._tools()).encode(),
            f"{directory}/{timer}": _timer_text(plan).encode(),
        }
        there = await self._there(files)
        if there != list(files.values()):
            await self._write(files, is_new=there == [None] * len(files))
        try:
            await self._scope.systemctl("restart", "--", timer)
        except CommandFailed as error:
            # The files of a unit that another reload has missed are there, but systemd does not know them yet.
            if error.status != 5:
                raise
            await self._scope.reload()
            await self._scope.systemctl("restart", "--", timer)

    async def _tools(self) -> _Tools:
        systemctl, timeout = await asyncio.gather(self._scope.host.tool("systemctl"), self._scope.host.tool("timeout"))
        if systemctl is None or timeout is None:
            raise UnitError("the guard needs systemctl and timeout on the host", host=self._scope.host.name)
        return _Tools(systemctl, timeout, kill_option(await self._scope.version()))

    def _job_text(self, plan: GuardPlan, tools: _Tools) -> str:
        systemctl = " ".join([tools.systemctl, *self._scope.flags])
        bounded = f"{tools.timeout} --kill-after=5"
        return (
            f"# Written by specd: brings {plan.baseline} back when specd falls silent during trial {plan.trial}.\n"
            "[Unit]\n"
            f"Description=specd guard of trial {plan.trial}\n"
            "StartLimitIntervalSec=0\n"
            "\n[Service]\n"
            "Type=oneshot\n"
            # Stays active once it has run: that is how a fired guard is told from an armed one.
            "RemainAfterExit=yes\n"
            "TimeoutStartSec=infinity\n"
            f"ExecStart=-{bounded} {_STOP_LIMIT_S} {systemctl} stop -- {plan.candidate}\n"
            f"ExecStart=-{bounded} 20 {systemctl} kill {tools.kill_whom} --signal=KILL -- {plan.candidate}\n"
            # Until the last process is gone, and its GPU memory with it; at once where the first stop has done it.
            f"ExecStart=-{bounded} {_KILLED_LIMIT_S} {systemctl} stop -- {plan.candidate}\n"
            f"ExecStart=-{bounded} 20 {systemctl} reset-failed -- {plan.candidate}\n"
            f"ExecStart=-{bounded} 20 {systemctl} reset-failed -- {plan.baseline}\n"
            # Twice: a systemd that was busy with the first may have time for the second.
            f"ExecStart=-{bounded} 20 {systemctl} start --no-block -- {plan.baseline}\n"
            f"ExecStart={bounded} 60 {systemctl} start --no-block -- {plan.baseline}\n"
            f"\n[X-Specd]\nX-Specd-Guard={plan.trial}\nX-Specd-Baseline={plan.baseline}\n"
        )

    async def _there(self, files: dict[str, bytes]) -> list[bytes | None]:
        """Return what is on the host of these files; raises UnitError for one that is no guard's."""
        there = await asyncio.gather(*(self._content(path) for path in files))
        for path, content in zip(files, there, strict=True):
            if content is not None and not marks_of(content.decode(errors="replace")).get("Guard"):
                raise UnitError(f"{path} is there and is no guard of specd", host=self._scope.host.name)
        return there

    async def _content(self, path: str) -> bytes | None:
        try:
            return await self._scope.read(path)
        except FileProblem as error:
            if error.reason == "missing":
                return None
            raise

    async def _write(self, files: dict[str, bytes], *, is_new: bool) -> None:
        await self._scope.make_runtime_unit_dir()
        try:
            for path, content in files.items():
                await self._scope.write(path, content)
            await self._scope.reload()
        except HostError:
            # A guard that is armed stays as it is, whatever keeps it from being renewed.
            if is_new:
                await self._take_back(list(files))
            raise

    async def _take_back(self, paths: list[str]) -> None:
        """Remove what a failed arming wrote; the first error is the one that counts."""
        try:
            for path in paths:
                await self._scope.remove(path)
        except HostError:
            return

    async def disarm(self, trial: str, *, fired_too: bool) -> bool:
        """Take a guard away; one that is not there is fine. One that has fired stays without `fired_too`: False then.

        Its timer is stopped before it is looked at, so that it can't fire in between.
        """
        job, timer = guard_names(trial)
        check_unit_name(job)
        directory = await self._scope.runtime_unit_dir()
        paths = [f"{directory}/{name}" for name in (timer, job)]
        shown, contents = await asyncio.gather(
            self._scope.show(timer, "LoadState"), asyncio.gather(*(self._content(path) for path in paths))
        )
        there = [path for path, content in zip(paths, contents, strict=True) if content is not None]
        if not there and shown.get("LoadState") == "not-found":
            return True
        # The timer first, or it could fire between the two.
        await self._scope.systemctl("stop", "--", timer, check=False)
        if not fired_too and (await self._job(job)).has_begun:
            return False
        await self._scope.systemctl("stop", "--", job, check=False)
        await asyncio.gather(*(self._scope.remove(path) for path in there))
        await self._scope.reload()
        await self._scope.systemctl("reset-failed", "--", job, check=False)
        return True

    async def look(self, trial: str) -> ArmedGuard | None:
        """Read a guard's state; None when there is none."""
        job, timer = guard_names(trial)
        check_unit_name(job)
        ran, waiting = await asyncio.gather(self._job(job), self._scope.unit(timer))
        if ran.has_begun:
            return ArmedGuard(trial=trial, state="fired", remaining_s=0.0, is_acting=ran.is_acting)
        if waiting.text("LoadState") != "loaded" or waiting.text("ActiveState") != "active":
            return None
        due = waiting.number("NextElapseUSecMonotonic")
        # Seconds since boot; apart from time asleep, which such machines do not spend, the clock the timer runs by.
        done = await self._scope.host.run(["cat", "/proc/uptime"])
        try:
            now = float(done.text.split()[0])
        except (IndexError, ValueError) as error:
            raise BadAnswer(f"/proc/uptime reads {done.text!r}", host=self._scope.host.name) from error
        return ArmedGuard(trial=trial, state="armed", remaining_s=max(0.0, due / 1e6 - now))

    async def _job(self, job: str) -> "_Job":
        shown = await self._scope.show(job, "LoadState", "ActiveState", "InactiveExitTimestampMonotonic", "Job")
        is_queued = shown.get("Job", "0") not in {"", "0"}
        ran = shown.get("InactiveExitTimestampMonotonic", "0") != "0"
        return _Job(
            has_begun=shown.get("LoadState") == "loaded" and (ran or is_queued),
            is_acting=is_queued or shown.get("ActiveState") == "activating",
        )


def kill_option(version: int) -> str:
    """Return systemctl's option for killing all processes of a unit; it was renamed in 252."""
    return "--kill-whom=all" if version >= 252 else "--kill-who=all"


def _timer_text(plan: GuardPlan) -> str:
    job, _ = guard_names(plan.trial)
    return (
        f"# Written by specd: the lease of the guard of trial {plan.trial}.\n"
        "[Unit]\n"
        f"Description=specd guard's lease, trial {plan.trial}\n"
        # A timer that is restarted often runs into a start limit too.
        "StartLimitIntervalSec=0\n"
        # Does nothing but name them: systemd keeps a named unit loaded, so that how the candidate ended stays readable.
        f"PropagatesReloadTo={plan.candidate} {plan.baseline}\n"
        "\n[Timer]\n"
        f"OnActiveSec={plan.lease_s:.3f}s\n"
        "AccuracySec=100ms\n"
        "RemainAfterElapse=yes\n"
        f"Unit={job}\n"
        f"\n[X-Specd]\nX-Specd-Guard={plan.trial}\n"
    )
