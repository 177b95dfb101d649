"""Seam 1, the host: run a command, read and write files atomically, follow a stream, reach a port.

Arguments are lists; only an implementation that must speak to a remote shell quotes them, in one place.
A command that ended with a status is an answer. Everything else (no status, lost link) raises HostUnreachable:
unknown is neither success nor failure, and the caller looks again.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Completed", "Host", "Link", "Route"]


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ended: its exit status (0..255) and what it printed."""

    argv: tuple[str, ...]
    status: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """stdout as text; undecodable bytes become replacement characters."""
        return self.stdout.decode(errors="replace")

    @property
    def error_text(self) -> str:
        """stderr as text."""
        return self.stderr.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Route:
    """A way from this machine to a TCP port as the host sees it.

    `base_url` is what to ask for (scheme, host, port); with `unix_socket` the connection itself goes through that
    path. `kind` is direct or tunnel.
    """

    base_url: str
    unix_socket: str | None = None
    kind: str = "direct"


@dataclass(slots=True)
class Link:
    """The state of the connection to a host; `last_contact` is time.monotonic() of the last answer, None before any."""

    connected: bool = False
    last_contact: float | None = None
    why_down: str = ""


class Host(Protocol):
    """A machine that runs services."""

    name: str
    is_local: bool
    link: Link
    on_link: Callable[[bool, str], None] | None
    """Called with (connected, why not) when the connection comes or goes; for the daemon to set."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        privileged: bool = False,
        check: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run a command to its end, locale C.UTF-8, outside of any login banner.

        `privileged` puts the configured means (none for root, `sudo -n`) in front. With `check`, a status other than 0
        raises CommandFailed. Raises HostUnreachable (also for a command that a signal ended), CommandTimedOut,
        PrivilegeRefused, HostKeyRejected, LoginRefused. A `stdin` cut by a lost link ends like a whole one: give it to
        what can tell. `env` is not shown by `ps`, unless sudo takes it.
        """
        ...

    def follow(
        self, argv: Sequence[str], *, privileged: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Run a command and iterate over its stdout lines (without newline, any length) until it ends.

        Leaving the context ends the remote command too. A lost link raises HostUnreachable in the iterator, an end with
        a status other than 0 CommandFailed (or PrivilegeRefused), at the latest when the lines have run out.
        """
        ...

    async def read(self, path: str, *, privileged: bool = False, limit: int = 16 * 2**20) -> bytes:
        """Return a file's bytes; raises FileProblem (missing, denied), or when longer than `limit` bytes."""
        ...

    async def write(self, path: str, content: bytes, *, mode: int = 0o644, privileged: bool = False) -> None:
        """Replace a file atomically: temporary name beside it, fsync, read back, rename, fsync of the directory.

        At no moment is the file partial. Raises FileProblem (missing directory, read-only, no-space, denied), and then
        leaves nothing behind. Parent directories are not made.
        """
        ...

    async def remove(self, path: str, *, privileged: bool = False) -> None:
        """Remove a file; one that is not there is fine."""
        ...

    async def tool(self, name: str) -> str | None:
        """Return a program's absolute path, from PATH or known places; None if the host has none. Cached."""
        ...

    def reach(self, address: str, port: int) -> AbstractAsyncContextManager[Route]:
        """Give a route to a TCP port as seen from the host; a tunnel over SSH, nothing at all on this machine."""
        ...

    async def close(self) -> None:
        """Let go of connections; the object can be used again afterwards."""
        ...
