"""A small real HTTP server whose every byte a test decides, for streams no well-behaved server sends."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
PAGE = "process_start_time_seconds 5\n"


@dataclass
class Request:
    """One request as it came, and the way to answer it byte by byte."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    writer: asyncio.StreamWriter

    async def send(self, *parts: bytes) -> None:
        """Send raw bytes, each part on its own."""
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def head(self) -> None:
        """Begin a stream."""
        await self.send(HEAD)

    async def events(self, *events: Any) -> None:
        """Send events (dicts as JSON, bytes as they are) as chunks of the stream."""
        for event in events:
            data = event if isinstance(event, bytes) else b"data: " + json.dumps(event).encode() + b"\n\n"
            await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def finish(self) -> None:
        """End the stream cleanly."""
        await self.send(b"0\r\n\r\n")

    async def reply(self, status: int, body: Any, content_type: str = "application/json") -> None:
        """Send a whole answer."""
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {len(data)}\r\n\r\n"
        await self.send(head.encode() + data)

    async def answer(self, words: int = 8, pause_s: float = 0.002, usage: bool = True) -> None:
        """A usual streamed answer: a role, words, a finish reason, usage, [DONE]."""
        await self.head()
        await self.events(text("", role="assistant"))
        for _ in range(words):
            await asyncio.sleep(pause_s)
            await self.events(text("word "))
        await self.events(text("", finish="length"))
        if usage:
            await self.events({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": words}})
        await self.events(b"data: [DONE]\n\n")
        await self.finish()


Answerer = Callable[[Request], Awaitable[None]]


@dataclass
class OddServer:
    """What the server listens on and what it was asked."""

    answer: Answerer
    url: str = ""
    page: str | None = PAGE
    requests: list[Request] = field(default_factory=list)
    open_now: int = 0
    most_open: int = 0

    @property
    def generations(self) -> list[Request]:
        """The requests for a generation, without those for metrics and token counts."""
        return [request for request in self.requests if request.path.startswith("/v1/")]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's requests."""
        try:
            while request := await _read(reader, writer):
                self.requests.append(request)
                if request.path == "/metrics":
                    await request.reply(200 if self.page else 404, self.page or "", "text/plain")
                    continue
                self.open_now += 1
                self.most_open = max(self.most_open, self.open_now)
                try:
                    await self.answer(request)
                finally:
                    self.open_now -= 1
        except (ConnectionError, asyncio.IncompleteReadError, _HangUp):
            pass
        finally:
            writer.close()


class _HangUp(Exception):
    """Raised by an answer that drops the connection."""


def hang_up() -> None:
    """Drop the connection in the middle of what is being sent."""
    raise _HangUp


def text(content: str, *, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """A chat chunk."""
    return {"choices": [{"index": 0, "delta": {"content": content, **delta}, "finish_reason": finish}]}


@asynccontextmanager
async def odd_server(answer: Answerer, unix_socket: str = "") -> AsyncIterator[OddServer]:
    """Run a server on a free port of the loopback, or on a unix socket."""
    odd = OddServer(answer)
    if unix_socket:
        server = await asyncio.start_unix_server(odd.serve, unix_socket)
        odd.url = "http://127.0.0.1:1"
    else:
        server = await asyncio.start_server(odd.serve, "127.0.0.1", 0, backlog=1000)
        odd.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield odd
    finally:
        server.close()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    data = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(first.split(" ")[1], headers, json.loads(data) if data else {}, writer)
