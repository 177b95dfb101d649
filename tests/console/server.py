"""A daemon's API on a real unix socket, whose story a test tells: what it answers, streams and refuses."""

import asyncio
import json
from pathlib import Path
from typing import Any

from aiohttp import web

from states.events import Event
from states.wire import encode
from tests.console import story


class ApiServer:
    """Serves the console's part of the API; `asked` are the requests that change something, in order."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.trials = story.briefs()
        self.wholes = {brief["id"]: story.whole(brief["id"]) for brief in self.trials}
        self.services = story.services()
        self.lines = story.log_lines()
        self.events: list[dict[str, Any]] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.since: list[int] = []
        self.refusal: dict[str, Any] | None = None
        self.trials_error: dict[str, Any] | None = None
        self.problem: str | None = None
        self.seq = 100
        self._streams: set[web.WebSocketResponse] = set()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Begin to serve."""
        app = web.Application()
        app.router.add_get("/v1/health", self._health)
        app.router.add_get("/v1/services", self._of("services", lambda: self.services))
        app.router.add_get("/v1/trials", self._trials)
        app.router.add_get("/v1/trials/{trial}", self._trial)
        app.router.add_get("/v1/trials/{trial}/log", self._log)
        app.router.add_get("/v1/events.json", self._past)
        app.router.add_get("/v1/events", self._stream)
        app.router.add_post("/v1/{tail:.*}", self._steer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self.socket)).start()

    async def stop(self) -> None:
        """Be gone, as a daemon that was stopped."""
        for stream in list(self._streams):
            await stream.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self.socket.unlink(missing_ok=True)

    async def cut(self) -> None:
        """Let all streams come again, as a daemon whose health has changed."""
        for stream in list(self._streams):
            await stream.close()

    async def tell(self, event: Event) -> None:
        """Store an event and send it to all streams."""
        self.seq += 1
        body = {**encode(event), "seq": self.seq}
        self.events.append(body)
        await self.send(body)

    async def send(self, body: Any) -> None:
        """Send a frame to all streams, stored or not."""
        for stream in list(self._streams):
            await stream.send_str(json.dumps(body))

    def change(self, trial: str, **fields: Any) -> None:
        """Change what snapshots say of a trial."""
        self.wholes[trial].update(fields)
        for brief in self.trials:
            if brief["id"] == trial:
                brief.update({key: value for key, value in fields.items() if key in brief})

    async def _health(self, _: web.Request) -> web.Response:
        state = "degraded" if self.problem else "ok"
        return web.json_response(
            {"state": state, "problem": self.problem, "version": "0.1.0", "pid": 1, "seq": self.seq}
        )

    @staticmethod
    def _of(name: str, read: Any) -> Any:
        async def answer(_: web.Request) -> web.Response:
            return web.json_response({name: read()})

        return answer

    async def _trials(self, _: web.Request) -> web.Response:
        if self.trials_error is not None:
            return web.json_response(self.trials_error, status=401)
        return web.json_response({"trials": self.trials})

    async def _trial(self, request: web.Request) -> web.Response:
        found = self.wholes.get(request.match_info["trial"])
        if found is None:
            return web.json_response({"code": "not-found", "message": "no such trial"}, status=404)
        return web.json_response(found)

    async def _log(self, request: web.Request) -> web.Response:
        after, limit = int(request.query["after"]), int(request.query["limit"])
        if after < 0:
            after = max(0, len(self.lines) + after)
        return web.json_response({"lines": self.lines[after : after + limit]})

    async def _past(self, request: web.Request) -> web.Response:
        since, trial = int(request.query["since"]), request.query["trial"]
        return web.json_response({"events": [e for e in self.events if e["seq"] > since and e["trial"] == trial]})

    async def _stream(self, request: web.Request) -> web.WebSocketResponse:
        since = int(request.query["since"])
        self.since.append(since)
        stream = web.WebSocketResponse()
        await stream.prepare(request)
        for event in self.events:
            if event["seq"] > since:
                await stream.send_str(json.dumps(event))
        self._streams.add(stream)
        try:
            async for _ in stream:
                pass
        finally:
            self._streams.discard(stream)
        return stream

    async def _steer(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, await request.json()))
        if self.refusal is not None:
            return web.json_response(self.refusal, status=409)
        return web.json_response({"id": story.LOADING, "deadline_at": "2026-03-01T14:19:00.000Z"}, status=202)


async def until(test: Any, within_s: float = 30.0) -> None:
    """Wait until a condition of another task holds."""
    async with asyncio.timeout(within_s):
        while not test():
            await asyncio.sleep(0.01)
