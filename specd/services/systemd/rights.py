"""Whether sudo lets the connecting user do each thing a trial does; asked of sudo, never tried."""

import asyncio
import shlex
from collections.abc import Sequence

from specd.checks import Check
from specd.services.systemd.guard import guard_names, kill_option
from specd.services.systemd.scope import Scope

__all__ = ["Rights", "systemctl_forms"]


def systemctl_forms(unit: str, candidate: str, guard: tuple[str, str], version: int) -> list[list[str]]:
    """Return every privileged systemctl command of a trial, word for word."""
    job, timer = guard
    kill = ["systemctl", "kill", kill_option(version), "--signal=KILL", "--"]
    return [
        ["systemctl", "daemon-reload"],
        *(["systemctl", verb, "--no-block", "--", name] for name in (unit, candidate) for verb in ("start", "stop")),
        *(["systemctl", "reset-failed", "--", name] for name in (unit, candidate, job)),
        *([*kill, name] for name in (unit, candidate)),
        ["systemctl", "restart", "--", timer],
        *(["systemctl", "stop", "--", name] for name in (timer, job)),
    ]


class Rights:
    """Asks sudo for the rights of one scope."""

    def __init__(self, scope: Scope, candidate: str, trial: str) -> None:
        self._scope = scope
        self._candidate = candidate
        self._trial = trial

    async def systemctl(self, unit: str) -> Check:
        """Check every systemctl command of a trial of `unit`."""
        name = "rights.systemctl"
        if (known := await self._needless(name)) is not None:
            return known
        forms = systemctl_forms(unit, self._candidate, guard_names(self._trial), await self._scope.version())
        return await self._ask(name, forms)

    async def write(self) -> Check:
        """Check every command that writes, reads back and removes unit files."""
        name = "rights.write"
        if (known := await self._needless(name)) is not None:
            return known
        return Check.unchecked(name, "not asked")

    async def _needless(self, name: str) -> Check | None:
        """Return the check's result where no sudo is needed, or where there is none to ask."""
        if self._scope.is_user:
            return Check.passed(name, "units of the user itself")
        if (await self._scope.host.run(["id", "-u"])).text.strip() == "0":
            return Check.passed(name, "root")
        if await self._scope.host.tool("sudo") is None:
            return Check.failed(name, "the connecting user is not root and the host has no sudo")
        return None

    async def _ask(self, name: str, forms: Sequence[Sequence[str]]) -> Check:
        answers = await asyncio.gather(*(self._answer(form) for form in forms))
        refused = [(form, answer) for form, answer in zip(forms, answers, strict=True) if answer]
        if not refused:
            return Check.passed(name, f"sudo allows {len(forms)} commands without a password")
        form, answer = refused[0]
        words = f"sudo does not allow {len(refused)} of {len(forms)} commands, first: {shlex.join(form)} ({answer})"
        return Check.failed(name, words, "add the lines of docs/sudoers.md to /etc/sudoers.d/")

    async def _answer(self, form: Sequence[str]) -> str:
        """Return why sudo would not run a command at once; "" when it would."""
        done = await self._scope.host.run(["sudo", "-n", "-ll", "--", *form], check=False)
        if done.status != 0:
            lines = done.error_text.strip().splitlines()
            return lines[-1] if lines else "not permitted"
        # Newer versions show the rule that matched; one without this option would ask for a password.
        if "Options:" in done.text and "!authenticate" not in done.text:
            return "a password is required"
        return ""
