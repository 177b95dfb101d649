"""The daemon's end: told by SIGTERM or SIGINT, and not later than some seconds after that, whatever hangs."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

import structlog

__all__ = ["Ending"]

log = structlog.get_logger()

# What was under way on hosts is looked at by the next daemon anyway.
_END_S = 4.5
_LAST_WORDS_S = 0.2


class Ending:
    """Ends this process `_END_S` after `begin`, unless it has been released by then."""

    def __init__(self) -> None:
        self._limit: threading.Timer | None = None
        self._before: dict[int, signal.Handlers | Callable[[int, FrameType | None], object] | int | None] = {}

    def listen(self, stop: Callable[[], None]) -> None:
        """Begin at SIGTERM and SIGINT, and call `stop` in the running loop.

        A handler of the loop would not do: this one is called also while something blocks the loop.
        """
        loop = asyncio.get_running_loop()

        def told(_number: int, _frame: FrameType | None) -> None:
            self.begin(0)
            loop.call_soon_threadsafe(stop)

        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, told)

    def begin(self, status: int) -> None:
        """Let the time run, for an end with this exit status; the first call counts."""
        if self._limit is None:
            self._limit = threading.Timer(_END_S, _cut_short, (status,))
            self._limit.daemon = True
            self._limit.start()

    def release(self) -> None:
        """All has ended in good order."""
        if self._limit is not None:
            self._limit.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _cut_short(status: int) -> None:
    # Said by another thread: who reads the log may hang as well.
    threading.Thread(target=log.warning, args=("daemon.cut-short",), kwargs={"after_s": _END_S}, daemon=True).start()
    time.sleep(_LAST_WORDS_S)
    os._exit(status)
