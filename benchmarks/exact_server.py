"""A server that knows to the microsecond when it sent each token: `python -m benchmarks.exact_server --step-ms 20`.

It speaks OpenAI's API over plain sockets, and makes tokens in steps as an engine does: in each step every open request
gets its next token (or, with --per-chunk N, every Nth step N of them in one event). What it notes are the moments of
its writes on the machine's monotonic clock, so a client is held against what really went out, however late that was.
GET /truth returns the figures of the requests that have ended since the last one; the port is printed at the start.
"""

import argparse
import asyncio
import json
import time
from typing import Any

_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_MODEL = "m"


class Answer:
    """One request on its way."""

    def __init__(self, transport: asyncio.WriteTransport, body: dict[str, Any], path: str, first_at: float) -> None:
        self.is_chat = "chat" in path
        self.arrived = time.monotonic()
        self.first_at = first_at
        self.wanted = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        self.sent = 0
        self.first = self.last = 0.0
        self.first_tokens = 0
        options = body.get("stream_options") or {}
        self._has_usage = bool(options.get("include_usage"))
        self._has_running = bool(options.get("continuous_usage_stats"))
        self._transport = transport
        self._head = {
            "id": "chatcmpl-0123456789abcdef", "created": 1700000000, "model": _MODEL,
            "object": "chat.completion.chunk" if self.is_chat else "text_completion",
        }  # fmt: skip
        transport.write(_STREAM)
        if self.is_chat:
            self._write({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})

    @property
    def is_gone(self) -> bool:
        """True when the client has hung up."""
        return self._transport.is_closing()

    def step(self, count: int) -> bool:
        """Send up to `count` tokens in one event; return True when that was the last one."""
        count = min(count, self.wanted - self.sent)
        self.sent += count
        is_last = self.sent >= self.wanted
        text, finish = " word" * count, "length" if is_last else None
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        choice |= {"delta": {"content": text}} if self.is_chat else {"text": text}
        body: dict[str, Any] = {"choices": [choice]}
        if self._has_running:
            body["usage"] = self._usage()
        now = time.monotonic()
        self._write(body)
        if not self.first:
            self.first, self.first_tokens = now, count
        self.last = now
        if is_last:
            if self._has_usage:
                self._write({"choices": [], "usage": self._usage()})
            self._transport.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        return is_last

    def truth(self) -> dict[str, float]:
        """Return the figures that a client should find."""
        later = self.sent - self.first_tokens
        return {
            "ttft_ms": (self.first - self.arrived) * 1000,
            "tpot_ms": (self.last - self.first) * 1000 / later if later else 0.0,
            "tokens": self.sent,
        }

    def _usage(self) -> dict[str, int]:
        return {"prompt_tokens": 20, "completion_tokens": self.sent, "total_tokens": 20 + self.sent}

    def _write(self, body: dict[str, Any]) -> None:
        data = b"data: " + json.dumps({**self._head, **body}).encode() + b"\n\n"
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))


class Engine:
    """All open requests, and what has become of those that ended."""

    def __init__(self, step_ms: float, first_ms: float, per_chunk: int) -> None:
        self.open: list[Answer] = []
        self.ended: list[dict[str, float]] = []
        self._step_s = step_ms / 1000 * per_chunk
        self._first_s = first_ms / 1000
        self._per_chunk = per_chunk
        self._due = 0.0

    def add(self, transport: asyncio.WriteTransport, body: dict[str, Any], path: str) -> None:
        """Take a request; the steps begin with the first one."""
        now = time.monotonic()
        self.open.append(Answer(transport, body, path, now + self._first_s))
        if len(self.open) == 1:
            self._due = now
            self._next()

    def _next(self) -> None:
        self._due += self._step_s
        asyncio.get_running_loop().call_at(self._due, self._step)

    def _step(self) -> None:
        now = time.monotonic()
        left = []
        for answer in self.open:
            if answer.is_gone:
                continue
            if now >= answer.first_at and answer.step(self._per_chunk):
                self.ended.append(answer.truth())
            else:
                left.append(answer)
        self.open = left
        if left:
            self._next()


class Connection(asyncio.Protocol):
    """One connection: requests one after the other."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._seen += data
        head, mark, rest = self._seen.partition(b"\r\n\r\n")
        if not mark:
            return
        lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        size = int(headers.get("content-length", 0))
        if len(rest) < size:
            return
        self._seen = rest[size:]
        _, path, _ = lines[0].split(" ")
        self._answer(path, json.loads(rest[:size]) if size else {})

    def _answer(self, path: str, body: dict[str, Any]) -> None:
        if path.endswith("completions") and body.get("stream"):
            self._engine.add(self._transport, body, path)
        elif path.endswith("completions"):
            self._reply({"choices": [{"index": 0, "message": {"role": "assistant", "content": " word"}, "text": " w"}]})
        elif path.startswith("/v1/models"):
            self._reply({"object": "list", "data": [{"id": _MODEL, "object": "model"}]})
        elif path == "/truth":
            self._reply(self._engine.ended)
            self._engine.ended = []
        elif path == "/health":
            self._reply({})
        else:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    def _reply(self, body: Any) -> None:
        data = json.dumps(body).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self._transport.write(head.encode() + data)


async def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--first-ms", type=float, default=50.0)
    parser.add_argument("--per-chunk", type=int, default=1)
    given = parser.parse_args()
    engine = Engine(given.step_ms, given.first_ms, given.per_chunk)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(engine), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
