"""A port of the host as a unix socket of this machine: each connection to it is a channel of its own."""

import asyncio
import contextlib
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import asyncssh

from specd.errors import HostError

__all__ = ["MAX_SOCKET_PATH", "unix_socket"]

MAX_SOCKET_PATH = 99
"""Bytes; the system's limit is 107, and clients may be stricter."""

_CHUNK = 2**16

Connect = Callable[[], Awaitable[asyncssh.SSHClientConnection]]


@contextlib.asynccontextmanager
async def unix_socket(runtime_dir: Path, connect: Connect, address: str, port: int) -> AsyncIterator[Path]:
    """Listen on a new socket below `runtime_dir`; a connection whose far side can't be reached is closed at once."""
    busy: set[asyncio.Task[None]] = set()
    is_open = True

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not is_open:  # accepted just before the end
            writer.close()
            return
        task = asyncio.create_task(_relay(reader, writer, connect, address, port))
        busy.add(task)
        task.add_done_callback(busy.discard)

    with _socket_path(runtime_dir) as path:
        server = await asyncio.start_unix_server(serve, path)
        try:
            yield path
        finally:
            is_open = False
            server.close()
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)
            await server.wait_closed()


async def _relay(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connect: Connect, address: str, port: int
) -> None:
    try:
        connection = await connect()
        far_reader, far_writer = await connection.open_connection(address, port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, far_writer))
                both.create_task(_pump(far_reader, writer))
        finally:
            far_writer.close()
    except (HostError, asyncssh.Error, OSError):
        return
    finally:
        writer.close()


async def _pump(
    source: "asyncio.StreamReader | asyncssh.SSHReader[bytes]", sink: "asyncio.StreamWriter | asyncssh.SSHWriter[bytes]"
) -> None:
    """Copy until the source's end, and pass that on: the other direction may still have something to say."""
    try:
        while received := await source.read(_CHUNK):
            sink.write(received)
            await sink.drain()
        sink.write_eof()
    except (OSError, asyncssh.Error):
        sink.close()


@contextlib.contextmanager
def _socket_path(runtime_dir: Path) -> Iterator[Path]:
    """Give a path that nobody else can reach, and remove what is there afterwards."""
    runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"tunnel-{secrets.token_hex(4)}.sock"
    with contextlib.ExitStack() as cleaning:
        path = runtime_dir / name
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            path = Path(cleaning.enter_context(tempfile.TemporaryDirectory(prefix="specd-", dir="/tmp")), name)
        cleaning.callback(path.unlink, missing_ok=True)
        yield path
