"""Daemons as processes of their own that need no start of an interpreter: one that has the code loaded forks them."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

__all__ = ["Fork", "Forks"]

# Reads `name=value` lines up to an empty one, forks, tells the child's pid, then its wait status, and begins again.
_PARENT = """
import os, sys
import specd.daemon
from specd.cli.main import run
arguments, log = sys.argv[2:], sys.argv[1]
while line := sys.stdin.readline():
    values = {}
    while line != "\\n":
        name, _, value = line.rstrip("\\n").partition("=")
        values[name] = value
        line = sys.stdin.readline()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        null = os.open(os.devnull, os.O_RDWR)
        for here, there in ((null, 0), (descriptor, 1), (descriptor, 2)):
            os.dup2(here, there)
        os.environ.update(values)
        status = 1
        try:
            status = run(arguments)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        finally:
            sys.stdout.flush()
            os._exit(status)
    print(pid, flush=True)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


class Forks:
    """The loaded process; `fork` gives one daemon at a time. Ends with `close`."""

    def __init__(self, config: Path, log: Path) -> None:
        argv = [sys.executable, "-c", _PARENT, str(log), "--config", str(config), "start"]
        # Unbuffered: what is read ahead, select would never show.
        self._parent = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )

    def fork(self, environment: Mapping[str, str]) -> "Fork":
        """Start a daemon with these variables besides ours."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        lines = "".join(f"{name}={value}\n" for name, value in environment.items()) or "SPECD_NONE=\n"
        self._parent.stdin.write(f"{lines}\n".encode())
        self._parent.stdin.flush()
        return Fork(int(self._parent.stdout.readline()), self._parent.stdout.fileno())

    def close(self) -> None:
        """End the loaded process; a daemon of it must have ended before."""
        self._parent.communicate(timeout=10)


class Fork:
    """A forked daemon, as far as subprocess.Popen is needed of it."""

    def __init__(self, pid: int, statuses: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._statuses = statuses

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        if self.returncode is None and select.select([self._statuses], [], [], 0)[0]:
            self._take()
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for the end, at most `timeout` seconds; raises TimeoutExpired."""
        until = time.monotonic() + timeout
        if self.returncode is None:
            if not select.select([self._statuses], [], [], max(0.0, until - time.monotonic()))[0]:
                raise subprocess.TimeoutExpired("specd start", timeout)
            self._take()
        assert self.returncode is not None
        return self.returncode

    def _take(self) -> None:
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(self._statuses, 1)
        self.returncode = os.waitstatus_to_exitcode(int(line))
