"""HTTP/1.1 on asyncio streams: requests with a length or in chunks, keep-alive, answers whole or streamed."""

from __future__ import annotations

import asyncio
import selectors
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_HEAD_LIMIT = 1 << 16
_BODY_LIMIT = 64 << 20
# A client that lets this much pile up does not read; its stream is cut.
_BACKLOG_LIMIT = 16 << 20
REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class PreciseSelector(selectors.EpollSelector):
    """An epoll selector that waits to the microsecond; epoll itself rounds up to whole milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self._inner = selectors.SelectSelector()
        self._inner.register(self.fileno(), selectors.EVENT_READ)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait in select() on the epoll descriptor, then collect without waiting."""
        if timeout is None or timeout > 0:
            self._inner.select(timeout)
        return super().select(0)

    def close(self) -> None:
        """Close both selectors."""
        self._inner.close()
        super().close()


class BadRequest(Exception):
    """A request that cannot be read; carries the status to answer with."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass
class Request:
    """One request, read whole."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    version: str

    @property
    def keeps_alive(self) -> bool:
        """Tell whether the connection stays open after the answer."""
        wish = self.headers.get("connection", "").lower()
        return wish == "keep-alive" if self.version == "HTTP/1.0" else wish != "close"


@dataclass
class Exchange:
    """A request and the answer that is being sent to it."""

    request: Request
    writer: asyncio.StreamWriter
    peer: str
    is_started: bool = False
    is_chunked: bool = False
    # Set when the answer has been sent whole, and when the client has hung up.
    over: asyncio.Event = field(default_factory=asyncio.Event)
    on_start: Callable[[int], None] = lambda _status: None

    @property
    def is_over(self) -> bool:
        """Tell whether nothing more can be sent."""
        return self.over.is_set()

    def reply(self, status: int, body: bytes, content_type: str = "application/json", extra: str = "") -> None:
        """Send a whole answer."""
        self._head(status, f"content-length: {len(body)}\r\ncontent-type: {content_type}\r\n{extra}", body)
        self.over.set()

    def start_stream(self, content_type: str) -> None:
        """Send the head of an answer that comes in pieces."""
        self.is_chunked = self.request.version != "HTTP/1.0"
        coding = "transfer-encoding: chunked\r\n" if self.is_chunked else "connection: close\r\n"
        self._head(200, f"content-type: {content_type}\r\n{coding}", b"")

    def send(self, piece: bytes) -> None:
        """Send one piece at once."""
        if self.is_over or self.writer.is_closing():
            return
        if self.writer.transport.get_write_buffer_size() > _BACKLOG_LIMIT:
            self.cut()
            return
        self.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self.is_chunked else piece)

    def end_stream(self) -> None:
        """End an answer that came in pieces."""
        if not self.is_over:
            self.over.set()
            if self.is_chunked and not self.writer.is_closing():
                self.writer.write(b"0\r\n\r\n")

    def cut(self) -> None:
        """Close the connection in the middle of the answer."""
        self.over.set()
        self.writer.close()

    def _head(self, status: int, headers: str, body: bytes) -> None:
        self.is_started = True
        self.on_start(status)
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
        line = f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}"
        head = f"{line}\r\ndate: {date}\r\nserver: uvicorn\r\n{headers}\r\n"
        if not self.writer.is_closing():
            self.writer.write(head.encode("latin-1") + body)


class _Protocol(asyncio.StreamReaderProtocol):
    """Tells at once that the client has hung up, even while the answer is being made."""

    def __init__(self, loop: asyncio.AbstractEventLoop, serve: Callable[[_Protocol], Callable[..., Awaitable[None]]]):
        self._over: asyncio.Event | None = None
        super().__init__(asyncio.StreamReader(limit=_HEAD_LIMIT, loop=loop), serve(self), loop=loop)

    def watch(self, over: asyncio.Event) -> None:
        self._over = over

    def eof_received(self) -> bool:
        super().eof_received()
        self._tell()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._tell()

    def _tell(self) -> None:
        if self._over is not None:
            self._over.set()


class HttpServer:
    """Accepts connections on a bound socket and hands each request to `answer`."""

    def __init__(self, answer: Callable[[Exchange], Awaitable[None]]) -> None:
        self._answer = answer
        self._server: asyncio.AbstractServer | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def listen(self, sock: socket.socket) -> None:
        """Begin to listen; until now connections were refused."""
        loop = asyncio.get_running_loop()
        if sock.family == socket.AF_UNIX:
            self._server = await loop.create_unix_server(lambda: _Protocol(loop, self._serve), sock=sock, backlog=2048)
        else:
            self._server = await loop.create_server(lambda: _Protocol(loop, self._serve), sock=sock, backlog=2048)

    def stop_listening(self) -> None:
        """Refuse new connections."""
        if self._server is not None:
            self._server.close()

    def close_connections(self) -> None:
        """Close what is open; bytes already written still go out."""
        for writer in list(self._writers):
            writer.close()

    def _serve(self, protocol: _Protocol) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.add(writer)
            try:
                await self._converse(protocol, reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                return
            finally:
                self._writers.discard(writer)
                writer.close()

        return serve

    async def _converse(self, protocol: _Protocol, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = writer.get_extra_info("peername") or ("", 0)
        peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "local"
        while not writer.is_closing():
            try:
                request = await _read_request(reader, writer)
            except BadRequest as error:
                Exchange(Request("GET", "/", {}, b"", "HTTP/1.1"), writer, peer).reply(error.status, b"", "text/plain")
                return
            if request is None:
                return
            exchange = Exchange(request, writer, peer)
            protocol.watch(exchange.over)
            await self._answer(exchange)
            await writer.drain()
            if not request.keeps_alive or (exchange.is_started and not exchange.is_over):
                return


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """Read the next request, None when the client has closed; raises BadRequest."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        raise BadRequest(431) from None
    first, *rest = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise BadRequest(400)
    headers = {}
    for line in filter(None, rest):
        name, colon, value = line.partition(":")
        if not colon:
            raise BadRequest(400)
        headers[name.strip().lower()] = value.strip()
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await _read_body(reader, headers)
    return Request(parts[0], urlsplit(parts[1]).path, headers, body, parts[2])


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while True:
            size = _number(await reader.readline(), 16)
            if len(body) + size > _BODY_LIMIT:
                raise BadRequest(413)
            body += await reader.readexactly(size)
            await reader.readline()
            if size == 0:
                return body
    size = _number(headers.get("content-length", "0").encode(), 10)
    if size > _BODY_LIMIT:
        raise BadRequest(413)
    return await reader.readexactly(size)


def _number(text: bytes, base: int) -> int:
    try:
        number = int(text.split(b";")[0], base)
    except ValueError:
        raise BadRequest(400) from None
    if number < 0:
        raise BadRequest(400)
    return number
