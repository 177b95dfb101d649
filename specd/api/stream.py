"""The event stream: a WebSocket that first replays what was stored after `since`, then goes on live, nothing twice."""

import asyncio
import contextlib
import json

import structlog
from aiohttp import WSCloseCode, web

from specd.bus import Bus, Listener
from specd.errors import StoreError
from specd.store import Store
from states.wire import encode

__all__ = ["Streams"]

log = structlog.get_logger()

_BATCH = 1000
_HEARTBEAT_S = 20.0
_CUT_S = 2.0
_GOODBYE_S = 0.5


class Streams:
    """The listeners of one daemon: serves them, and says goodbye at the daemon's end."""

    def __init__(self, store: Store, bus: Bus) -> None:
        self._store = store
        self._bus = bus
        self._open: set[web.WebSocketResponse] = set()

    async def serve(self, request: web.Request, since: int, trial: str | None) -> web.WebSocketResponse:
        """Serve one listener until it goes; one that can't keep up is cut off and resumes with the last seq it saw."""
        socket = web.WebSocketResponse(heartbeat=_HEARTBEAT_S, compress=False)
        await socket.prepare(request)
        self._open.add(socket)
        try:
            with self._bus.listen() as listener:
                tasks = [
                    asyncio.create_task(_send(socket, self._store, listener, since, trial), name="event-sender"),
                    asyncio.create_task(_cut(request, listener), name="event-cutter"),
                ]
                try:
                    # Clients say nothing; this reads pongs and the close.
                    async for _ in socket:
                        pass
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._open.discard(socket)
        return socket

    async def close(self, _app: web.Application) -> None:
        """Close all of them; one that does not read is not waited for."""
        message = b"the daemon ends; resume with ?since="
        closing = [socket.close(code=WSCloseCode.GOING_AWAY, message=message) for socket in self._open]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await asyncio.gather(*closing, return_exceptions=True)


async def _cut(request: web.Request, listener: Listener) -> None:
    """Drop the connection of a lost listener that does not even read its close."""
    await listener.lost.wait()
    await asyncio.sleep(_CUT_S)
    if request.transport is not None:
        request.transport.abort()


async def _send(socket: web.WebSocketResponse, store: Store, listener: Listener, since: int, trial: str | None) -> None:
    try:
        while batch := store.events(since, _BATCH, trial):
            for body in batch:
                await socket.send_str(json.dumps(body))
            since = int(batch[-1]["seq"])
    except StoreError as error:
        log.warning("stream.not-read", error=str(error))
        listener.lost.set()
    while not listener.lost.is_set() and (event := await listener.queue.get()) is not None:
        # The queue may hold what the replay has sent already.
        if event.seq > since and (trial is None or event.trial == trial):
            await socket.send_str(json.dumps(encode(event)))
            since = event.seq
    await socket.close(code=WSCloseCode.TRY_AGAIN_LATER, message=b"ask how the daemon is; resume with ?since=")
