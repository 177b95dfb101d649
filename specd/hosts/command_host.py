"""What both hosts share: the judgement of an ended command, programs' places, files by way of commands."""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from specd.engines.masking import mask_words
from specd.errors import CommandFailed, HostError, HostUnreachable
from specd.hosts import files
from specd.hosts.host import Completed, Link, Route
from specd.hosts.privilege import refusal, with_sudo
from specd.settings import HostSettings

__all__ = ["OUTPUT_LIMIT", "CommandHost", "Ended"]

OUTPUT_LIMIT = 64 * 2**20
"""Bytes a command may print in all before it is ended: more is a mistake of the caller."""

_TOOL_SCRIPT = (
    'command -v "$1" && exit; for place in /usr/local/nvidia/bin /opt/nvidia/bin /usr/local/cuda/bin /usr/lib/wsl/lib '
    "/home/kubernetes/bin/nvidia/bin /opt/rocm/bin /opt/conda/bin /opt/bin /snap/bin ~/.local/bin ~/miniconda3/bin "
    '~/miniforge3/bin ~/anaconda3/bin; do if [ -x "$place/$1" ]; then echo "$place/$1"; exit; fi; done; exit 1'
)
_FIRST_SIGNAL, _LAST_SIGNAL = 129, 159

Ended = tuple[int, bytes, bytes]
"""Exit status, stdout, stderr."""


class CommandHost(ABC):
    """A host by way of the commands that can be run on it."""

    is_local = False

    def __init__(self, settings: HostSettings) -> None:
        self.name = settings.name
        self.settings = settings
        self.link = Link()
        self.on_link: Callable[[bool, str], None] | None = None
        self._last_told: bool | None = None
        self._tools: dict[str, str | None] = {}

    @abstractmethod
    async def _execute(
        self, argv: Sequence[str], *, stdin: bytes, timeout_s: float, env: Mapping[str, str] | None, limit: int
    ) -> Ended:
        """Run a command to its end; raises HostUnreachable without a status, CommandTimedOut after `timeout_s`."""

    @abstractmethod
    def _stream(
        self, given: Sequence[str], judge: Callable[[int, bytes], None]
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Run a command and iterate over its lines; `judge` gets its status and stderr when it ends by itself."""

    @abstractmethod
    def reach(self, address: str, port: int) -> AbstractAsyncContextManager[Route]:
        """Give a route to a TCP port as seen from the host."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of connections; the object can be used again afterwards."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        privileged: bool = False,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        limit: int = OUTPUT_LIMIT,
    ) -> Completed:
        """Run a command to its end (see Host.run); one that prints more than `limit` bytes is ended: HostError.

        A program that takes `stdin` sees an end of input too when the link is lost: give it what it can tell is cut.
        """
        given, variables = self._as_asked(argv, privileged, env)
        status, stdout, stderr = await self._execute(
            given, stdin=stdin, timeout_s=timeout_s, env=variables, limit=limit
        )
        self.heard()
        self.judge(argv, status, stdout, stderr, privileged=privileged, check=check)
        return Completed(tuple(argv), status, stdout, stderr)

    def judge(
        self, argv: Sequence[str], status: int, stdout: bytes, stderr: bytes, *, privileged: bool, check: bool
    ) -> None:
        """Raise what an ended command calls for."""
        if _FIRST_SIGNAL <= status <= _LAST_SIGNAL:
            what = f"{argv[0]} was ended by signal {status - 128} on {self.name}: what it did is unknown"
            raise HostUnreachable(what, host=self.name)
        words = stderr.decode(errors="replace")
        if privileged and self._uses_sudo and (refused := refusal(mask_words(argv), status, words, self.name)):
            raise refused
        if check and status != 0:
            raise CommandFailed(mask_words(argv), status, words, host=self.name, stdout=stdout.decode(errors="replace"))

    def follow(
        self, argv: Sequence[str], *, privileged: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Run a command and iterate over its stdout lines (see Host.follow)."""
        given, _ = self._as_asked(argv, privileged, None)

        def judge(status: int, stderr: bytes) -> None:
            self.judge(argv, status, b"", stderr, privileged=privileged, check=True)

        return self._stream(given, judge)

    async def read(self, path: str, *, privileged: bool = False, limit: int = 16 * 2**20) -> bytes:
        """Return a file's bytes (see Host.read)."""
        return await files.read(self, path, sudo=privileged and self._uses_sudo, limit=limit)

    async def write(self, path: str, content: bytes, *, mode: int = 0o644, privileged: bool = False) -> None:
        """Replace a file atomically (see Host.write)."""
        await files.write(self, path, content, mode=mode, sudo=privileged and self._uses_sudo)

    async def remove(self, path: str, *, privileged: bool = False) -> None:
        """Remove a file; one that is not there is fine."""
        await files.remove(self, path, privileged=privileged)

    async def tool(self, name: str) -> str | None:
        """Return a program's absolute path, from PATH or known places; None if the host has none. Cached."""
        if name not in self._tools:
            found = await self.run(["/bin/sh", "-c", _TOOL_SCRIPT, "tool", name], check=False)
            self._tools[name] = found.text.strip() if found.status == 0 else None
        return self._tools[name]

    def heard(self) -> None:
        """Note that the host has just answered."""
        self.link.last_contact = time.monotonic()

    def set_link(self, connected: bool, why: str) -> None:
        """Note the state of the connection, and tell the daemon when it comes or goes, or can't be had at first."""
        self.link.connected, self.link.why_down = connected, "" if connected else why
        if connected != self._last_told:
            self._last_told = connected
            if self.on_link:
                self.on_link(connected, why)

    @property
    def _uses_sudo(self) -> bool:
        return self.settings.become == "sudo"

    def _as_asked(
        self, argv: Sequence[str], privileged: bool, env: Mapping[str, str] | None
    ) -> tuple[list[str], Mapping[str, str] | None]:
        if not argv or not argv[0]:
            raise HostError("no command was given", host=self.name)
        if any("\0" in word for word in (*argv, *(env or {}), *(env or {}).values())):
            raise HostError(f"an argument or a variable for {argv[0]} holds a NUL byte", host=self.name)
        if privileged and self._uses_sudo:
            return with_sudo(argv, env), None
        return list(argv), env
