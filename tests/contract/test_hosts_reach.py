"""Reaching a TCP port as the host sees it: directly on this machine, by a unix socket over SSH."""

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from specd.hosts import Host, Route, open_host
from tests.contract.hosts_ssh_server import ssh_server
from tests.contract.test_hosts_commands import host

__all__ = ["host"]

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[int]:
    """Run a TCP server on loopback and give its port."""
    running: set[asyncio.Task[None]] = set()

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await serve(reader, writer)
        finally:
            writer.close()
            running.discard(task)

    server = await asyncio.start_server(guarded, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await server.wait_closed()


async def connect(route: Route) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if route.unix_socket is not None:
        return await asyncio.open_unix_connection(route.unix_socket)
    address, _, port = route.base_url.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(address.strip("[]"), int(port))


async def exchange(route: Route, sent: bytes) -> bytes:
    reader, writer = await connect(route)
    try:
        writer.write(sent)
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()


async def answer_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer when the client has said all: needs each direction to be closed on its own."""
    received = await reader.read()
    writer.write(b"%d:" % len(received) + received[::-1])
    await writer.drain()


async def test_both_directions_and_half_close(host: Host) -> None:
    async with listening(answer_at_the_end) as port, host.reach("127.0.0.1", port) as route:
        assert route.base_url == f"http://127.0.0.1:{port}"
        assert route.kind == ("direct" if host.is_local else "tunnel")
        assert await exchange(route, b"abc") == b"3:cba"
        content = os.urandom(3 * 2**20)
        assert await exchange(route, content) == b"3145728:" + content[::-1]


async def test_many_connections_at_once(host: Host) -> None:
    async with listening(answer_at_the_end) as port, host.reach("127.0.0.1", port) as route:
        answers = await asyncio.gather(*(exchange(route, b"%d" % number) for number in range(10, 60)))
        assert answers == [b"2:" + (b"%d" % number)[::-1] for number in range(10, 60)]


async def test_a_stream_comes_piece_by_piece(host: Host) -> None:
    go_on = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(3):
            await go_on.wait()
            go_on.clear()
            writer.write(b"data: %d\n\n" % number)

    async with listening(serve) as port, host.reach("127.0.0.1", port) as route:
        reader, writer = await connect(route)
        for number in range(3):
            go_on.set()
            assert await asyncio.wait_for(reader.readuntil(b"\n\n"), 2) == b"data: %d\n\n" % number
        assert await reader.read() == b""
        writer.close()


async def test_a_client_that_leaves_is_noticed_by_the_server(host: Host) -> None:
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        left.set()

    async with listening(serve) as port, host.reach("127.0.0.1", port) as route:
        _, writer = await connect(route)
        writer.write(b"x")
        await writer.drain()
        writer.close()
        await asyncio.wait_for(left.wait(), 2)


async def test_nobody_listens(host: Host) -> None:
    async with listening(answer_at_the_end) as port:
        pass
    async with host.reach("127.0.0.1", port) as route:
        if host.is_local:
            with pytest.raises(ConnectionRefusedError):
                await exchange(route, b"abc")
        else:
            assert await asyncio.wait_for(exchange(route, b"abc"), 5) == b""


async def test_brackets_around_an_address_of_version_6(host: Host) -> None:
    async with host.reach("::1", 8000) as route:
        assert route.base_url == "http://[::1]:8000"


async def test_socket_is_private_short_and_gone_afterwards(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    async with ssh_server(tmp_path) as server, listening(answer_at_the_end) as port:
        for directory in (Path("/tmp", f"specd-test-{os.getpid()}"), deep):
            host = open_host(server.settings(), directory)
            async with host.reach("127.0.0.1", port) as route:
                assert route.unix_socket is not None
                assert len(os.fsencode(route.unix_socket)) < 100
                parent = Path(route.unix_socket).parent
                assert stat.S_IMODE(parent.stat().st_mode) == 0o700
                assert await exchange(route, b"abc") == b"3:cba"
            assert not Path(route.unix_socket).exists()
            await host.close()
            assert not parent.exists() or list(parent.iterdir()) == []
            if parent.exists():
                parent.rmdir()


async def test_a_new_connection_is_made_when_the_old_one_is_gone(tmp_path: Path) -> None:
    async with ssh_server(tmp_path) as server, listening(answer_at_the_end) as port:
        host = open_host(server.settings(), tmp_path)
        async with host.reach("127.0.0.1", port) as route:
            assert await exchange(route, b"abc") == b"3:cba"
            reader, writer = await connect(route)
            server.cut()
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
            assert await exchange(route, b"abc") == b"3:cba"
        assert server.forwards == [("127.0.0.1", port)] * len(server.forwards)
        assert len(server.logins) == 2
        await host.close()


async def test_tunnels_take_no_sessions(tmp_path: Path) -> None:
    async with ssh_server(tmp_path) as server, listening(answer_at_the_end) as port:
        server.max_sessions = 1
        host = open_host(server.settings(), tmp_path)
        async with host.reach("127.0.0.1", port) as route:
            connections = [await connect(route) for _ in range(10)]
            assert (await host.run(["echo", "fine"])).stdout == b"fine\n"
            for _, writer in connections:
                writer.close()
        await host.close()


async def test_leaving_with_open_connections(host: Host) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"welcome")
        await reader.read()

    async with listening(serve) as port:
        async with host.reach("127.0.0.1", port) as route:
            reader, writer = await connect(route)
            assert await reader.readexactly(7) == b"welcome"
        if not host.is_local:
            assert await asyncio.wait_for(reader.read(), 2) == b""
        writer.close()
