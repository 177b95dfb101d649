"""Reads what a unit's processes print, from two pipes into its journal."""

import asyncio
import os
import time
from dataclasses import dataclass, field

from specd.supervisor.journal import Journal, Line, LineCutter

__all__ = ["Capture"]

CHUNK_BYTES = 128 * 1024


@dataclass(slots=True)
class Capture:
    """The output of one invocation. `pid` is the main process: who of the unit wrote a line can't be told."""

    journal: Journal
    invocation: str
    pid: int = 0
    _pipes: dict[int, tuple[str, LineCutter]] = field(default_factory=dict)

    def attach(self, stream: str, fd: int) -> None:
        """Read a non-blocking pipe from now on, as `stream` (stdout or stderr)."""
        self._pipes[fd] = (stream, LineCutter())
        asyncio.get_running_loop().add_reader(fd, self._read, fd)

    def say(self, text: str) -> None:
        """Put a line of the supervisor's own into the journal."""
        self._append("manager", [Line(text.encode())])

    def drain(self) -> None:
        """Read what is still in the pipes, with the last partial lines, and close them."""
        for fd in list(self._pipes):
            while fd in self._pipes and self._read(fd):
                pass
            if fd in self._pipes:
                self._close(fd)

    def _read(self, fd: int) -> bool:
        """Read one chunk; False when there is none now. One a turn of the loop, so that no unit starves another."""
        stream, cutter = self._pipes[fd]
        try:
            chunk = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._close(fd)
            return False
        self._append(stream, cutter.feed(chunk))
        return True

    def _close(self, fd: int) -> None:
        stream, cutter = self._pipes.pop(fd)
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
        self._append(stream, cutter.finish())

    def _append(self, stream: str, lines: list[Line]) -> None:
        self.journal.append(stream, lines, invocation=self.invocation, pid=self.pid, at=time.time())
