"""Where the suite keeps what is expensive to fetch, outside of the clone and shared by all clones of a user."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def cache_dir() -> Path:
    """Return the cache directory: SPECD_TEST_CACHE, else specd-tests in the user's cache directory."""
    if override := os.environ.get("SPECD_TEST_CACHE"):
        return Path(override)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "specd-tests"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, across processes, creating it if needed; blocks without a limit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
