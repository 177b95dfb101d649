"""Asks an OpenAI-compatible server how it is: health, models, metrics, and whether it really makes a token."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from specd.engines.log_text import printable
from specd.errors import EngineError
from specd.hosts.host import Route

__all__ = ["FirstToken", "Health", "NoToken", "ServerProbe", "wait_listening"]

_ANSWER_TIMEOUT_S = 5.0
_BODY_LIMIT = 16 * 2**20
_WORDS_LIMIT = 500
_LOADING = ("loading", "starting", "initializ", "warming")
_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred")
_PROMPT = "Count from one to twenty."
_MAX_TOKENS = 16


_Chunk = dict[str, Any]
_TokenOf = Callable[[_Chunk], tuple[str, str] | None]


class Health(Enum):
    """What a server's port and /health say. LOADING is no failure; SICK is one that has been up, or should be."""

    NOT_LISTENING = "not-listening"
    LOADING = "loading"
    UP = "up"
    SICK = "sick"

    @property
    def words(self) -> str:
        """What a person is told of it, after the server's address."""
        return _HEALTH_WORDS[self]


_HEALTH_WORDS = {
    Health.NOT_LISTENING: "does not listen yet",
    Health.LOADING: "listens, but is still loading",
    Health.UP: "answers",
    Health.SICK: "listens, but its health check fails",
}


@dataclass(frozen=True, slots=True)
class FirstToken:
    """A generated token: its text, the channel it came through, and the seconds from request to token."""

    text: str
    channel: str
    seconds: float
    model: str = ""


class NoToken(EngineError):
    """No token came; `kind` is no-token, refused (the server says no) or model-missing; `words` are the server's."""

    code = "no-token"

    def __init__(self, what: str, *, kind: str, words: str = "", status: int = 0) -> None:
        super().__init__(what)
        self.kind = kind
        self.words = words
        self.status = status


class ServerProbe:
    """A client of one server over one route; each call has its own deadline and can be cancelled at any point."""

    def __init__(self, route: Route, *, model: str, api_key: str = "") -> None:
        self._route = route
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None
        self._was_up = False

    async def __aenter__(self) -> "ServerProbe":
        path = self._route.unix_socket
        connector = aiohttp.UnixConnector(path=path) if path else aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(
            base_url=self._route.base_url.rstrip("/") + "/",
            connector=connector,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None),
            # The environment's proxies are for the way out, not for a server on a host of ours.
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def health(self, timeout_s: float = _ANSWER_TIMEOUT_S) -> Health:
        """Ask /health; 200 says that the HTTP side is up, not that a token will come."""
        try:
            status, body = await self._get("health", timeout_s)
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError):
                return Health.SICK if self._was_up else Health.LOADING
            # A tunnel takes the connection and drops it when nobody listens at its other end.
            return Health.NOT_LISTENING
        if status == 200:
            self._was_up = True
            return Health.UP
        if status == 503 and any(word in body.lower() for word in _LOADING):
            return Health.LOADING
        if status in {401, 403, 404}:
            # It answers; some servers guard /health or have none.
            self._was_up = True
            return Health.UP
        return Health.SICK if self._was_up else Health.LOADING

    async def models(self, timeout_s: float = _ANSWER_TIMEOUT_S) -> tuple[str, ...]:
        """Return the names the server answers to; () while it has none or does not answer."""
        answer = await self._json("v1/models", timeout_s)
        rows = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(rows, list):
            return ()
        return tuple(row["id"] for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str))

    async def version(self, timeout_s: float = _ANSWER_TIMEOUT_S) -> str:
        """Return what /version says, "" where there is none."""
        answer = await self._json("version", timeout_s)
        version = answer.get("version") if isinstance(answer, dict) else None
        return version if isinstance(version, str) else ""

    async def metrics(self, timeout_s: float = _ANSWER_TIMEOUT_S) -> str | None:
        """Return the /metrics page, None where there is none or no answer."""
        try:
            status, body = await self._get("metrics", timeout_s)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        return body if status == 200 else None

    async def running(self, timeout_s: float = _ANSWER_TIMEOUT_S) -> int | None:
        """Return the number of requests that run or wait, None where the server does not tell."""
        page = await self.metrics(timeout_s)
        if page is None:
            return None
        total, is_told = 0.0, False
        for line in page.splitlines():
            name = line.partition("{")[0].partition(" ")[0]
            if name in _RUNNING or name in _WAITING:
                is_told = True
                total += _number(line)
        return int(total) if is_told else None

    async def first_token(self, timeout_s: float) -> FirstToken:
        """Have the server generate, streamed, and return the first token; raises NoToken with the server's words.

        Reasoning counts as well as content. Without a chat template, plain completions are tried.
        """
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    return await self._chat()
                except NoToken as refusal:
                    if not _may_complete(refusal):
                        raise
                    return await self._completion_after(refusal)
        except TimeoutError:
            raise NoToken(f"no token within {timeout_s:g} s", kind="no-token") from None
        except (aiohttp.ClientError, OSError) as error:
            what = str(error) or type(error).__name__
            raise NoToken(f"the connection failed before a token came: {what}", kind="no-token") from None

    async def _chat(self) -> FirstToken:
        question = {"messages": [{"role": "user", "content": _PROMPT}]}
        return await self._stream("v1/chat/completions", question, _chat_token)

    async def _completion_after(self, refusal: NoToken) -> FirstToken:
        """Try plain completions; where there are none, what was said of chat counts."""
        try:
            return await self._stream("v1/completions", {"prompt": _PROMPT}, _completion_token)
        except NoToken as other:
            raise (refusal if other.status in {404, 405} and other.kind == "refused" else other) from None

    async def _stream(self, path: str, question: dict[str, Any], token_of: _TokenOf) -> FirstToken:
        loop = asyncio.get_running_loop()
        started = loop.time()
        body = {"model": self._model, "max_tokens": _MAX_TOKENS, "temperature": 0, "stream": True, **question}
        async with self._open.post(path, json=body) as response:
            if response.status != 200:
                raise self._refusal(response.status, await _text(response))
            async for chunk in _events(response):
                found = token_of(chunk)
                if found is not None:
                    channel, text = found
                    return FirstToken(text, channel, loop.time() - started, str(chunk.get("model", "")))
        raise NoToken("the stream ended without a token", kind="no-token")

    def _refusal(self, status: int, body: str) -> NoToken:
        words = _server_words(body)
        if status == 404 and "model" in words.lower():
            return NoToken(
                f"the server does not serve {self._model!r}: {words}", kind="model-missing", words=words, status=status
            )
        return NoToken(f"the server answered {status}: {words}", kind="refused", words=words, status=status)

    async def _json(self, path: str, timeout_s: float) -> Any:
        try:
            status, body = await self._get(path, timeout_s)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        if status != 200:
            return None
        try:
            return json.loads(body)
        except json.JSONDecodeError:
            return None

    async def _get(self, path: str, timeout_s: float) -> tuple[int, str]:
        async with asyncio.timeout(timeout_s), self._open.get(path) as response:
            return response.status, await _text(response)

    @property
    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("a ServerProbe is used inside `async with`")
        return self._session


async def wait_listening(route: Route, interval_s: float = 0.05) -> None:
    """Return as soon as a server takes connections on the route; has no end of its own.

    Through a tunnel a connection proves nothing, so one byte of an answer is waited for.
    """
    while True:
        if await _takes_connections(route, patience_s=max(interval_s, 2.0)):
            return
        await asyncio.sleep(interval_s)


async def _takes_connections(route: Route, patience_s: float) -> bool:
    try:
        async with asyncio.timeout(patience_s):
            reader, writer = await _connect(route)
    except (OSError, TimeoutError):
        return False
    try:
        if route.kind == "direct":
            return True
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(patience_s):
            await writer.drain()
            return bool(await reader.read(1))
    except TimeoutError:
        # It holds the connection and says nothing yet: somebody is there.
        return True
    except OSError:
        return False
    finally:
        writer.close()


async def _connect(route: Route) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if route.unix_socket:
        return await asyncio.open_unix_connection(route.unix_socket)
    address = urlsplit(route.base_url)
    port = address.port or (443 if address.scheme == "https" else 80)
    return await asyncio.open_connection(address.hostname, port)


def _may_complete(refusal: NoToken) -> bool:
    """True where the server may still complete a plain prompt: no chat endpoint, no template, or an empty answer."""
    if refusal.kind == "no-token":
        return refusal.status == 0 and not refusal.words
    if refusal.kind == "model-missing":
        return False
    words = refusal.words.lower()
    return refusal.status in {404, 405, 501} or ("chat" in words and "template" in words)


def _chat_token(chunk: _Chunk) -> tuple[str, str] | None:
    for choice in _choices(chunk):
        delta = choice.get("delta") or choice.get("message") or {}
        if not isinstance(delta, dict):
            continue
        for channel in ("content", "reasoning", "reasoning_content"):
            text = delta.get(channel)
            if isinstance(text, str) and text:
                return channel, text
        if delta.get("tool_calls"):
            return "tool_calls", json.dumps(delta["tool_calls"])
    return None


def _completion_token(chunk: _Chunk) -> tuple[str, str] | None:
    for choice in _choices(chunk):
        text = choice.get("text")
        if isinstance(text, str) and text:
            return "text", text
    return None


def _choices(chunk: _Chunk) -> list[_Chunk]:
    choices = chunk.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[_Chunk]:
    """Yield the JSON objects of an event stream (or of a plain JSON answer); an error in it raises NoToken."""
    pending = b""
    async for piece in response.content.iter_any():
        pending += piece
        *lines, pending = pending.split(b"\n")
        for line in lines:
            chunk = _chunk_of(line)
            if chunk is not None:
                yield chunk
        if len(pending) > _BODY_LIMIT:
            raise NoToken("the server sends a line without end", kind="no-token")
    chunk = _chunk_of(pending)
    if chunk is not None:
        yield chunk


def _chunk_of(line: bytes) -> _Chunk | None:
    text = line.removeprefix(b"data:").strip()
    if not text.startswith(b"{"):
        return None
    try:
        chunk = json.loads(text)
    except ValueError:
        return None
    if not isinstance(chunk, dict):
        return None
    error = chunk.get("error")
    if error:
        words = _server_words(json.dumps(chunk))
        status = error.get("code") if isinstance(error, dict) else None
        is_refusal = isinstance(status, int) and 400 <= status < 500
        raise NoToken(
            f"the stream holds an error: {words}", kind="refused" if is_refusal else "no-token", words=words or "error"
        )
    return chunk


async def _text(response: aiohttp.ClientResponse) -> str:
    """Return a body as text, no more of it than a metrics page can have."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > _BODY_LIMIT:
            break
    return bytes(body[:_BODY_LIMIT]).decode(errors="replace")


def _server_words(body: str) -> str:
    """Return the server's own message from an error body, without control characters."""
    words = body
    try:
        told = json.loads(body)
    except ValueError:
        told = None
    if isinstance(told, dict):
        error = told.get("error", told)
        message = error.get("message") if isinstance(error, dict) else error
        words = str(message or told.get("detail") or told.get("message") or body)
    return printable(words).strip()[:_WORDS_LIMIT]


def _number(line: str) -> float:
    words = (line.rpartition("}")[2] if "{" in line else line.partition(" ")[2]).split()
    try:
        return float(words[0]) if words else 0.0
    except ValueError:
        return 0.0
