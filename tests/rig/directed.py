"""`python -P directed.py ARGUMENTS...` is `specd ARGUMENTS...` as a test directs it.

| variable | effect |
|---|---|
| DIRECTED_HOLD | states, separated by commas: right after the commit of a move into one, the process stops itself |
| DIRECTED_CLOCK | a file with the seconds by which the wall clock is off, as the code of this process reads it |

The clock of the machine is never touched, so what other processes and the kernel write (the times of files, the
journal) is in another time than the daemon's own: so a step of the daemon's machine looks like from its host.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self

import specd.failpoint

_HELD = {f"commit move {state}" for state in os.environ.get("DIRECTED_HOLD", "").split(",") if state}


@contextmanager
def _around(name: str) -> Iterator[None]:
    yield
    if name in _HELD:
        os.kill(os.getpid(), signal.SIGSTOP)


def _step_clock(file: Path) -> None:
    real = time.time

    def off_s() -> float:
        try:
            return float(file.read_text() or 0)
        except FileNotFoundError:
            return 0.0

    class Stepped(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + timedelta(seconds=off_s())

    import specd.clock

    time.time = lambda: real() + off_s()
    specd.clock.datetime = Stepped  # type: ignore[misc]


def main() -> int:
    """Set the directions up before anything else of the daemon is loaded, then be the daemon."""
    specd.failpoint.around = _around
    if file := os.environ.get("DIRECTED_CLOCK"):
        _step_clock(Path(file))
    from specd.cli.main import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
