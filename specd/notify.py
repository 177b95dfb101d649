"""What the daemon says to its own service manager, and the lock that keeps a second daemon out."""

import contextlib
import fcntl
import os
import socket
from pathlib import Path

from specd.errors import Refused

__all__ = ["DirectoryLock", "tell_manager", "watchdog_period_s"]

_NAME_BYTES = 16


def tell_manager(*words: str) -> None:
    """Send `READY=1`, `STOPPING=1`, `WATCHDOG=1` or `STATUS=...` to systemd; nothing where it does not listen."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    target = "\0" + address[1:] if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(target)
        sender.send("\n".join(words).encode())


def watchdog_period_s() -> float | None:
    """Return how often systemd wants a sign of life from this process (half its limit); None if it does not ask."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    limit = os.environ.get("WATCHDOG_USEC", "")
    return int(limit) / 2e6 if limit.isdigit() and int(limit) > 0 else None


class DirectoryLock:
    """A kernel lock on a state directory, held for the daemon's life; the file names the holder."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "daemon.lock"
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._descriptor, 64).decode(errors="replace").split("\n")[0].strip() or "unknown"
            os.close(self._descriptor)
            raise Refused(
                f"another specd daemon (pid {holder}) holds {directory}",
                next_step="use that one, stop it first, or give this one a state_dir of its own",
            ) from error
        # The name is a courtesy, written over the last one, so that a full disk keeps no daemon from its trials.
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, f"{os.getpid()}\n".ljust(_NAME_BYTES).encode(), 0)

    def release(self) -> None:
        """Give the lock back."""
        os.close(self._descriptor)
