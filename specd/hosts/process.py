"""A process of this machine: a session of its own, output that is whole when it ends, no process left behind."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence

from specd.errors import HostError
from specd.hosts.wire import SEARCH_PATH

__all__ = ["CannotStart", "LocalProcess", "process"]

GRACE_S = 2.0
"""Seconds between SIGTERM and SIGKILL, and the longest wait after it."""

_HIGH_WATER = 2**20
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
# What a service manager tells the daemon is not for the daemon's commands.
_DAEMONS_OWN = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


class CannotStart(Exception):
    """There is no such program, or it can't be executed: what a shell would answer with `status`."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Output(asyncio.Protocol):
    """One output pipe of a process."""

    def __init__(self, on_too_much: Callable[[], None], limit: int) -> None:
        self._on_too_much = on_too_much
        self._limit = limit
        self._held = bytearray()
        self._news = asyncio.Event()
        self._is_streamed = False
        self.is_over_limit = False
        self.is_at_end = False
        self._transport: asyncio.ReadTransport | None = None

    async def attach(self, fd: int) -> None:
        """Begin to read a pipe; the transport closes it."""
        pipe = os.fdopen(fd, "rb", buffering=0)
        try:
            loop = asyncio.get_running_loop()
            self._transport, _ = await loop.connect_read_pipe(lambda: self, pipe)
        except BaseException:
            pipe.close()
            raise

    def data_received(self, data: bytes) -> None:
        if self.is_over_limit or self.is_at_end:
            return
        self._held += data
        self._news.set()
        if self._is_streamed:
            if len(self._held) > _HIGH_WATER and self._transport:
                self._transport.pause_reading()
        elif len(self._held) > self._limit:
            self.is_over_limit = True
            self._held.clear()
            self._on_too_much()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_at_end = True
        self._news.set()

    def finish(self) -> None:
        """Take what the ended process left in the pipe, which another process may still hold open."""
        if self._transport is None:
            return
        if not self.is_at_end:
            fd: int = self._transport.get_extra_info("pipe").fileno()
            with contextlib.suppress(BlockingIOError):
                while rest := os.read(fd, 2**18):
                    self.data_received(rest)
        self.is_at_end = True
        self._news.set()
        self.close()

    def close(self) -> None:
        """Let go of the pipe."""
        if self._transport:
            self._transport.close()

    def take(self) -> bytes:
        """Return what has come since the last time."""
        taken = bytes(self._held)
        self._held.clear()
        return taken

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Iterate over what comes, until the end; reading pauses while nobody takes it."""
        self._is_streamed = True
        while True:
            await self._news.wait()
            self._news.clear()
            at_end = self.is_at_end
            if self._held:
                yield self.take()
            if at_end:
                return
            if self._transport and not self._transport.is_closing():
                self._transport.resume_reading()


class LocalProcess:
    """A running command; made by `process`."""

    def __init__(self, limit: int) -> None:
        self.stdout = Output(self.kill, limit)
        self.stderr = Output(self.kill, limit)
        self._process: asyncio.subprocess.Process | None = None
        self._ended: asyncio.Task[int] | None = None

    async def start(self, argv: Sequence[str], stdin: bytes, env: Mapping[str, str] | None) -> None:
        """Start the command; raises CannotStart, HostError when the system takes no such arguments."""
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        try:
            await self.stdout.attach(out_read)
            await self.stderr.attach(err_read)
            with _input(stdin) as given:
                self._process = await asyncio.create_subprocess_exec(
                    *argv,
                    stdin=given,
                    stdout=out_write,
                    stderr=err_write,
                    env=_environment(env),
                    start_new_session=True,
                )
        except FileNotFoundError:
            raise CannotStart(_NOT_FOUND, f"{argv[0]}: not found") from None
        except PermissionError:
            raise CannotStart(_NOT_EXECUTABLE, f"{argv[0]}: permission denied") from None
        except (OSError, ValueError) as problem:
            raise HostError(f"{argv[0]} can't be started: {problem}") from problem
        finally:
            os.close(out_write)
            os.close(err_write)
        self._ended = asyncio.create_task(self._watch(self._process))

    async def status(self) -> int:
        """Wait for the end and return the exit status, 128 and the signal's number for one that was killed."""
        assert self._ended is not None
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Kill the command and all it started that stayed in its session."""
        self._signal(signal.SIGKILL)

    async def end(self) -> None:
        """Make sure that nothing of the command goes on; does nothing for one that has ended."""
        try:
            if self._ended is not None and not self._ended.done():
                self._signal(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GRACE_S):
                        await asyncio.shield(self._ended)
                self.kill()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GRACE_S):
                        await asyncio.shield(self._ended)
        except asyncio.CancelledError:
            self.kill()
            raise
        finally:
            self.stdout.close()
            self.stderr.close()

    def _signal(self, number: signal.Signals) -> None:
        # What sudo started belongs to root: it ends when it writes to the closed pipe.
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    async def _watch(self, started: asyncio.subprocess.Process) -> int:
        status = await started.wait()
        self.stdout.finish()
        self.stderr.finish()
        return status if status >= 0 else 128 - status


@contextlib.asynccontextmanager
async def process(
    argv: Sequence[str], *, stdin: bytes, env: Mapping[str, str] | None, limit: int
) -> AsyncIterator[LocalProcess]:
    """Start a command, and end it with the context."""
    running = LocalProcess(limit)
    try:
        await running.start(argv, stdin, env)
        yield running
    finally:
        await running.end()


@contextlib.contextmanager
def _input(content: bytes) -> Iterator[int]:
    """Give a file to read from: a process that reads late or never blocks nobody."""
    # In memory: a full or read-only /tmp must not keep commands from running.
    with os.fdopen(os.memfd_create("stdin"), "w+b") if content else open(os.devnull, "rb") as given:
        if content:
            given.write(content)
            given.seek(0)
        yield given.fileno()


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _DAEMONS_OWN and name != "LANGUAGE"}
    kept["PATH"] = f"{kept['PATH']}:{SEARCH_PATH}" if kept.get("PATH") else SEARCH_PATH
    return kept | {"LC_ALL": "C.UTF-8"} | dict(extra or {})
