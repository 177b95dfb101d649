"""The event stream of the real daemon: nothing missing, nothing twice, whoever listens and whatever breaks off."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from specd.cli.client import StreamLost
from specd.errors import DaemonUnreachable
from tests.rig import Daemon, EmbeddedSite
from tests.rig.daemon import trial_toml

Event = dict[str, Any]


class Follower:
    """A client that takes every connection's loss as a reason to resume where it was."""

    def __init__(self, daemon: Daemon, *, breaks_after: int = 0) -> None:
        self._daemon = daemon
        self._breaks_after = breaks_after
        self.events: list[Event] = []
        self.connections = 0

    async def follow(self) -> None:
        """Follow without end."""
        while True:
            self.connections += 1
            try:
                await self._once()
            except (StreamLost, DaemonUnreachable):
                await asyncio.sleep(0.05)

    async def _once(self) -> None:
        taken = 0
        async with self._daemon.client.events(self.events[-1]["seq"] if self.events else 0) as events:
            async for event in events:
                self.events.append(event)
                taken += 1
                if taken == self._breaks_after:
                    return

    async def has(self, seq: int) -> None:
        """Wait until the event with this seq has come."""
        async with asyncio.timeout(20):
            while not self.events or self.events[-1]["seq"] < seq:
                await asyncio.sleep(0.02)


async def last_seq(daemon: Daemon) -> int:
    return int((await daemon.client.health())["seq"])


async def stored(daemon: Daemon) -> list[Event]:
    """Return all events by the other road, page by page."""
    found: list[Event] = []
    while page := await daemon.client.past_events(found[-1]["seq"] if found else 0, "", limit=50):
        found += page
    return found


async def test_listeners_of_every_kind_get_the_same_events_in_order(embedded_site: EmbeddedSite) -> None:
    async with Daemon(embedded_site) as daemon:
        first, second = Follower(daemon, breaks_after=7), Follower(daemon)
        async with following(first, second):
            trial = await daemon.submit()
            async with daemon.client.events(0, trial) as events:
                own = [await anext(events) for _ in range(20)]
            # An end in good order and a kill: to the followers both are a lost connection.
            await daemon.reached(trial, "loading")
            await asyncio.to_thread(daemon.end, signal.SIGTERM)
            await daemon.start()
            await daemon.reached(trial, "benchmark")
            await asyncio.to_thread(daemon.kill)
            await daemon.start()
            await daemon.settled(trial)
            end = await last_seq(daemon)
            third = Follower(daemon)
            async with following(third):
                for follower in (first, second, third):
                    await follower.has(end)
        kept = await stored(daemon)
    assert [event["seq"] for event in kept] == list(range(1, end + 1))
    for follower in (first, second, third):
        assert follower.events == kept
    assert first.connections > 8
    assert all(event["trial"] == trial for event in own)
    assert own == [event for event in kept if event["trial"] == trial][:20]
    kinds = [event["type"] for event in kept]
    assert kinds.count("DaemonStarted") == 3
    assert kinds.count("DaemonStopped") == 1
    assert kinds.count("TrialSubmitted") == 1


async def test_a_listener_that_does_not_read_is_cut_and_resumes_without_a_gap(embedded_site: EmbeddedSite) -> None:
    batches, size = 20, 300
    text = "".join(trial_toml({"max-num-seqs": 8}, name=f"{'n' * 50}{number}") for number in range(size))
    async with Daemon(embedded_site) as daemon:
        since = await last_seq(daemon)
        quick, resumed = Follower(daemon), Follower(daemon)
        async with open_stream(daemon, since) as reader, following(quick):
            for batch in range(1, batches + 1):
                await daemon.client.post("/v1/trials", {"text": text})
                await quick.has(since + batch * size)
            end = await last_seq(daemon)
            await quick.has(end)
            assert quick.connections == 1, "a listener that keeps up was cut"
            # More was waiting than may wait: its connection ends, though it reads nothing at all.
            async with asyncio.timeout(20):
                got = await read_all(reader)
            # A trial of these goes on meanwhile, so that the stream is longer by now.
            newest = await last_seq(daemon)
        assert 0 < len(got) < newest - since
        assert got == list(range(since + 1, since + 1 + len(got)))
        resumed.events = quick.events[: got[-1]]
        async with following(resumed):
            await resumed.has(end)
    assert resumed.events[:end] == quick.events[:end]


@asynccontextmanager
async def following(*followers: Follower) -> AsyncIterator[None]:
    """Let followers follow until the block ends."""
    tasks = [asyncio.create_task(follower.follow()) for follower in followers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def open_stream(daemon: Daemon, since: int) -> AsyncIterator[asyncio.StreamReader]:
    """Open the stream on a bare socket, so that nothing is read until somebody wants it."""
    reader, writer = await asyncio.open_unix_connection(str(daemon.socket), limit=1024)
    try:
        writer.write(
            f"GET /v1/events?since={since} HTTP/1.1\r\nHost: specd\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101"), head
        yield reader
    finally:
        writer.close()


async def read_all(reader: asyncio.StreamReader) -> list[int]:
    """Wait until the server has cut the connection, then return the seqs of the whole text frames that had come."""
    await asyncio.sleep(4)
    seqs: list[int] = []
    try:
        while True:
            first, size = await reader.readexactly(2)
            if size == 126:
                size = int.from_bytes(await reader.readexactly(2))
            elif size == 127:
                size = int.from_bytes(await reader.readexactly(8))
            body = await reader.readexactly(size)
            if first & 0x0F == 1:
                seqs.append(json.loads(body)["seq"])
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return seqs


async def test_the_end_of_the_daemon_is_told_to_listeners_and_does_not_wait_for_them(
    embedded_site: EmbeddedSite,
) -> None:
    async with Daemon(embedded_site) as daemon:
        connector = aiohttp.UnixConnector(str(daemon.socket))
        async with (
            open_stream(daemon, 0),
            aiohttp.ClientSession("http://specd", connector=connector) as session,
            session.ws_connect("/v1/events", params={"since": 0}) as stream,
        ):
            await stream.receive(timeout=5)
            started = asyncio.get_running_loop().time()
            ending = asyncio.create_task(asyncio.to_thread(daemon.end, signal.SIGTERM))
            kinds = [message async for message in stream]
            assert await ending == 0
            took_s = asyncio.get_running_loop().time() - started
        assert json.loads(kinds[-1].data)["type"] == "DaemonStopped"
        assert stream.close_code == aiohttp.WSCloseCode.GOING_AWAY
        assert took_s < 3
