"""The daemon's API as the console sees it: requests, errors in words, the event stream. The only module with I/O."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import aiohttp

from tui.words import clean

__all__ = ["ApiClient", "Away", "Refused"]

_CONNECT_S = 5.0
_ANSWER_S = 30.0
_HEARTBEAT_S = 20.0

Json = dict[str, Any]


class Away(Exception):
    """The daemon can't be reached or broke the connection off; the text says why, for a person."""


class Refused(Exception):
    """The daemon answered with an error; the text is its own."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(clean(body.get("message") or f"the daemon answered with status {status}"))
        self.status = status
        self.code = str(body.get("code") or "error")


class ApiClient:
    """A client of one daemon, at a unix socket's path or at http(s)://host:port with a token; a context manager."""

    def __init__(self, address: str, token: str = "") -> None:
        self.address = address
        self._is_tcp = address.startswith(("http://", "https://"))
        self._base = address.rstrip("/") if self._is_tcp else "http://specd"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = None if self._is_tcp else aiohttp.UnixConnector(path=self.address)
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S, sock_connect=_CONNECT_S)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def health(self) -> Json:
        """Return who answers. All calls raise Away and Refused."""
        return await self._ask("GET", "/v1/health")

    async def services(self) -> list[Json]:
        """Return each service: what holds it, what serves."""
        return _records(await self._ask("GET", "/v1/services"), "services")

    async def trials(self, limit: int) -> list[Json]:
        """Return the latest trials, newest first."""
        return _records(await self._ask("GET", "/v1/trials", {"limit": limit}), "trials")

    async def trial(self, trial: str) -> Json:
        """Return one trial, whole."""
        return await self._ask("GET", f"/v1/trials/{quote(trial, safe='')}")

    async def log(self, trial: str, after: int, limit: int) -> list[Json]:
        """Return journal lines after number `after`; a negative one counts from the end."""
        query = {"after": after, "limit": limit}
        return _records(await self._ask("GET", f"/v1/trials/{quote(trial, safe='')}/log", query), "lines")

    async def past_events(self, since: int, trial: str, limit: int) -> list[Json]:
        """Return a trial's stored events after `since`, oldest first."""
        query: dict[str, str | int] = {"since": since, "trial": trial, "limit": limit}
        return _records(await self._ask("GET", "/v1/events.json", query), "events")

    async def cancel(self, trial: str, by: str) -> Json:
        """End a trial."""
        return await self._ask("POST", f"/v1/trials/{quote(trial, safe='')}/cancel", body={"by": by})

    async def extend(self, trial: str, minutes: float) -> Json:
        """Give the running state of a trial more time."""
        return await self._ask("POST", f"/v1/trials/{quote(trial, safe='')}/extend", body={"minutes": minutes})

    async def rollback(self, service: str, by: str) -> Json:
        """Bring a service's baseline back."""
        return await self._ask("POST", f"/v1/services/{quote(service, safe='')}/rollback", body={"by": by})

    @contextlib.asynccontextmanager
    async def events(self, since: int) -> AsyncIterator[AsyncIterator[Json]]:
        """Follow the events after `since`, without end; the iterator raises Away when the connection goes."""
        assert self._session is not None, "the client is not open"
        try:
            async with asyncio.timeout(_CONNECT_S):
                socket = await self._session.ws_connect(
                    self._base + "/v1/events", params={"since": since}, heartbeat=_HEARTBEAT_S, max_msg_size=0
                )
        except aiohttp.WSServerHandshakeError as error:
            raise Refused(error.status, {"message": f"the event stream was refused: {error.status}"}) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._away(error) from None
        try:
            yield _frames(socket)
        finally:
            await socket.close()

    async def _ask(self, method: str, path: str, query: dict[str, Any] | None = None, body: Json | None = None) -> Json:
        assert self._session is not None, "the client is not open"
        try:
            async with self._session.request(method, self._base + path, params=query, json=body) as answer:
                try:
                    content = await answer.json(content_type=None)
                except ValueError:
                    content = None
                if answer.status >= 400 or not isinstance(content, dict):
                    raise Refused(answer.status, content if isinstance(content, dict) else {})
                return content
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._away(error) from None

    def _away(self, error: BaseException) -> Away:
        cause = getattr(error, "os_error", error)
        if isinstance(cause, PermissionError):
            return Away(f"this user may not open {self.address}; ask as the daemon's user, or with sudo")
        if isinstance(cause, FileNotFoundError):
            return Away(f"there is no socket at {self.address}; start the daemon, or name its socket with --socket")
        if isinstance(cause, ConnectionRefusedError):
            return Away(f"nobody listens at {self.address}; start the daemon, or name its socket with --socket")
        if isinstance(cause, TimeoutError):
            return Away(f"no answer in time from {self.address}")
        return Away(f"the daemon at {self.address} broke the connection off")


def _records(answer: Json, key: str) -> list[Json]:
    found = answer.get(key)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


async def _frames(socket: aiohttp.ClientWebSocketResponse) -> AsyncIterator[Json]:
    async for message in socket:
        if message.type is not aiohttp.WSMsgType.TEXT:
            break
        try:
            frame = message.json()
        except ValueError:
            continue
        if isinstance(frame, dict):
            yield frame
    raise Away("the event stream ended")
