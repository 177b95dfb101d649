"""The way to an embedded supervisor: finds it, starts it on demand, asks it, follows its journals."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import specd
from specd.errors import BadAnswer, FileProblem, HostUnreachable, UnitError
from specd.services.effect import effect
from specd.supervisor.server import LINE_BYTES, SOCKET_NAME, TIED_NAME, short_path

__all__ = ["Link", "LostLink"]

ANSWER_S = 30.0
START_S = 30.0
RETRY_S = 0.02
_CHANGING = frozenset({"reload", "clear-failure", "start", "stop", "kill", "guard-arm", "guard-disarm"})
EXIT_HELD = 4


class LostLink(HostUnreachable):
    """The supervisor went away; a journal can be followed again from the last cursor."""


class Link:
    """Talks to the supervisor of `directory`, one connection a request.

    With `spawns`, one that does not run is started, detached: it outlives this process unless `lifeline` (a
    descriptor of a pipe's read end) is given, and then ends when the pipe's other end closes. One that was tied to a
    lifeline is not started without one.
    """

    def __init__(self, directory: Path, *, spawns: bool = True, lifeline: int | None = None) -> None:
        self.directory = directory
        self._spawns = spawns
        self._lifeline = lifeline
        self._starting = asyncio.Lock()

    async def ask(self, verb: str, *, unit: str = "", **fields: Any) -> Any:
        """Send one request and return its answer's value.

        Raises UnitError, FileProblem, BadAnswer; HostUnreachable when there is no supervisor, or when it went away in
        the middle, and then it is unknown whether it acted.
        """
        request = {"id": 1, "do": verb, **fields} | ({"unit": unit} if unit else {})
        with effect(verb, unit) if verb in _CHANGING else nullcontext():
            return await self._answer(request, unit)

    async def _answer(self, request: Mapping[str, Any], unit: str) -> Any:
        async with self._connection(spawns=self._spawns) as (reader, writer):
            try:
                async with asyncio.timeout(ANSWER_S):
                    writer.write(json.dumps(request).encode() + b"\n")
                    await writer.drain()
                    return self._value(await reader.readline(), unit)
            except TimeoutError:
                raise HostUnreachable(f"the supervisor of {self.directory} does not answer") from None

    async def history(self, unit: str, invocation: str, last: int) -> list[Mapping[str, Any]]:
        """Return the last records of an invocation."""
        stream = self._records(unit, invocation, "", follow=False, last=last, spawns=self._spawns)
        async with aclosing(stream) as records:
            return [record async for record in records]

    def follow(self, unit: str, invocation: str, after: str) -> AsyncGenerator[Mapping[str, Any], None]:
        """Follow an invocation's records after a cursor, until the supervisor goes away (LostLink).

        Never starts a supervisor: one that was ended must not come back because somebody was still reading.
        """
        return self._records(unit, invocation, after, follow=True, last=0, spawns=False)

    async def _records(
        self, unit: str, invocation: str, after: str, *, follow: bool, last: int, spawns: bool
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        request = {
            "id": 1,
            "do": "journal",
            "unit": unit,
            "invocation": invocation,
            "after": after,
            "follow": follow,
            "last": last,
        }
        async with self._connection(spawns=spawns) as (reader, writer):
            writer.write(json.dumps(request).encode() + b"\n")
            await writer.drain()
            while True:
                raw = await reader.readline()
                answer = self._parsed(raw)
                if "record" not in answer:
                    self._value(raw, unit)
                    return
                yield answer["record"]

    @asynccontextmanager
    async def _connection(self, *, spawns: bool) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await self._connected(spawns=spawns)
        try:
            yield reader, writer
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise LostLink(f"the supervisor of {self.directory} went away: {error}") from None
        finally:
            # Nothing unsent is worth waiting for here, and a cancelled caller must not wait.
            writer.transport.abort()

    async def _connected(self, *, spawns: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await self._connect()
        except OSError as error:
            if not spawns:
                raise LostLink(f"no supervisor runs for {self.directory}: {error.strerror}") from None
        async with self._starting:
            try:
                async with asyncio.timeout(START_S):
                    return await self._start_and_connect()
            except TimeoutError:
                raise HostUnreachable(f"the supervisor of {self.directory} does not come up") from None

    async def _start_and_connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while True:
            try:
                return await self._connect()
            except OSError:
                await self._spawn()
            try:
                return await self._connect()
            except OSError:
                # Another one has the lock and is starting or ending: there is no event to wait for.
                await asyncio.sleep(RETRY_S)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name, held = short_path(self.directory / SOCKET_NAME)
        try:
            return await asyncio.open_unix_connection(name, limit=LINE_BYTES)
        finally:
            if held is not None:
                os.close(held)

    async def _spawn(self) -> None:
        """Start a supervisor and wait until it serves, or until it says why not; raises HostUnreachable."""
        if self._lifeline is None and await asyncio.to_thread((self.directory / TIED_NAME).exists):
            raise HostUnreachable(f"the supervisor of {self.directory} was tied to an owner and ended with it")
        argv = [sys.executable, "-m", "specd.supervisor", str(self.directory), "--detach"]
        passed: tuple[int, ...] = ()
        if self._lifeline is not None:
            argv += ["--lifeline", str(self._lifeline)]
            passed = (self._lifeline,)
        # The program is found where this one is, also when it is not installed.
        source = str(Path(specd.__file__).parents[1])
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                pass_fds=passed,
            )
        except OSError as error:
            raise HostUnreachable(f"the supervisor of {self.directory} can't be started: {error}") from None
        try:
            _, said = await process.communicate()
        finally:
            if process.returncode is None:
                # Only the process that waits for its word; the supervisor itself goes on coming up.
                process.kill()
                await process.wait()
        if process.returncode not in {0, EXIT_HELD}:
            why = said.decode(errors="replace").strip()[-400:]
            raise HostUnreachable(f"the supervisor of {self.directory} can't be started: {why}")

    def _parsed(self, raw: bytes) -> dict[str, Any]:
        if not raw.endswith(b"\n"):
            raise LostLink(f"the supervisor of {self.directory} went away")
        try:
            answer = json.loads(raw)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise BadAnswer(f"the supervisor of {self.directory} answered what can't be read")
        return answer

    def _value(self, raw: bytes, unit: str) -> Any:
        answer = self._parsed(raw)
        if "ok" in answer:
            return answer["ok"]
        what, code = str(answer.get("error")), answer.get("code")
        if code in {"no-such-unit", "bad-unit"}:
            raise UnitError(what, unit=unit)
        if code == "file":
            raise FileProblem(what, path=str(self.directory), reason="other")
        raise BadAnswer(f"the supervisor of {self.directory} refused: {what}")
