"""One scope of a host's systemd (the system's, or the user's own) and the commands that speak to it."""

import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from specd.errors import BadAnswer, FileProblem
from specd.hosts.host import Completed, Host
from specd.services.effect import effect
from specd.services.systemd.bus import Bus, Properties, asked

__all__ = ["Scope"]

_CHANGING = frozenset({"start", "stop", "restart", "kill", "reset-failed", "daemon-reload"})


def _target(arguments: Sequence[str]) -> str:
    """Return the unit that a systemctl command is about; "" for none."""
    return arguments[-1] if "--" in arguments else ""


class Scope:
    """Where units live and how systemctl is called. Changes to the system scope are privileged, reads are not."""

    def __init__(self, host: Host, kind: str, unit_dir: str = "") -> None:
        if kind not in {"system", "user"}:
            raise ValueError(f"scope is system or user, not {kind!r}")
        self.host = host
        self.kind = kind
        self.is_user = kind == "user"
        self.privileged = not self.is_user
        self._unit_dir = unit_dir.rstrip("/")
        self._bus = Bus(host, kind)
        self._runtime_dir = ""
        self._version = 0

    async def environment(self) -> Mapping[str, str] | None:
        """Return what the commands need in their environment; over SSH a user's runtime directory is often not set."""
        if not self.is_user:
            return None
        if not self._runtime_dir:
            uid = (await self.host.run(["id", "-u"])).text.strip()
            self._runtime_dir = f"/run/user/{int(uid)}"
        return {"XDG_RUNTIME_DIR": self._runtime_dir}

    async def runtime_unit_dir(self) -> str:
        """Return the directory of units that a reboot forgets."""
        environment = await self.environment()
        return f"{environment['XDG_RUNTIME_DIR']}/systemd/user" if environment else "/run/systemd/system"

    def candidate_dir(self) -> str:
        """Return where candidate units are written; needs `prepare` to have run in user scope."""
        if self._unit_dir:
            return self._unit_dir
        return f"{self._runtime_dir}/systemd/user" if self.is_user else "/run/systemd/system"

    async def own_dirs(self) -> list[str]:
        """Return every directory where specd's units may lie."""
        await self.environment()
        return list(dict.fromkeys([self.candidate_dir(), await self.runtime_unit_dir()]))

    @property
    def flags(self) -> list[str]:
        return ["--user"] if self.is_user else []

    async def systemctl(
        self, *arguments: str, privileged: bool | None = None, check: bool = True, timeout_s: float = 30.0
    ) -> Completed:
        """Run systemctl; privileged unless told otherwise, in the system scope."""
        with effect(arguments[0], _target(arguments)) if arguments[0] in _CHANGING else nullcontext():
            run = self.host.run(
                ["systemctl", *self.flags, *arguments],
                privileged=self.privileged if privileged is None else privileged and self.privileged,
                check=check,
                timeout_s=timeout_s,
                env=await self.environment(),
            )
            return await asked(self.host, run)

    async def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Write a file atomically; raises FileProblem."""
        with effect("write", path):
            await self.host.write(path, content, mode=mode, privileged=self.privileged)

    async def remove(self, path: str) -> None:
        """Remove a file; one that is not there is fine."""
        with effect("remove", path):
            await self.host.remove(path, privileged=self.privileged)

    async def make_runtime_unit_dir(self) -> None:
        """Make the directory of units that a reboot forgets; only a user's is not there from the start."""
        if self.is_user:
            with effect("mkdir"):
                await self.host.run(["mkdir", "-p", "--", await self.runtime_unit_dir()])

    async def show(self, unit: str, *names: str) -> dict[str, str]:
        """Read properties as text; those this systemd does not know are missing."""
        done = await self.systemctl("show", f"--property={','.join(names)}", "--", unit, privileged=False)
        pairs = (line.partition("=") for line in done.text.split("\n"))
        return {name: value for name, separator, value in pairs if separator}

    async def unit(self, name: str) -> Properties:
        """Read all properties of a unit over D-Bus."""
        return await self._bus.unit(name, env=await self.environment())

    async def manager(self, *names: str) -> Properties:
        """Read properties of systemd itself over D-Bus."""
        return await self._bus.manager(*names, env=await self.environment())

    async def version(self) -> int:
        """Return systemd's version, such as 252."""
        if not self._version:
            text = (await self.manager("Version")).text("Version")
            if (digits := re.match(r"v?(\d+)", text)) is None:
                raise BadAnswer(f"systemd says it has version {text!r}", host=self.host.name)
            self._version = int(digits[1])
        return self._version

    async def script(self, text: str, *arguments: str, check: bool = True, timeout_s: float = 30.0) -> Completed:
        """Run a constant shell script with values as its positional parameters, without privileges."""
        return await self.host.run(
            ["sh", "-c", text, "specd", *arguments], check=check, timeout_s=timeout_s, env=await self.environment()
        )

    async def read(self, path: str) -> bytes:
        """Read a file, with privileges where it is not readable without."""
        try:
            return await self.host.read(path)
        except FileProblem as error:
            if error.reason != "denied" or not self.privileged:
                raise
        return await self.host.read(path, privileged=True)

    async def is_there(self, path: str) -> bool:
        """Whether a file is there; raises FileProblem when that can't be told."""
        try:
            await self.read(path)
        except FileProblem as error:
            if error.reason == "missing":
                return False
            raise
        return True

    async def reload(self) -> None:
        """Make systemd read unit files again."""
        await self.systemctl("daemon-reload", timeout_s=90.0)
