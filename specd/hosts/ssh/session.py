"""One command over a connection: a session whose answer is framed."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import asyncssh

from specd.errors import HostUnreachable
from specd.hosts.ssh.connection import Connection
from specd.hosts.wire import Frame, Lines, command_line, environment_line, new_token

__all__ = ["Command", "open_command"]

_TRIES = 5
_FIRST_PAUSE_S = 0.01
_CLOSE_S = 5.0
_LAST_WORDS_S = 2.0
_HIGH_WATER = 2**20
_STDERR_KEPT = 2**16


class Command(asyncssh.SSHClientSession[bytes]):
    """A command on its way; `done` is set when its status is known, or never will be."""

    def __init__(self, token: str, *, limit: int, is_streamed: bool, has_input: bool) -> None:
        self.token = token
        self.has_input = has_input
        self.done = asyncio.Event()
        self.is_over_limit = False
        self._limit = limit
        self._is_streamed = is_streamed
        self._stdout = Frame(token)
        self._stderr = Frame(token)
        self._out = bytearray()
        self._err = bytearray()
        self._news = asyncio.Event()
        self._ending = ""
        self._is_lost = False
        self._is_paused = False
        self.channel: asyncssh.SSHClientChannel[bytes] | None = None

    @property
    def status(self) -> int | None:
        """The exit status, if there was an end with one."""
        return self._stdout.status

    @property
    def pid(self) -> int | None:
        """The process of the script around the command, on the host."""
        return self._stdout.pid

    @property
    def stdout(self) -> bytes:
        return bytes(self._out)

    @property
    def stderr(self) -> bytes:
        return bytes(self._err)

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self.channel = chan

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if datatype == asyncssh.EXTENDED_DATA_STDERR:
            self._err += self._stderr.feed(data)
            if self._is_streamed:
                del self._err[:-_STDERR_KEPT]
        else:
            self._out += self._stdout.feed(data)
            self._news.set()
            if self._is_streamed and len(self._out) > _HIGH_WATER and self.channel and not self._is_paused:
                self._is_paused = True
                self.channel.pause_reading()
        if not self._is_streamed and len(self._out) + len(self._err) > self._limit:
            self.is_over_limit = True
            self.done.set()
        if self._stdout.status is not None and self._stderr.status is not None:
            self._end()

    def exit_status_received(self, status: int) -> None:
        self._shell_ended(f"the login shell ended with status {status}")

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        self._shell_ended(f"the login shell was ended by signal {signal}")

    def _shell_ended(self, words: str) -> None:
        """Wait a little for what it still had to say: a process it left may hold the channel open for ever."""
        self._ending = words
        asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if exc is not None:
            self._ending = str(exc)
        self._end()

    def _end(self) -> None:
        self.done.set()
        self._news.set()

    def unknown(self, argv: Sequence[str], host: str) -> HostUnreachable:
        """Return the error for an end without a status."""
        if self.pid is None and self._ending and (noise := (self._stdout.noise + self._stderr.noise).strip()):
            words = "".join(char for char in noise[-200:] if char.isprintable())
            return HostUnreachable(f"{host} did not run {argv[0]}: {self._ending}, saying: {words}", host=host)
        why = self._ending or "the session was closed"
        begun = "it had begun" if self.pid is not None else "it may have begun"
        return HostUnreachable(f"no exit status of {argv[0]} from {host} ({why}); {begun}", host=host)

    async def lines(self, argv: Sequence[str], host: str) -> AsyncGenerator[bytes, None]:
        """Iterate over the lines of stdout; raises HostUnreachable when the end is unknown."""
        lines = Lines()
        while True:
            await self._news.wait()
            self._news.clear()
            is_over = self.done.is_set()
            received = bytes(self._out)
            self._out.clear()
            for line in lines.feed(received):
                yield line
            if is_over:
                break
            if self._is_paused and self.channel:
                self._is_paused = False
                self.channel.resume_reading()
        for line in lines.end():
            yield line
        if self.status is None:
            raise self.unknown(argv, host)


async def open_command(
    connection: Connection,
    host: str,
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    limit: int,
    is_streamed: bool = False,
) -> Command:
    """Start a command, waiting for a free session; `close_command` has to follow. Raises HostUnreachable."""
    command = Command(new_token(), limit=limit, is_streamed=is_streamed, has_input=bool(stdin))
    line = command_line(argv, command.token, feeds_input=bool(stdin), env=env)
    await connection.sessions.enter()
    try:
        await _open_session(connection, host, command, line)
    except BaseException:
        connection.sessions.leave()
        raise
    assert command.channel is not None
    with contextlib.suppress(OSError):  # closed already: the command's end says so
        if env:
            command.channel.write(environment_line(env))
        if stdin:
            command.channel.write(stdin)
            command.channel.write_eof()
    return command


async def close_command(connection: Connection, command: Command) -> None:
    """Close a command's session, which ends the command if it goes on, and give its place back when it is free."""
    channel = command.channel
    assert channel is not None
    try:
        channel.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await channel.wait_closed()
    finally:
        connection.sessions.leave(was_granted=True)


async def _open_session(connection: Connection, host: str, command: Command, line: str) -> None:
    tries = 0
    while True:
        try:
            await _create(connection, command, line)
        except asyncssh.ChannelOpenError as problem:
            if not connection.is_open:
                raise HostUnreachable(f"the connection to {host} was lost: {problem.reason}", host=host) from problem
            tries += 1
            if tries < _TRIES:
                # The place of a session that has just ended is free a moment later.
                await asyncio.sleep(_FIRST_PAUSE_S * 2**tries)
            elif connection.sessions.open:
                await connection.sessions.step_back()
                tries = 0
            else:
                what = f"{host} opens no session: {problem.reason}"
                raise HostUnreachable(what, host=host) from problem
        except (asyncssh.Error, OSError) as problem:
            raise HostUnreachable(f"the connection to {host} was lost: {problem}", host=host) from problem
        else:
            connection.sessions.granted()
            return


async def _create(connection: Connection, command: Command, line: str) -> None:
    """Open a session; one that is granted after we stopped waiting is closed again."""
    opening = asyncio.create_task(
        connection.ssh.create_session(lambda: command, line, encoding=None, request_pty=False, send_env=())
    )
    try:
        await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_late)
        raise


def _close_late(opening: "asyncio.Task[tuple[asyncssh.SSHClientChannel[Any], asyncssh.SSHClientSession[Any]]]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()
