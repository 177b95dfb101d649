"""A host over SSH: one kept connection, made anew when it is needed and gone."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncssh

from specd.errors import CommandTimedOut, HostError, HostKeyRejected, HostUnreachable, LoginRefused
from specd.hosts.command_host import OUTPUT_LIMIT, CommandHost, Ended
from specd.hosts.host import Route
from specd.hosts.ssh.connection import Connection, connect
from specd.hosts.ssh.session import Command, close_command, open_command
from specd.hosts.ssh.tunnel import unix_socket
from specd.hosts.wire import end_command
from specd.settings import HostSettings

__all__ = ["SshHost"]

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
# A refused login or key is not asked about again by every poll: servers lock out who knocks too often.
_REFUSAL_HOLDS_S = 10.0
_END_S = 5.0


class SshHost(CommandHost):
    """A machine reached over SSH."""

    def __init__(self, settings: HostSettings, runtime_dir: Path) -> None:
        super().__init__(settings)
        self._runtime_dir = runtime_dir
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._failures = 0
        self._next_try = 0.0
        self._refusal: tuple[float, HostError] | None = None
        self._errands: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def reach(self, address: str, port: int) -> AsyncIterator[Route]:
        """Give a unix socket that leads to a TCP port as seen from the host, whatever connection there is then."""

        async def current() -> asyncssh.SSHClientConnection:
            return (await self._connected()).ssh

        place = f"[{address}]" if ":" in address else address
        async with unix_socket(self._runtime_dir, current, address, port) as path:
            yield Route(f"http://{place}:{port}", unix_socket=str(path), kind="tunnel")

    async def close(self) -> None:
        """Let go of the connection; the object can be used again afterwards."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
        for errand in self._errands:
            errand.cancel()
        await asyncio.gather(*self._errands, return_exceptions=True)
        self._failures, self._next_try, self._refusal = 0, 0.0, None
        self.set_link(False, "closed")

    async def _execute(
        self, argv: Sequence[str], *, stdin: bytes, timeout_s: float, env: Mapping[str, str] | None, limit: int
    ) -> Ended:
        stage = "connecting"
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connected()
                stage = "waiting for a free session"
                command = await open_command(connection, self.name, argv, stdin=stdin, env=env, limit=limit)
                stage = ""
                try:
                    await command.done.wait()
                except asyncio.CancelledError:
                    self._end(connection, command)
                    raise
                self._errand(close_command(connection, command))
        except TimeoutError:
            raise self._timed_out(argv, timeout_s, stage) from None
        if command.is_over_limit:
            raise HostError(f"{argv[0]} printed more than {limit} bytes", host=self.name)
        if command.status is None:
            raise command.unknown(argv, self.name)
        return command.status, command.stdout, command.stderr

    @asynccontextmanager
    async def _stream(
        self, given: Sequence[str], judge: Callable[[int, bytes], None]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        connection = await self._connected()
        command = await open_command(connection, self.name, given, limit=OUTPUT_LIMIT, is_streamed=True)

        async def lines() -> Any:
            async with aclosing(command.lines(given, self.name)) as received:
                async for line in received:
                    yield line
            judge(command.status or 0, command.stderr)

        try:
            async with aclosing(lines()) as iterator:
                yield iterator
        finally:
            self._errand(close_command(connection, command))

    def _timed_out(self, argv: Sequence[str], timeout_s: float, stage: str) -> HostError:
        if not stage:
            what = f"{argv[0]} did not end within {timeout_s:g} s on {self.name}"
            return CommandTimedOut(what, host=self.name)
        why = f" ({self.link.why_down})" if self.link.why_down else ""
        return HostUnreachable(f"{self.name}: {stage} took more than {timeout_s:g} s{why}", host=self.name)

    def _end(self, connection: Connection, command: Command) -> None:
        """End a command nobody waits for any more, by its closed session or, if it reads that, by its number."""

        async def end() -> None:
            closing = asyncio.create_task(close_command(connection, command))
            try:
                if not command.has_input or command.pid is None or not connection.is_open:
                    return
                async with asyncio.timeout(_END_S):
                    ending = await open_command(
                        connection, self.name, end_command(command.pid, command.token), limit=OUTPUT_LIMIT
                    )
                    try:
                        await ending.done.wait()
                    finally:
                        await close_command(connection, ending)
            except (TimeoutError, HostError):
                return
            finally:
                await closing

        self._errand(end())

    def _errand(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _connected(self) -> Connection:
        """Return the open connection, making one if need be; callers at the same time share the attempt."""
        if self._connection is not None and self._connection.is_open:
            return self._connection
        if self._refusal is not None and time.monotonic() < self._refusal[0]:
            raise self._refusal[1]
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(_look_at)
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled() and not _is_cancelled():  # by close()
                raise HostUnreachable(f"{self.name} was closed while connecting", host=self.name) from None
            raise

    async def _connect(self) -> Connection:
        if (pause := self._next_try - time.monotonic()) > 0:
            await asyncio.sleep(pause)
        try:
            connection = await connect(self.settings, on_lost=self._lost, heard=self.heard)
        except HostError as problem:
            self._failures += 1
            pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(self._failures - 1, 10))
            self._next_try = time.monotonic() + pause
            if isinstance(problem, HostKeyRejected | LoginRefused):
                self._refusal = (time.monotonic() + _REFUSAL_HOLDS_S, problem)
            self.set_link(False, problem.what)
            raise
        self._failures, self._next_try, self._refusal = 0, 0.0, None
        self._tools.clear()
        if self._connection is not None:
            self._errand(self._connection.close())  # it is lost, but what it led through may not be
        self._connection = connection
        self.heard()
        self.set_link(True, "")
        return connection

    def _lost(self, why: str) -> None:
        self.set_link(False, why)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _look_at(task: "asyncio.Task[Connection]") -> None:
    """Take the attempt's error, which nobody may be waiting for any more."""
    if not task.cancelled():
        task.exception()
