"""The event stream: a WebSocket that first replays what was stored after `since`, then goes on live, nothing twice."""

import asyncio
import json

from aiohttp import WSCloseCode, web

from specd.bus import Bus, Listener
from specd.store import Store
from states.wire import encode

__all__ = ["stream_events"]

_BATCH = 1000
_HEARTBEAT_S = 20.0


async def stream_events(request: web.Request, store: Store, bus: Bus) -> web.WebSocketResponse:
    """Serve one listener; one that can't keep up is closed and resumes with the last seq it saw."""
    since = int(request.query.get("since", "0"))
    trial = request.query.get("trial") or None
    socket = web.WebSocketResponse(heartbeat=_HEARTBEAT_S, compress=False)
    await socket.prepare(request)
    with bus.listen() as listener:
        sender = asyncio.create_task(_send(socket, store, listener, since, trial), name="event-sender")
        try:
            # Clients say nothing; this reads pongs and the close.
            async for _ in socket:
                pass
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
    return socket


async def _send(socket: web.WebSocketResponse, store: Store, listener: Listener, since: int, trial: str | None) -> None:
    while batch := store.events(since, _BATCH, trial):
        for body in batch:
            await socket.send_str(json.dumps(body))
        since = int(batch[-1]["seq"])
    while not listener.lost.is_set():
        event = await listener.queue.get()
        # The queue may hold what the replay has sent already.
        if event.seq > since and (trial is None or event.trial == trial):
            await socket.send_str(json.dumps(encode(event)))
            since = event.seq
    await socket.close(code=WSCloseCode.TRY_AGAIN_LATER, message=b"too slow; resume with ?since=")
