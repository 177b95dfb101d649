"""The HTTP server: the route table on a unix socket (and on TCP with a token), errors as JSON, the event stream."""

import contextlib
import hmac
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from inspect import isawaitable
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from specd.api import exposition, openapi
from specd.api.routes import ROUTES, Route
from specd.api.service import Application
from specd.api.stream import stream_events
from specd.errors import ConfigError, NotFound, Refused, SpecdError, UsageError
from specd.settings import DaemonSettings

__all__ = ["build", "serve"]

log = structlog.get_logger()

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_STATUSES: tuple[tuple[type[SpecdError], int], ...] = (
    (NotFound, 404),
    (ConfigError, 422),
    (UsageError, 400),
    (Refused, 409),
)


@contextlib.asynccontextmanager
async def serve(application: Application, socket: Path, settings: DaemonSettings) -> AsyncIterator[None]:
    """Serve until the context ends. The caller holds the directory's lock, so a socket file there is a dead one's."""
    runner = web.AppRunner(build(application), shutdown_timeout=1.0, access_log=None)
    await runner.setup()
    try:
        _forget(socket)
        await web.UnixSite(runner, str(socket)).start()
        os.chmod(socket, 0o600)
        if settings.tcp:
            token = _token(settings)
            guarded = web.AppRunner(build(application, token), shutdown_timeout=1.0, access_log=None)
            await guarded.setup()
            address, _, port = settings.tcp.rpartition(":")
            await web.TCPSite(guarded, address.strip("[]") or "127.0.0.1", int(port)).start()
        yield
    finally:
        if settings.tcp:
            await guarded.cleanup()
        await runner.cleanup()
        _forget(socket)


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

    async def events(request: web.Request) -> web.StreamResponse:
        if not request.query.get("since", "0").isdigit():
            raise UsageError("'since' must be a number")
        return await stream_events(request, application.store, application.bus)

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
        body = await _body(request) if any(field.where == "body" for field in route.fields) else {}
        sources: dict[str, Any] = {"path": request.match_info, "query": request.query, "body": body}
        known = {field.name for field in route.fields if field.where == "body"}
        if strange := set(body) - known:
            raise UsageError(f"unknown field {sorted(strange)[0]!r}; known: {', '.join(sorted(known))}")
        got = {field.name: field.read(sources[field.where].get(field.name)) for field in route.fields}
        answer = route.answer(application, got)
        return web.json_response(await answer if isawaitable(answer) else answer, status=route.status)

    return handle


async def _body(request: web.Request) -> dict[str, Any]:
    text = await request.text()
    try:
        body = json.loads(text) if text else {}
    except json.JSONDecodeError as error:
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
            body["problems"] = [{"file": p.file, "line": p.line, "key": p.key, "text": p.text} for p in error.problems]
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
        if not hmac.compare_digest(request.headers.get("Authorization", "").encode(), expected):
            return web.json_response(
                {"code": "token", "message": "a bearer token is needed", "exit_code": 3}, status=401
            )
        return await handler(request)

    return check
