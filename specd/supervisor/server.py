"""The supervisor's protocol: JSON lines over a unix socket, for processes of its own user only.

A request is {"id", "do", ...}; its answer {"id", "ok": ...} or {"id", "error", "code"}. `journal` answers with lines
{"id", "record"} and, unless it follows, ends with {"id", "ok"}; a connection that follows serves nothing else.
"""

import asyncio
import json
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from specd.supervisor.journal import Reader
from specd.supervisor.supervisor import NoSuchUnit, Supervisor, log
from specd.supervisor.unit import BadUnit
from specd.supervisor.verbs import BadRequest, Request, Verbs, field_of

__all__ = ["LINE_BYTES", "SOCKET_NAME", "TIED_NAME", "Server", "short_path"]

SOCKET_NAME = "supervisor.sock"
TIED_NAME = "supervisor.tied"
LINE_BYTES = 2**20
RECORDS_A_TURN = 200
LONGEST_PATH = 100
CODES = {NoSuchUnit: "no-such-unit", BadUnit: "bad-unit", OSError: "file", BadRequest: "bad-request"}


def short_path(path: Path) -> tuple[str, int | None]:
    """Return a way to name a socket's path that fits into an address, and a descriptor to close afterwards."""
    if len(os.fsencode(path)) <= LONGEST_PATH:
        return str(path), None
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    return f"/proc/self/fd/{directory}/{path.name}", directory


def _peer_uid(writer: asyncio.StreamWriter) -> int:
    peer: socket.socket = writer.get_extra_info("socket")
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)


class Server:
    """Serves one supervisor on one listening socket."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._directory = supervisor.directory
        self._journal_of = supervisor.journal
        self._verbs = Verbs(supervisor)
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}

    async def listen(self) -> None:
        """Take over the socket's path; the caller holds the directory's lock."""
        path = self._directory / SOCKET_NAME
        with suppress(FileNotFoundError):
            os.unlink(path)
        name, directory = short_path(path)
        try:
            self._server = await asyncio.start_unix_server(self._connected, name, limit=LINE_BYTES)
        finally:
            if directory is not None:
                os.close(directory)
        os.chmod(path, 0o600)

    async def close(self) -> None:
        """Stop listening and end all connections."""
        if self._server is not None:
            self._server.close()
        with suppress(FileNotFoundError):
            os.unlink(self._directory / SOCKET_NAME)
        open_now = dict(self._connections)
        for writer in open_now:
            writer.transport.abort()
        await asyncio.gather(*(task for task in open_now.values() if task is not None))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections[writer] = asyncio.current_task()
        try:
            if _peer_uid(writer) == os.getuid():
                await self._converse(reader, writer)
            else:
                log("a process of another user was turned away")
        except (ConnectionError, ValueError) as error:
            log(f"a client's connection broke: {error}")
        finally:
            del self._connections[writer]
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while raw := await reader.readline():
            identity: Any = None
            try:
                request = json.loads(raw)
                if not isinstance(request, dict):
                    raise BadRequest("a request is a JSON object")
                identity = request.get("id")
                if request.get("do") == "journal":
                    await self._journal(request, reader, writer)
                    continue
                answer = {"id": identity, "ok": self._verbs.answer(request)}
            except ConnectionError:
                raise
            except json.JSONDecodeError as error:
                answer = {"id": identity, "error": str(error), "code": "bad-request"}
            except tuple(CODES) as error:
                code = next(code for kind, code in CODES.items() if isinstance(error, kind))
                answer = {"id": identity, "error": str(error), "code": code}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()

    async def _journal(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send records from a cursor on: all there are, the `last` ones of them, or without end as they come."""
        after = field_of(request, "after", str, "") or "0"
        if not after.isdecimal():
            raise BadRequest("after is no cursor")
        last = field_of(request, "last", int, 0)
        journal = self._journal_of(field_of(request, "unit", str))
        records = Reader(journal, field_of(request, "invocation", str, ""), int(after))
        head = json.dumps({"id": request.get("id"), "record": 0}).encode()[:-2]
        try:
            if field_of(request, "follow", bool, False):
                wake = asyncio.Event()
                journal.subscribe(wake)
                try:
                    await self._follow(records, head, wake, reader, writer)
                finally:
                    journal.unsubscribe(wake)
                return
            kept: list[bytes] = []
            more = True
            while more:
                found, more = records.read(RECORDS_A_TURN)
                kept = (kept + found)[-last:]
                await asyncio.sleep(0)
        finally:
            records.close()
        for raw in kept:
            writer.write(head + raw[:-1] + b"}\n")
            await writer.drain()
        writer.write(json.dumps({"id": request.get("id"), "ok": None}).encode() + b"\n")
        await writer.drain()

    async def _follow(
        self,
        records: Reader,
        head: bytes,
        wake: asyncio.Event,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Send records until the client goes away."""
        gone = asyncio.create_task(reader.read(1))
        gone.add_done_callback(lambda _: wake.set())
        try:
            while not gone.done():
                wake.clear()
                found, more = records.read(RECORDS_A_TURN)
                writer.writelines(head + raw[:-1] + b"}\n" for raw in found)
                await writer.drain()
                if not more:
                    await wake.wait()
                elif not found:
                    await asyncio.sleep(0)
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
