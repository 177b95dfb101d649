"""Whether sudo lets the connecting user do each thing a trial does.

sudo is asked about every command. Those that do nothing for a unit or file that is not there are also run for such a
name: only that shows whether sudo wants a password or a terminal for them.
"""

import asyncio
import shlex
from collections.abc import Sequence

from specd.checks import Check
from specd.errors import PrivilegeRefused
from specd.services.systemd.guard import guard_names, kill_option
from specd.services.systemd.scope import Scope

__all__ = ["Rights", "systemctl_forms", "write_forms"]

_FIX = "add the lines of docs/sudo.md to a file in /etc/sudoers.d/ of the host"


def systemctl_forms(unit: str, candidate: str, trial: str, version: int) -> tuple[list[list[str]], list[list[str]]]:
    """Return the privileged systemctl commands of a trial: those for `unit`, and those for specd's own units."""
    job, timer = guard_names(trial)
    kill = ["systemctl", "kill", kill_option(version), "--signal=KILL", "--"]

    def of_service(name: str) -> list[list[str]]:
        return [
            *(["systemctl", verb, "--no-block", "--", name] for verb in ("start", "stop")),
            ["systemctl", "reset-failed", "--", name],
            [*kill, name],
        ]

    own = [
        *of_service(candidate),
        ["systemctl", "restart", "--", timer],
        *(["systemctl", "stop", "--", name] for name in (timer, job)),
        ["systemctl", "reset-failed", "--", job],
    ]
    return [["systemctl", "daemon-reload"], *of_service(unit)], own


def write_forms(path: str) -> tuple[list[list[str]], list[list[str]]]:
    """Return the privileged commands that replace and remove a file: first the one that makes it, then the others."""
    temporary = f"{path}.tmp-00000000"
    directory = path.rpartition("/")[0]
    return [["tee", temporary]], [
        ["chmod", "0644", temporary],
        ["sync", temporary],
        ["cat", temporary],
        ["mv", "-fT", temporary, path],
        ["sync", directory],
        ["rm", "-f", temporary],
        ["rm", "-f", path],
        ["cat", path],
    ]


class Rights:
    """Asks sudo for the rights of one scope; `candidate` and `trial` name units that must not exist."""

    def __init__(self, scope: Scope, candidate: str, trial: str) -> None:
        self._scope = scope
        self._candidate = candidate
        self._trial = trial

    async def systemctl(self, unit: str, dependents: Sequence[str] = ()) -> Check:
        """Check every systemctl command of a trial of `unit`, whose stop takes the dependents along."""
        name = "rights.systemctl"
        if (known := await self._needless(name)) is not None:
            return known
        full = unit if unit.endswith(".service") else f"{unit}.service"
        asked, tried = systemctl_forms(full, self._candidate, self._trial, await self._scope.version())
        asked += [["systemctl", "start", "--no-block", "--", each] for each in dependents]
        return await self._judge(name, asked, tried)

    async def write(self) -> Check:
        """Check every command that writes, reads back and removes unit files."""
        name = "rights.write"
        if self._scope.is_user or await self._is_root():
            return await self._directory(name)
        if (known := await self._needless(name)) is not None:
            return known
        job, timer = guard_names(self._trial)
        runtime = await self._scope.runtime_unit_dir()
        candidate = f"{self._scope.candidate_dir()}/{self._candidate}"
        paths = [candidate, candidate.removesuffix(".service") + ".env", f"{runtime}/{job}", f"{runtime}/{timer}"]
        forms = [write_forms(path) for path in paths]
        asked = [form for first, _ in forms for form in first]
        tried = [form for _, others in forms for form in others]
        return await self._judge(name, asked, list(dict.fromkeys(map(tuple, tried))))

    async def _is_root(self) -> bool:
        return (await self._scope.host.run(["id", "-u"])).text.strip() == "0"

    async def _directory(self, name: str) -> Check:
        """Check a directory that needs no sudo; the one a user's units go to is made when it is needed."""
        directory = self._scope.candidate_dir()
        place = directory
        if directory == await self._scope.runtime_unit_dir() and not await self._is_there(directory):
            place = directory.rpartition("/systemd/")[0]
        if (await self._scope.host.run(["test", "-w", place], check=False)).status != 0:
            what = "not writable" if await self._is_there(place) else "missing"
            return Check.failed(name, f"{place} is {what}", "mend that, or name another directory in `unit_dir`")
        return Check.passed(name, f"{directory} is writable")

    async def _is_there(self, path: str) -> bool:
        return (await self._scope.host.run(["test", "-e", path], check=False)).status == 0

    async def _needless(self, name: str) -> Check | None:
        """Return the check's result where no sudo is needed, or where there is none to ask."""
        if self._scope.is_user:
            return Check.passed(name, "units of the user itself")
        if await self._is_root():
            return Check.passed(name, "root")
        if getattr(getattr(self._scope.host, "settings", None), "become", "sudo") == "none":
            return Check.failed(
                name, "the connecting user is not root and `become` of this host is none", 'set become = "sudo"'
            )
        if await self._scope.host.tool("sudo") is None:
            return Check.failed(name, "the connecting user is not root and the host has no sudo")
        return None

    async def _judge(self, name: str, asked: Sequence[Sequence[str]], tried: Sequence[Sequence[str]]) -> Check:
        answers = await asyncio.gather(*(self._ask(form) for form in asked), *(self._try(form) for form in tried))
        forms = [*asked, *tried]
        refused = [(form, answer) for form, answer in zip(forms, answers, strict=True) if answer]
        if not refused:
            return Check.passed(name, f"sudo allows {len(forms)} commands without a password")
        form, answer = refused[0]
        words = f"sudo does not allow {len(refused)} of {len(forms)} commands; the first: {shlex.join(form)} ({answer})"
        return Check.failed(name, words, _FIX)

    async def _ask(self, form: Sequence[str]) -> str:
        """Return why sudo would not run a command; "" when it would."""
        done = await self._scope.host.run(["sudo", "-n", "-l", "--", *form], check=False)
        if done.status == 0:
            return ""
        lines = done.error_text.strip().splitlines()
        return lines[-1] if lines else "not permitted"

    async def _try(self, form: Sequence[str]) -> str:
        try:
            # Status and words do not matter: there is no such unit or file.
            await self._scope.host.run(form, privileged=True, check=False)
        except PrivilegeRefused as error:
            return f"{error.reason}: {error.what}"
        return await self._ask(form)
