"""A daemon's API on a real unix socket with answers laid down by a test, and a runner for the real command line."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import WSCloseCode, web

REPO = Path(__file__).parents[2]


@dataclass
class Daemon:
    """What it will answer, and what it was asked. `streams` holds one list of events for each connection in turn."""

    socket: Path
    trials: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    streams: list[list[dict[str, Any]]] = field(default_factory=list)
    stored: list[dict[str, Any]] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    stream_queries: list[dict[str, str]] = field(default_factory=list)
    on_stream_end: Callable[[], None] = lambda: None
    hangs_up_on: str = ""
    problem: str | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.method == "POST" and request.can_read_body else None
        self.asked.append((request.method, request.path_qs, body))
        if self.hangs_up_on and request.path == self.hangs_up_on:
            self.hangs_up_on = ""
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if request.path == "/v1/events":
            return await self._stream(request)
        if request.path == "/v1/events.json":
            since, limit = int(request.query["since"]), int(request.query["limit"])
            later = [event for event in self.stored if event["seq"] > since]
            return web.json_response({"events": later[:limit]})
        if request.path == "/v1/health" and request.path not in self.answers:
            return web.json_response({"state": "degraded" if self.problem else "ok", "problem": self.problem})
        if request.path.endswith("/log"):
            after, limit = int(request.query["after"]), int(request.query["limit"])
            return web.json_response({"lines": [line for line in self.log if line["n"] > after][:limit]})
        if request.path.endswith("/levels"):
            return web.json_response({"baseline": [], "candidate": [], "policy": {}})
        name = request.path.removeprefix("/v1/trials/")
        if request.method == "GET" and name in self.trials:
            return web.json_response(self.trials[name])
        status, answer = self.answers.get(
            request.path, (404, {"code": "not-found", "message": f"no such thing: {request.path}", "exit_code": 2})
        )
        return web.json_response(answer, status=status)

    async def _stream(self, request: web.Request) -> web.WebSocketResponse:
        self.stream_queries.append(dict(request.query))
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        events = self.streams.pop(0) if self.streams else []
        for event in events:
            await socket.send_str(json.dumps(event))
        self.on_stream_end()
        if self.streams:
            await socket.close(code=WSCloseCode.TRY_AGAIN_LATER)
            return socket
        async for _ in socket:
            pass
        return socket


@asynccontextmanager
async def daemon_at(socket: Path) -> AsyncIterator[Daemon]:
    """Serve until the context ends."""
    daemon = Daemon(socket)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", daemon.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.5)
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    try:
        yield daemon
    finally:
        await runner.cleanup()


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str


def environment(**more: str) -> dict[str, str]:
    """The environment of a user without a session, a config or a daemon; the tree is importable."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPO), "HOME": "/nonexistent", "LANG": "C.UTF-8", **more}


async def specd(*words: str, stdin: bytes = b"", cwd: Path | None = None, **env: str) -> Ended:
    """Run `python -m specd` to its end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specd", *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(**env),
        cwd=cwd,
    )
    out, err = await asyncio.wait_for(process.communicate(stdin), 30)
    assert process.returncode is not None
    assert b"Traceback" not in err, err.decode()
    return Ended(process.returncode, out.decode(), err.decode())


def trial(state: str = "restored", outcome: str | None = "worse", **more: Any) -> dict[str, Any]:
    """A whole trial as the API shows it: the story that the product is about."""
    history = [
        {"state": "queued", "trigger": "submit", "at": "2026-01-31T12:00:00.000Z", "cause": ""},
        {"state": "baseline", "trigger": "start", "at": "2026-01-31T12:00:00.500Z", "cause": ""},
        {"state": state, "trigger": "restored", "at": "2026-01-31T12:31:00.500Z", "cause": "token seen"},
    ]
    side = {"concurrency": 1, "ttft_ms": {"median": 210.0, "p95": 400.0, "mean": 230.0}, "error_rate": 0.0}
    return {
        "id": "ab12cd",
        "name": "ngram-5-4",
        "service": "kimi",
        "host": "gpu1",
        "state": state,
        "outcome": outcome,
        "reason": "verifying 6 tokens wakes more experts than decoding one",
        "class": None,
        "failure": None,
        "serving": "the baseline vllm-kimi.service",
        "created_at": "2026-01-31T12:00:00.000Z",
        "deadline_at": None,
        "progress": None,
        "history": history,
        "changes": {"flags": {"speculative-config": {"method": "ngram"}, "api-key": "sk-1"}, "env": {"A": None}},
        "baseline": {
            "unit": "vllm-kimi.service",
            "invocation": "i1",
            "levels": [{**side, "tpot_ms": {"median": 13.6}, "output_tok_s": 74.0}],
        },
        "candidate": {
            "unit": "specd-ab12cd.service",
            "invocation": "i2",
            "levels": [{**side, "tpot_ms": {"median": 17.0}, "output_tok_s": 59.2, "acceptance_length": 2.41}],
        },
        "comparison": {"metric": "tpot", "estimate": -0.2, "low": -0.22, "high": -0.18, "level": 1, "confidence": 0.95},
        "guard": {"state": "disarmed"},
        "checks": [
            {"name": "unit.argv", "status": "passed", "evidence": "", "fix": ""},
            {"name": "engine.flags", "status": "unchecked", "evidence": "no GPU\x1b[31m", "fix": "run it there"},
        ],
        **more,
    }


def moved(seq: int, source: str, trigger: str, target: str, second: int = 0, **more: Any) -> dict[str, Any]:
    """A TrialMoved event on the wire."""
    return {
        "v": 1,
        "type": "TrialMoved",
        "seq": seq,
        "at": f"2026-01-31T12:31:{second:02}.500Z",
        "trial": "ab12cd",
        "service": "kimi",
        "source": source,
        "trigger": trigger,
        "target": target,
        **more,
    }
