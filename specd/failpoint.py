"""Named instants right before and after each durable commit and each effect on a host, where a crash can be tried.

Without $SPECD_FAILPOINTS they do nothing. With it, a file of that name takes a line for every point when it is passed
for the first time; $SPECD_FAILPOINT_KILL says at which of them this process ends itself, as `kill -9` would: at the one
named there, or at `each` one that the file does not hold yet.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["around"]

_FILE = os.environ.get("SPECD_FAILPOINTS", "")
_KILL = os.environ.get("SPECD_FAILPOINT_KILL", "")
_passed: set[str] = set()


@contextmanager
def around(name: str) -> Iterator[None]:
    """Mark what the body does as one commit or effect; a body that raises has no instant after it."""
    if not _FILE:
        yield
        return
    _reach(f"{name} before")
    yield
    _reach(f"{name} after")


def _reach(point: str) -> None:
    if not _passed:
        _passed.update(_read())
    if point in _passed:
        return
    _passed.add(point)
    with open(_FILE, "a", encoding="utf-8") as file:
        file.write(point + "\n")
    if _KILL in {"each", point}:
        os.kill(os.getpid(), signal.SIGKILL)


def _read() -> list[str]:
    path = Path(_FILE)
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
