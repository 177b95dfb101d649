"""A ProxyCommand of the user's ssh configuration, run by a shell as ssh does, with a socket for its two ends.

asyncssh's own way takes what the command prints on stderr for data, and the closing of stderr for the connection's end.
"""

import asyncio
import contextlib
import os
import signal
import socket
import tempfile
from typing import IO

__all__ = ["Proxy"]

_GRACE_S = 2.0
_WORDS_KEPT = 400


class Proxy:
    """A running proxy command; `socket` leads to the host."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - end() closes it
        self.socket, self._far = socket.socketpair()

    async def start(self) -> None:
        """Start the command."""
        argv = ["/bin/sh", "-c", f"exec {self._command}"]
        try:
            self._process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=self._far.fileno(),
                stdout=self._far.fileno(),
                stderr=self._stderr,
                start_new_session=True,
            )
        finally:
            self._far.close()

    @property
    def words(self) -> str:
        """What the command has said on stderr; its end only."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _WORDS_KEPT))
        return "".join(char for char in self._stderr.read().decode(errors="replace").strip() if char.isprintable())

    async def end(self) -> None:
        """End the command and what it started."""
        self._stderr.close()
        self.socket.close()
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_S):
                    await self._process.wait()
