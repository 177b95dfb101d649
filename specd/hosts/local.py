"""This machine as a host: commands as processes in a session of their own, files through the system's own calls."""

import asyncio
import contextlib
import errno
import os
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from specd.errors import CommandTimedOut, FileProblem, HostError
from specd.hosts.command_host import OUTPUT_LIMIT, CommandHost, Ended
from specd.hosts.files import LEFTOVER_AGE_MIN, os_problem, refuse_odd_path, temporary_name
from specd.hosts.host import Route
from specd.hosts.process import CannotStart, LocalProcess, process
from specd.hosts.wire import Lines
from specd.settings import HostSettings
from specd.uncut import to_the_end_in_thread

__all__ = ["LocalHost", "direct_route"]


def direct_route(address: str, port: int) -> Route:
    """Return the route to a port that needs no help."""
    return Route(f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}")


class LocalHost(CommandHost):
    """This machine."""

    is_local = True

    def __init__(self, settings: HostSettings) -> None:
        super().__init__(settings)
        self.link.connected = True

    @asynccontextmanager
    async def reach(self, address: str, port: int) -> AsyncIterator[Route]:
        """Give the port's own address: nothing is in between."""
        yield direct_route(address, port)

    async def read(self, path: str, *, privileged: bool = False, limit: int = 16 * 2**20) -> bytes:
        """Return a file's bytes (see Host.read)."""
        if privileged and self._uses_sudo:
            return await super().read(path, privileged=True, limit=limit)
        return await asyncio.to_thread(_read, path, limit, self.name)

    async def write(self, path: str, content: bytes, *, mode: int = 0o644, privileged: bool = False) -> None:
        """Replace a file atomically (see Host.write)."""
        if privileged and self._uses_sudo:
            await super().write(path, content, mode=mode, privileged=True)
            return
        refuse_odd_path(path, self.name)
        await to_the_end_in_thread(_write, path, content, mode, self.name)

    async def close(self) -> None:
        """Nothing is kept open."""

    async def _execute(
        self, argv: Sequence[str], *, stdin: bytes, timeout_s: float, env: Mapping[str, str] | None, limit: int
    ) -> Ended:
        try:
            async with process(argv, stdin=stdin, env=env, limit=limit) as running:
                async with asyncio.timeout(timeout_s):
                    status = await running.status()
        except CannotStart as why:
            return why.status, b"", f"{why}\n".encode()
        except TimeoutError:
            what = f"{argv[0]} did not end within {timeout_s:g} s on {self.name}"
            raise CommandTimedOut(what, host=self.name) from None
        if running.stdout.is_over_limit or running.stderr.is_over_limit:
            raise HostError(f"{argv[0]} printed more than {limit} bytes", host=self.name)
        return status, running.stdout.take(), running.stderr.take()

    @asynccontextmanager
    async def _stream(
        self, given: Sequence[str], judge: Callable[[int, bytes], None]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        try:
            async with (
                process(given, stdin=b"", env=None, limit=OUTPUT_LIMIT) as running,
                contextlib.aclosing(self._lines(running, judge)) as lines,
            ):
                yield lines
        except CannotStart as why:
            judge(why.status, f"{why}\n".encode())

    async def _lines(self, running: LocalProcess, judge: Callable[[int, bytes], None]) -> AsyncGenerator[bytes, None]:
        lines = Lines()
        async with contextlib.aclosing(running.stdout.chunks()) as chunks:
            async for received in chunks:
                self.heard()
                for line in lines.feed(received):
                    yield line
        for line in lines.end():
            yield line
        status = await running.status()
        judge(status, running.stderr.take())


def _read(path: str, limit: int, host: str) -> bytes:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            content = file.read(limit + 1)
    except OSError as problem:
        raise os_problem(path, problem, host) from problem
    if len(content) > limit:
        raise FileProblem(f"{path} is longer than {limit} bytes", path=path, reason="other", host=host)
    return content or b""


def _write(path: str, content: bytes, mode: int, host: str) -> None:
    temporary = temporary_name(path)
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as file:
                _keep_owner(fd, path)
                os.fchmod(fd, mode)
                file.write(content)
                file.flush()
                os.fsync(fd)
            if Path(temporary).read_bytes() != content:
                raise OSError(errno.EIO, "content arrived damaged")
            os.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_directory(os.path.dirname(path))
    except OSError as problem:
        raise os_problem(path, problem, host) from problem
    _clear_leftovers(path)


def _keep_owner(fd: int, path: str) -> None:
    with contextlib.suppress(FileNotFoundError, PermissionError):
        was = os.stat(path)
        os.fchown(fd, was.st_uid, was.st_gid)


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _clear_leftovers(path: str) -> None:
    directory, name = os.path.split(path)
    ours = re.compile(re.escape(name) + r"\.tmp-[0-9a-f]{8}")
    oldest = time.time() - LEFTOVER_AGE_MIN * 60
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if ours.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_mtime < oldest:
                os.unlink(entry.path)
