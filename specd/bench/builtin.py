"""The built-in benchmark: starts the client process, passes it the order, reads its lines, and always ends it."""

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from pathlib import Path

import specd
from specd.bench.plain import plain
from specd.bench.plan import BenchPlan, Level, LevelDone, Progress, Target
from specd.bench.wire import decode_item, encode_order
from specd.errors import BenchError

__all__ = ["BuiltinBenchmark"]

# The directory this package was imported from, so that the client is the same one whatever the working directory is.
_HOME = str(Path(specd.__file__).resolve().parents[1])

# A level's line holds two /metrics pages and all its samples.
_LINE_BYTES = 256 * 1024 * 1024
_STOP_S = 2.0
_TAIL_CHUNKS = 8


class BuiltinBenchmark:
    """Closed-loop load from a process of its own on this machine."""

    name = "builtin"

    def __init__(self) -> None:
        self._spare: asyncio.Task[asyncio.subprocess.Process] | None = None

    def prepare(self) -> None:
        """Start a client that waits for its order: loading it takes longer than a short level."""
        if self._spare is None:
            self._spare = asyncio.create_task(_start(), name="bench.spare")

    async def close(self) -> None:
        """End a client that was started and not used."""
        if (process := await self._take_spare()) is not None:
            await _stop(process)

    async def _take_spare(self) -> asyncio.subprocess.Process | None:
        """Return the client that waits, if there is one and it lives."""
        spare, self._spare = self._spare, None
        if spare is None:
            return None
        try:
            process = await spare
        except BenchError:
            # The next start says the same.
            return None
        return process if process.returncode is None else None

    def measure(
        self, target: Target, plan: BenchPlan, levels: tuple[Level, ...]
    ) -> AbstractAsyncContextManager[AsyncIterator[Progress | LevelDone]]:
        """Run the levels in order; leaving the context ends the client process. Raises BenchError."""
        return self._measured(target, plan, levels)

    @asynccontextmanager
    async def _measured(
        self, target: Target, plan: BenchPlan, levels: tuple[Level, ...]
    ) -> AsyncIterator[AsyncIterator[Progress | LevelDone]]:
        process = await self._take_spare() or await _start()
        tail: deque[bytes] = deque(maxlen=_TAIL_CHUNKS)
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(encode_order(target, plan, levels))
        listening = asyncio.create_task(_listen(process.stderr, tail))
        try:
            async with aclosing(_items(process, tail, listening)) as items:
                yield items
        finally:
            try:
                await _stop(process)
            finally:
                listening.cancel()


async def _start() -> asyncio.subprocess.Process:
    path = os.pathsep.join(part for part in (_HOME, os.environ.get("PYTHONPATH", "")) if part)
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "specd.bench.client",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            limit=_LINE_BYTES,
            # Ctrl-C on a terminal is for the parent; the client ends with its stdin.
            start_new_session=True,
        )
    except OSError as error:
        raise BenchError(f"can't start the benchmark client: {error}") from error


async def _items(
    process: asyncio.subprocess.Process, tail: deque[bytes], listening: asyncio.Task[None]
) -> AsyncGenerator[Progress | LevelDone]:
    assert process.stdin is not None
    assert process.stdout is not None
    # One that died before it had read its order may still have said why.
    with suppress(ConnectionError):
        await process.stdin.drain()
    try:
        while line := await process.stdout.readline():
            item = decode_item(line)
            if item is None:
                return
            yield item
    except ValueError as error:
        raise BenchError(f"the benchmark client printed a line that is too long: {error}") from error
    status = await process.wait()
    await asyncio.wait([listening])
    words = plain(b"".join(tail).decode(errors="replace")[-2000:], 1000)
    raise BenchError(f"the benchmark client ended early with status {status}" + (f": {words}" if words else ""))


async def _listen(stderr: asyncio.StreamReader, tail: deque[bytes]) -> None:
    while chunk := await stderr.read(4096):
        tail.append(chunk)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End the client whatever it does, also when this is cancelled meanwhile."""
    try:
        if process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            process.terminate()
            async with asyncio.timeout(_STOP_S):
                await process.wait()
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            process.kill()
    await process.wait()
