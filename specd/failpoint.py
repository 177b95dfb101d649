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

_passed: set[str] = set()


@contextmanager
def around(name: str) -> Iterator[None]:
    """Mark what the body does as one commit or effect; a body that raises has no instant after it."""
    path = os.environ.get("SPECD_FAILPOINTS")
    if not path:
        yield
        return
    _reach(path, f"{name} before")
    yield
    _reach(path, f"{name} after")


def _reach(path: str, point: str) -> None:
    if not _passed:
        _passed.update(_read(Path(path)))
    if point in _passed:
        return
    _passed.add(point)
    with open(path, "a", encoding="utf-8") as file:
        file.write(point + "\n")
    if os.environ.get("SPECD_FAILPOINT_KILL") in {"each", point}:
        os.kill(os.getpid(), signal.SIGKILL)


def _read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
