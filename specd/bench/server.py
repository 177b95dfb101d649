"""One server as the client sees it: opens streams, finds out what it can do, asks for token counts and metrics."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from types import SimpleNamespace
from typing import Any

import aiohttp

from specd.bench.plain import plain
from specd.bench.plan import BenchPlan, Level, Target
from specd.bench.prompts import Prompt
from specd.bench.sse import EventParser, OverlongEvent
from specd.bench.stream import Answer
from specd.bench.workload import CHAT, COMPLETIONS, Mode, Work, body, warm_up
from specd.errors import BenchError

__all__ = ["Server"]

# Shorter than the 5 s after which uvicorn closes an idle connection: reusing one in that moment would fail a request.
_KEEPALIVE_S = 2.0
_SIDE_REQUEST_S = 15.0
# How long a server may leave the response open after [DONE].
_CLOSING_S = 1.0
_PROBE_TOKENS = 8
_PROBE_LEVEL = Level(0, 0)
_NOT_OFFERED = (404, 405, 501)
_REFUSED = (400, 422)


class Server:
    """Requests to one target. Times are time.monotonic() seconds, the loop's own clock.

    `open` holds the answers that are being read, `most_open` how many there were at once since it was last set to 0.
    """

    def __init__(
        self, session: aiohttp.ClientSession, fresh: aiohttp.ClientSession, target: Target, plan: BenchPlan
    ) -> None:
        self.open: set[Answer] = set()
        self.most_open = 0
        self._session = session
        self._fresh = fresh
        self._cache_salt = secrets.token_hex(16)
        self._target = target
        self._plan = plan
        self._base = target.base_url.rstrip("/").removesuffix("/v1")

    @classmethod
    @asynccontextmanager
    async def connect(cls, target: Target, plan: BenchPlan) -> "AsyncIterator[Server]":
        """Open a session whose pool never makes a request wait."""
        async with _session(target, is_kept=True) as session, _session(target, is_kept=False) as fresh:
            yield cls(session, fresh, target, plan)

    async def ask(self, work: Work, mode: Mode, max_tokens: int = 0, due: float | None = None) -> Answer:
        """Send one request and read its stream to the end; whatever goes wrong is the answer's error.

        A kept connection that turns out to be closed already says nothing about the server: the request goes out once
        more, over a new one. `due` is when it should have gone out, on the loop's clock.
        """
        request = body(work, self._plan, self._target, mode, max_tokens)
        if mode.is_salted:
            request.setdefault("cache_salt", self._cache_salt)
        payload = json.dumps(request).encode()
        url = self._base + mode.path
        answer = await self._attempt(self._session, url, payload, due)
        if answer.error and answer.is_reused and answer.status == 0 and not answer.has_timed_out:
            answer = await self._attempt(self._fresh, url, payload, due)
            answer.is_resent = True
        return answer

    async def _attempt(self, session: aiohttp.ClientSession, url: str, payload: bytes, due: float | None) -> Answer:
        answer = Answer(time.monotonic(), due)
        self.open.add(answer)
        self.most_open = max(self.most_open, len(self.open))
        try:
            async with asyncio.timeout(self._plan.first_token_s) as limit:
                await self._exchange(session, url, payload, answer, limit)
        except TimeoutError:
            self._timed_out(answer)
        except OverlongEvent as error:
            answer.fail(str(error))
        except (aiohttp.ClientError, OSError) as error:
            # A server may drop the connection once it has said [DONE].
            if not answer.is_done:
                stage = "stream cut" if answer.status == 200 else "no answer"
                answer.fail(f"{stage}: {self.masked(str(error) or type(error).__name__)}")
        finally:
            self.open.discard(answer)
        return answer

    async def _exchange(
        self, session: aiohttp.ClientSession, url: str, payload: bytes, answer: Answer, limit: asyncio.Timeout
    ) -> None:
        json_header = {"Content-Type": "application/json"}
        async with session.post(
            url, data=payload, headers=json_header, allow_redirects=False, trace_request_ctx=answer
        ) as response:
            answer.status = response.status
            answer.is_compressed = response.headers.get("Content-Encoding", "identity") != "identity"
            if response.status != 200:
                text = (await response.content.read(4096)).decode(errors="replace")
                answer.fail(f"HTTP {response.status}: {self.masked(_error_text(text))}")
            elif response.content_type != "text/event-stream":
                answer.fail(f"answered with {response.content_type} instead of a stream")
            else:
                await self._read(response, answer, limit)

    async def _read(self, response: aiohttp.ClientResponse, answer: Answer, limit: asyncio.Timeout) -> None:
        parser = EventParser()
        progress_at = at = answer.progress_at
        async for chunk in response.content.iter_any():
            at = time.monotonic()
            for event in parser.feed(chunk):
                answer.take(event, at)
            if answer.error:
                answer.error = self.masked(answer.error)
                return
            if answer.is_done:
                limit.reschedule(at + _CLOSING_S)
            elif answer.progress_at > progress_at and answer.has_first_token:
                progress_at = answer.progress_at
                limit.reschedule(progress_at + self._plan.idle_s)
        answer.end(parser.close(), at)

    def _timed_out(self, answer: Answer) -> None:
        if answer.is_done:
            return
        answer.has_timed_out = True
        if answer.has_first_token:
            answer.fail(f"idle timeout: no further token for {self._plan.idle_s:g} s")
        else:
            answer.fail(f"no first token within {self._plan.first_token_s:g} s")

    async def find_mode(self, prompts: tuple[Prompt, ...]) -> Mode:
        """Find out with short requests how this server is spoken to; raises BenchError with the server's own words.

        Chat first; completions where chat is not offered or there is no chat template. Running usage first, then usage
        at the end, then none; each with a cache salt first.
        """
        work = warm_up(prompts, self._plan, _PROBE_LEVEL, 1, 0)[0]
        refusals: list[str] = []
        for endpoint in (CHAT, COMPLETIONS):
            for usage, is_salted in product(("running", "usage", "none"), (True, False)):
                mode = Mode(endpoint, usage, is_salted)
                answer = await self.ask(work, mode, min(_PROBE_TOKENS, self._plan.max_tokens))
                if not answer.error:
                    return mode
                refusals.append(answer.error)
                if answer.status in _NOT_OFFERED or "chat template" in answer.error.lower():
                    break
                if answer.status not in _REFUSED:
                    raise BenchError(f"the server does not answer the benchmark's first request: {answer.error}")
            else:
                break
        raise BenchError(f"the server refuses the benchmark's parameters: {refusals[0]}")

    async def count_tokens(self, text: str) -> int | None:
        """Ask the server how many tokens a text has; None when it can't tell."""
        question = {"model": self._target.model, "prompt": text, "content": text, "add_special_tokens": False}
        try:
            async with (
                asyncio.timeout(_SIDE_REQUEST_S),
                self._session.post(self._base + "/tokenize", json=question) as response,
            ):
                found: Any = await response.json(content_type=None) if response.status == 200 else {}
        except (aiohttp.ClientError, OSError, ValueError):
            return None
        if not isinstance(found, dict):
            return None
        count, tokens = found.get("count"), found.get("tokens")
        if isinstance(count, int):
            return count
        return len(tokens) if isinstance(tokens, list) else None

    async def metrics(self) -> str:
        """Return the /metrics page; "" when there is none."""
        try:
            async with (
                asyncio.timeout(_SIDE_REQUEST_S),
                self._session.get(self._base + "/metrics") as response,
            ):
                return await response.text(errors="replace") if response.status == 200 else ""
        except (aiohttp.ClientError, OSError):
            return ""

    def masked(self, text: str) -> str:
        """Return text without the API key, on one line and fit to show."""
        if self._target.api_key:
            text = text.replace(self._target.api_key, "***")
        return plain(text, 400)


def _session(target: Target, *, is_kept: bool) -> aiohttp.ClientSession:
    """Return a session that keeps its connections for a while, or takes a new one for each request."""
    options: dict[str, Any] = (
        {"limit": 0, "keepalive_timeout": _KEEPALIVE_S} if is_kept else {"limit": 0, "force_close": True}
    )
    connector: aiohttp.BaseConnector
    if target.unix_socket is not None:
        connector = aiohttp.UnixConnector(target.unix_socket, **options)
    else:
        connector = aiohttp.TCPConnector(**options)
    # Compression would add its own buffering to what is timed.
    headers = {"Accept-Encoding": "identity"}
    if target.api_key:
        headers["Authorization"] = f"Bearer {target.api_key}"
    unlimited = aiohttp.ClientTimeout(total=None, connect=None, sock_read=None, sock_connect=None)
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)
    trace.on_connection_create_start.append(_note_connecting)
    trace.on_connection_create_end.append(_note_connected)
    # Not at the headers: those wait for the body, and many other requests may go first.
    trace.on_request_chunk_sent.append(_note_send)
    return aiohttp.ClientSession(connector=connector, timeout=unlimited, headers=headers, trace_configs=[trace])


async def _note_send(_session: object, context: SimpleNamespace, _params: object) -> None:
    """Start the clock when the bytes go out: neither building the request nor opening a connection is the server's."""
    if isinstance(context.trace_request_ctx, Answer):
        context.trace_request_ctx.sent = context.trace_request_ctx.progress_at = time.monotonic()


async def _note_connecting(_session: object, context: SimpleNamespace, _params: object) -> None:
    """Note when opening a connection began."""
    context.connecting_at = time.monotonic()


async def _note_connected(_session: object, context: SimpleNamespace, _params: object) -> None:
    """Take the time for opening a connection out of the client's own delay."""
    if isinstance(context.trace_request_ctx, Answer):
        context.trace_request_ctx.connecting_s = time.monotonic() - context.connecting_at


async def _note_reuse(_session: object, context: SimpleNamespace, _params: object) -> None:
    """Mark the answer that is about to go out over a connection that was used before."""
    if isinstance(context.trace_request_ctx, Answer):
        context.trace_request_ctx.is_reused = True


def _error_text(text: str) -> str:
    """Return the message of an error body, or the body."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    error = found.get("error", found) if isinstance(found, dict) else found
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or text
    return str(error)
