"""The benchmark client, a process of its own: `python -m specd.bench.client`.

It reads one JSON line from stdin (wire.py says what) and keeps stdin open: when that ends, whoever wanted the numbers
is gone, and so is the client. SIGTERM ends it too. Results go to stdout, one JSON object a line.
Exit status: 0 all levels measured, 1 they could not be, 2 no readable order, 3 stopped: by a signal, by the end of
stdin, or because nobody reads stdout any more.
"""

import asyncio
import os
import signal
import stat
import sys

from specd.bench.load import Runner
from specd.bench.plan import BenchPlan, Level, Target
from specd.bench.prompts import load_prompts
from specd.bench.server import Server
from specd.bench.wire import FINAL, decode_order, encode_failure, encode_item
from specd.errors import BenchError

__all__ = ["main"]

_ORDER_LIMIT = 16 * 1024 * 1024


class _Output(asyncio.BaseProtocol):
    """stdout without ever blocking the loop; `lost` is set when it is closed or its reader is gone."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio when the pipe is open."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def pause_writing(self) -> None:
        """Called by asyncio when the reader does not keep up."""
        self._room.clear()

    def resume_writing(self) -> None:
        """Called by asyncio when the reader has caught up."""
        self._room.set()

    def connection_lost(self, _error: Exception | None) -> None:
        """Called by asyncio when the pipe is closed."""
        self.lost.set()
        self._room.set()

    def put(self, line: bytes) -> None:
        """Queue a line."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(line)

    async def flush(self) -> None:
        """Wait until the reader has caught up."""
        await self._room.wait()

    async def close(self) -> None:
        """Write everything and close."""
        if self._transport is not None:
            self._transport.close()
            await self.lost.wait()


async def _open_pipes() -> tuple[asyncio.StreamReader, _Output]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_ORDER_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    _, output = await loop.connect_write_pipe(_Output, sys.stdout)
    return reader, output


async def _measure(target: Target, plan: BenchPlan, levels: tuple[Level, ...], output: _Output) -> None:
    prompts = load_prompts(plan.prompts)
    async with Server.connect(target, plan) as server:
        mode = await server.find_mode(prompts)
        runner = Runner(server, target, plan, prompts, mode, lambda progress: output.put(encode_item(progress)))
        for level in levels:
            output.put(encode_item(await runner.run(level)))
            await output.flush()


async def _work(order: bytes, output: _Output) -> int:
    try:
        target, plan, levels = decode_order(order)
    except BenchError as error:
        output.put(encode_failure(str(error)))
        return 2
    try:
        await _measure(target, plan, levels, output)
    except BenchError as error:
        output.put(encode_failure(str(error)))
        return 1
    output.put(FINAL)
    return 0


async def _until_end(stdin: asyncio.StreamReader) -> None:
    while await stdin.read(65536):
        pass


async def _run() -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    stdin, output = await _open_pipes()
    try:
        order = await stdin.readline()
    except ValueError:
        # Longer than the limit: not an order of ours.
        order = b""
    work = asyncio.create_task(_work(order, output))
    ends: list[asyncio.Task[object]] = [asyncio.create_task(_until_end(stdin)), asyncio.create_task(stop.wait())]
    ends.append(asyncio.create_task(output.lost.wait()))
    await asyncio.wait([work, *ends], return_when=asyncio.FIRST_COMPLETED)
    for task in ends:
        task.cancel()
    if not work.done():
        work.cancel()
        await asyncio.wait([work])
        return 3
    status = work.result()
    await output.close()
    return status


def _is_pipe(descriptor: int) -> bool:
    """True for what the loop can wait on: a pipe, a socket or a terminal."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


def main() -> int:
    """Run the client; returns the exit status."""
    if not (_is_pipe(0) and _is_pipe(1)):
        print("specd.bench.client: stdin and stdout have to be pipes (the daemon starts me)", file=sys.stderr)  # noqa: T201
        return 2
    return asyncio.run(_run())


if __name__ == "__main__":
    sys.exit(main())
