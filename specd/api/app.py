"""The HTTP server: the route table on a unix socket (and on TCP with a token), errors as JSON, the event stream."""

import asyncio
import contextlib
import dataclasses
import hmac
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from inspect import isawaitable
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from specd.api import exposition, openapi
from specd.api.routes import ROUTES, STREAM_FIELDS, Field, Route
from specd.api.service import Application
from specd.api.stream import Streams
from specd.errors import ConfigError, Degraded, NotFound, Refused, SpecdError, StoreError, UsageError
from specd.settings import DaemonSettings
from specd.store import is_locked

__all__ = ["build", "serve"]

log = structlog.get_logger()

# Another program that has the database may be done soon; an operation that could not store anything has done nothing.
_LOCKED_S = 5.0
_LOCKED_RETRY_S = 0.2

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_STATUSES: tuple[tuple[type[SpecdError], int], ...] = (
    (NotFound, 404),
    (ConfigError, 422),
    (UsageError, 400),
    (Degraded, 503),
    (Refused, 409),
    (StoreError, 503),
)


@contextlib.asynccontextmanager
async def serve(application: Application, socket: Path, settings: DaemonSettings) -> AsyncIterator[None]:
    """Serve until the context ends. The caller holds the directory's lock, so a socket file there is a dead one's."""
    async with contextlib.AsyncExitStack() as ending:
        if settings.tcp:
            guarded = await _runner(build(application, _token(settings)), ending)
            await _listen_on_tcp(guarded, settings.tcp)
        runner = await _runner(build(application), ending)
        ending.callback(_forget, socket)
        _forget(socket)
        await web.UnixSite(runner, str(socket)).start()
        os.chmod(socket, 0o600)
        yield


async def _runner(app: web.Application, ending: contextlib.AsyncExitStack) -> web.AppRunner:
    runner = web.AppRunner(app, shutdown_timeout=1.0, access_log=None)
    await runner.setup()
    ending.push_async_callback(runner.cleanup)
    return runner


async def _listen_on_tcp(runner: web.AppRunner, where: str) -> None:
    address, _, port = where.rpartition(":")
    try:
        await web.TCPSite(runner, address.strip("[]") or "127.0.0.1", int(port)).start()
    except OSError as error:
        raise UsageError(f"daemon.tcp: can't listen on {where}: {error.strerror}") from error


def _forget(socket: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        socket.unlink()


def _token(settings: DaemonSettings) -> str:
    try:
        token = Path(settings.token_file).expanduser().read_text().strip()
    except OSError as error:
        raise UsageError(f"daemon.tcp needs daemon.token_file, which can't be read: {error}") from error
    if len(token) < 16:
        raise UsageError(f"the token in {settings.token_file} is shorter than 16 characters")
    return token


def build(application: Application, token: str = "") -> web.Application:
    """Return the aiohttp application; with a token, every request must bear it."""
    middlewares: list[Middleware] = [_errors, _bearer(token)] if token else [_errors]
    app = web.Application(middlewares=middlewares, client_max_size=4 * 2**20)
    for route in ROUTES:
        app.router.add_route(route.method, route.path, _handler(route, application))

    streams = Streams(application.store, application.bus)
    app.on_shutdown.append(streams.close)

    async def events(request: web.Request) -> web.StreamResponse:
        _refuse_unknown(request.query, STREAM_FIELDS, "query")
        got = {field.name: field.read(request.query.get(field.name)) for field in STREAM_FIELDS}
        return await streams.serve(request, got["since"], got["trial"] or None)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=exposition.page(application), headers={"Content-Type": exposition.CONTENT_TYPE})

    async def description(_: web.Request) -> web.Response:
        return web.json_response(openapi.document())

    app.router.add_get("/v1/events", events)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/openapi.json", description)
    return app


def _handler(route: Route, application: Application) -> _Handler:
    async def handle(request: web.Request) -> web.Response:
        body = await _body(request) if route.method == "POST" else {}
        sources: dict[str, Any] = {"path": request.match_info, "query": request.query, "body": body}
        for where in ("body", "query"):
            _refuse_unknown(sources[where], route.fields, where)
        got = {field.name: field.read(sources[field.where].get(field.name)) for field in route.fields}
        return web.json_response(await _answer(route, application, got), status=route.status)

    return handle


async def _answer(route: Route, application: Application, got: dict[str, Any]) -> dict[str, Any]:
    until = time.monotonic() + _LOCKED_S
    while True:
        try:
            answer = route.answer(application, got)
            return await answer if isawaitable(answer) else answer
        except StoreError as error:
            if not is_locked(error) or time.monotonic() > until:
                raise
        await asyncio.sleep(_LOCKED_RETRY_S)


def _refuse_unknown(given: Mapping[str, Any], fields: tuple[Field, ...], where: str) -> None:
    known = sorted(field.name for field in fields if field.where == where)
    if strange := sorted(set(given) - set(known)):
        kind = "field" if where == "body" else "parameter"
        raise UsageError(f"unknown {kind} {strange[0]!r}; known: {', '.join(known) or 'none'}")


async def _body(request: web.Request) -> dict[str, Any]:
    content = await request.read()
    try:
        body = json.loads(content) if content else {}
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise UsageError("the body must be a JSON object")
    return body


@web.middleware
async def _errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Turn our errors into `{code, message, exit_code}`; the one other place that may catch everything."""
    try:
        return await handler(request)
    except SpecdError as error:
        status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 502)
        body: dict[str, Any] = {"code": error.code, "message": str(error), "exit_code": error.exit_code}
        if isinstance(error, ConfigError):
            body["problems"] = [dataclasses.asdict(problem) for problem in error.problems]
        return web.json_response(body, status=status)
    except web.HTTPException as error:
        code = "not-found" if error.status == 404 else "usage"
        return web.json_response({"code": code, "message": error.reason, "exit_code": 2}, status=error.status)
    except Exception as error:
        log.exception("api.fault", path=request.path)
        body = {"code": "internal", "message": f"specd itself failed: {error!r}", "exit_code": 1}
        return web.json_response(body, status=500)


def _bearer(token: str) -> Middleware:
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def check(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if not hmac.compare_digest(request.headers.get("Authorization", "").encode(errors="surrogateescape"), expected):
            return web.json_response(
                {"code": "token", "message": "a bearer token is needed", "exit_code": 3}, status=401
            )
        return await handler(request)

    return check
