"""vLLM's log line: `(Process pid=N) LEVEL MM-DD HH:MM:SS [file.py:LINE] message`, written at once and unbuffered.

The logger writes to standard output; bars, tracebacks and uvicorn's lines go to standard error, as in vLLM.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

STDOUT = 1
STDERR = 2
_ROOT = "/opt/vllm/lib/python3.11/site-packages/"


def write(descriptor: int, text: str) -> None:
    """Write all of `text`; a reader that has gone away is no reason to stop serving."""
    data = text.encode("utf-8", "replace")
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except (BrokenPipeError, BlockingIOError):
        return


class Logger:
    """Writes the lines of one process."""

    def __init__(self, process: str) -> None:
        self._process = process

    def info(self, place: str, message: str) -> None:
        """Log at INFO; `place` is `file.py:LINE`."""
        self._log("INFO", place, message)

    def warning(self, place: str, message: str) -> None:
        """Log at WARNING."""
        self._log("WARNING", place, message)

    def error(self, place: str, message: str) -> None:
        """Log at ERROR; further lines of the message repeat the prefix after CR LF, as vLLM's do."""
        self._log("ERROR", place, message)

    def _log(self, level: str, place: str, message: str) -> None:
        stamp = time.strftime("%m-%d %H:%M:%S")
        prefix = f"({self._process} pid={os.getpid()}) {level} {stamp} [{place}] "
        write(STDOUT, prefix + message.replace("\n", f"\r\n{prefix}") + "\n")


def traceback_text(frames: Sequence[tuple[str, str]], exception: str) -> str:
    """Lay out a traceback as Python would, from (file, function) pairs and the exception's own lines."""
    lines = ["Traceback (most recent call last):"]
    for file, function in frames:
        # Stable numbers that look like line numbers: the same place always has the same one.
        number = 40 + sum(map(ord, file + function)) % 1400
        lines.append(f'  File "{_ROOT}{file}", line {number}, in {function}')
    return "\n".join([*lines, exception])
