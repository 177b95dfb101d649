"""A host for tests of what runs commands: this machine, by plain subprocesses and files, and nothing else."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from specd.errors import CommandFailed, CommandTimedOut, FileProblem
from specd.hosts.host import Completed, Link, Route


class LocalCommands:
    """Runs each command as it is; `privileged` needs a root test run, which it does not check."""

    name = "here"
    is_local = True

    def __init__(self) -> None:
        self.link = Link(connected=True)
        self.commands: list[tuple[str, ...]] = []

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        privileged: bool = False,
        check: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        self.commands.append(tuple(argv))
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **(env or {}), "LC_ALL": "C.UTF-8"},
            )
        except OSError as error:
            return Completed(tuple(argv), 127, b"", f"{argv[0]}: {error.strerror}".encode())
        try:
            async with asyncio.timeout(timeout_s):
                stdout, stderr = await process.communicate(stdin)
        except TimeoutError:
            raise CommandTimedOut(f"{argv[0]} took longer than {timeout_s} s", host=self.name) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        status = process.returncode if process.returncode is not None and process.returncode >= 0 else 142
        if check and status:
            raise CommandFailed(tuple(argv), status, stderr.decode(errors="replace"), host=self.name)
        return Completed(tuple(argv), status, stdout, stderr)

    async def read(self, path: str, *, privileged: bool = False, limit: int = 16 * 2**20) -> bytes:
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            raise FileProblem(f"no {path}", path=path, reason="missing", host=self.name) from None

    async def tool(self, name: str) -> str | None:
        return shutil.which(name)

    def follow(
        self, argv: Sequence[str], *, privileged: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise NotImplementedError

    async def write(self, path: str, content: bytes, *, mode: int = 0o644, privileged: bool = False) -> None:
        raise AssertionError(f"nothing may be written: {path}")

    async def remove(self, path: str, *, privileged: bool = False) -> None:
        raise AssertionError(f"nothing may be removed: {path}")

    @contextlib.asynccontextmanager
    async def reach(self, address: str, port: int) -> AsyncIterator[Route]:
        yield Route(f"http://{address}:{port}")

    async def close(self) -> None:
        return None
