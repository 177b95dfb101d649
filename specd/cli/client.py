"""The daemon's API as seen from a client: requests, errors in words, the event stream."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import aiohttp

from specd.errors import DaemonUnreachable, SpecdError

__all__ = ["ApiClient", "ApiError", "StreamLost"]

_CONNECT_S = 5.0
_HEARTBEAT_S = 20.0
_PAGE = 500


class ApiError(SpecdError):
    """The daemon refused or could not do it; code and exit status are its own."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(str(body.get("message") or f"the daemon answered with status {status}"))
        self.status = status
        self.code = str(body.get("code") or "error")
        exit_code = body.get("exit_code")
        self.exit_code = exit_code if isinstance(exit_code, int) else 1
        problems = body.get("problems")
        self.problems = problems if isinstance(problems, list) else []


class StreamLost(Exception):
    """The event stream ended without the client's wish; it goes on from the last sequence number."""


class _ConnectionBroke(DaemonUnreachable):
    """The connection ended in the middle: whether the daemon did what was asked is unknown."""


class ApiClient:
    """A client of one daemon, at a unix socket's path or at http://host:port with a token; a context manager.

    `problem` is what the daemon said is wrong with it when it was last asked for its trials.
    """

    def __init__(self, socket: str, *, token: str = "") -> None:
        self.socket = socket
        self._is_tcp = socket.startswith(("http://", "https://"))
        self._base = socket.rstrip("/") if self._is_tcp else "http://specd"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None
        self.problem = ""

    async def __aenter__(self) -> Self:
        connector = None if self._is_tcp else aiohttp.UnixConnector(path=self.socket)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str, **query: str | int) -> Any:
        """GET a path; returns its JSON. Raises DaemonUnreachable, ApiError."""
        return await self._ask("GET", path, query=query)

    async def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """POST JSON; returns the answer's JSON. Raises DaemonUnreachable, ApiError."""
        return await self._ask("POST", path, body=body or {})

    async def health(self) -> Any:
        """Return what the daemon says of itself."""
        return await self.get("/v1/health")

    async def trials(self, limit: int = 100) -> list[dict[str, Any]]:
        """Return the latest trials, newest first, read a page at a time; sets `problem`."""
        found: list[dict[str, Any]] = []
        while len(found) < limit:
            after = {"before": str(found[-1]["id"])} if found else {}
            page = await self.get("/v1/trials", limit=min(limit - len(found), _PAGE), **after)
            self.problem = str(page.get("problem") or "")
            found += page["trials"]
            if not page["trials"]:
                break
        return found

    async def trial(self, name: str) -> dict[str, Any]:
        """Return one trial by id, unique beginning of an id, or name of the latest so called."""
        return dict(await self.get(f"/v1/trials/{quote(name, safe='')}"))

    async def submit(self, file: str, text: str, *, rehearsal: bool = False) -> list[dict[str, Any]]:
        """Queue the trials of a file's text; a connection lost in between can't queue them twice."""
        body = {"file": file, "text": text, "rehearsal": rehearsal, "key": uuid.uuid4().hex}
        try:
            answer = await self.post("/v1/trials", body)
        except _ConnectionBroke:
            answer = await self.post("/v1/trials", body)
        return list(answer["trials"])

    async def plan(self, file: str, text: str, *, rehearsal: bool = False) -> list[dict[str, Any]]:
        """Return the plans of a trial file's text."""
        answer = await self.post("/v1/plan", {"file": file, "text": text, "rehearsal": rehearsal})
        return list(answer["plans"])

    async def log(self, trial: str, *, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """Return the lines of a trial's log after number `after`."""
        path = f"/v1/trials/{quote(trial, safe='')}/log"
        return list((await self.get(path, after=after, limit=limit))["lines"])

    async def past_events(self, since: int, trial: str, limit: int = 1000) -> list[dict[str, Any]]:
        """Return stored events after `since`."""
        query: dict[str, str | int] = {"since": since, "limit": limit, **({"trial": trial} if trial else {})}
        return list((await self.get("/v1/events.json", **query))["events"])

    @asynccontextmanager
    async def events(self, since: int, trial: str = "") -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Follow events after `since`, without end; the iterator raises StreamLost when the connection goes."""
        query: dict[str, str | int] = {"since": since, **({"trial": trial} if trial else {})}
        assert self._session is not None
        try:
            stream = await self._session.ws_connect(
                self._base + "/v1/events", params=query, heartbeat=_HEARTBEAT_S, max_msg_size=0
            )
        except aiohttp.WSServerHandshakeError as error:
            raise ApiError(error.status, {"message": f"the daemon refused the event stream: {error.status}"}) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from None
        try:
            yield _frames(stream)
        finally:
            await stream.close()

    async def _ask(
        self, method: str, path: str, *, query: dict[str, str | int] | None = None, body: dict[str, Any] | None = None
    ) -> Any:
        assert self._session is not None
        try:
            async with self._session.request(method, self._base + path, params=query, json=body) as answer:
                content = await _json_of(answer)
                if answer.status >= 400 or not isinstance(content, dict):
                    raise ApiError(answer.status, content if isinstance(content, dict) else {})
                return content
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: BaseException) -> DaemonUnreachable:
        cause = getattr(error, "os_error", error)
        next_step = "start it with `specd start` or `systemctl start specd`, or name its socket with --socket"
        if isinstance(cause, PermissionError):
            why, next_step = "this user may not open it", "ask as the daemon's user, or with sudo"
        elif isinstance(cause, FileNotFoundError):
            why = "there is no such socket"
        elif isinstance(cause, ConnectionRefusedError):
            why = "nobody listens there"
        elif isinstance(cause, TimeoutError):
            why = "no answer in time"
        else:
            return _ConnectionBroke(
                f"the daemon on {self.socket} broke the connection off",
                next_step="look at its log: journalctl -u specd",
            )
        return DaemonUnreachable(f"no daemon answers on {self.socket}: {why}", next_step=next_step)


async def _json_of(answer: aiohttp.ClientResponse) -> Any:
    try:
        return await answer.json(content_type=None)
    except ValueError:
        return None


async def _frames(stream: aiohttp.ClientWebSocketResponse) -> AsyncIterator[dict[str, Any]]:
    async for message in stream:
        if message.type is aiohttp.WSMsgType.TEXT:
            yield message.json()
        elif message.type is aiohttp.WSMsgType.ERROR:
            break
    raise StreamLost
