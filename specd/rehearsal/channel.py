"""The line between a process and its child: JSON messages both ways, and the news that the other side is gone."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


class PeerGone(Exception):
    """The process at the other end of a channel has ended."""


class Channel:
    """One end of a socket pair that carries a JSON object a line."""

    def __init__(self, sock: socket.socket, *, outlives_peer: bool = False) -> None:
        self._sock = sock
        self._pending = b""
        self._outlives_peer = outlives_peer
        self.is_lost = False

    def fileno(self) -> int:
        """Return the descriptor, for event loops."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close this end."""
        self._sock.close()

    def send(self, **message: Any) -> None:
        """Send one message; a peer that is gone shows at the next receive."""
        try:
            self._sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def receive(self, timeout_s: float | None) -> dict[str, Any] | None:
        """Return the next message, None after the timeout (None waits for ever); raises PeerGone."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            left = None if deadline is None else deadline - time.monotonic()
            if self.is_lost:
                time.sleep(3600 if left is None else max(0.0, left))
                if left is not None:
                    return None
                continue
            ready, _, _ = select.select([self._sock], [], [], None if left is None else max(0.0, left))
            if not ready:
                return None
            self._read()
        line, self._pending = self._pending.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def _read(self) -> None:
        try:
            chunk = self._sock.recv(65536)
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            if not self._outlives_peer:
                raise PeerGone
            self.is_lost = True
        self._pending += chunk


@dataclass
class Child:
    """A forked process and the channel to it."""

    pid: int
    channel: Channel
    status: int | None = None

    def reap(self) -> int | None:
        """Return the exit status as subprocess counts it (negative: signal), None while it runs."""
        if self.status is None:
            try:
                pid, wait_status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self.status = 0
                return self.status
            if pid:
                self.status = -os.WTERMSIG(wait_status) if os.WIFSIGNALED(wait_status) else os.WEXITSTATUS(wait_status)
        return self.status

    def stop(self, patience_s: float) -> None:
        """End the process: SIGTERM, and SIGKILL when it is still there after the patience."""
        for signum, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 5.0)):
            if self.reap() is not None:
                return
            try:
                os.kill(self.pid, signum)
            except ProcessLookupError:
                return
            deadline = time.monotonic() + wait_s
            while self.reap() is None and time.monotonic() < deadline:
                time.sleep(0.002)


def fork(
    name: str, body: Callable[[Channel], int], *, close: Iterable[Any], outlives_peer: bool, ignores_sigterm: bool
) -> Child:
    """Fork a child that runs `body` and exits with what it returns.

    `close` lists what the child must not inherit: a child that kept the parent's listening socket or the parent's end
    of another channel would hide the parent's death from others.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return Child(pid, Channel(ours))
    status = 1
    try:
        ours.close()
        for each in close:
            each.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN if ignores_sigterm else signal.SIG_DFL)
        name_process(name)
        status = body(Channel(theirs, outlives_peer=outlives_peer))
    except PeerGone:
        status = 0
    finally:
        if sys.exc_info()[0] is not None:
            sys.excepthook(*sys.exc_info())
        os._exit(status)


def name_process(name: str) -> None:
    """Set the name that `ps` shows (15 bytes), where the system lets us."""
    try:
        with open("/proc/self/comm", "w", encoding="ascii") as file:
            file.write(name[:15])
    except OSError:
        return
