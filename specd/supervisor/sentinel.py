"""`python -m specd.supervisor.sentinel DIR [--lifeline FD]`: sees to it that armed guards act whatever becomes of the
supervisor.

A process of its own for as long as a guard is armed: a supervisor that was killed is started again at once (its guards
keep what is left of their leases), and one that hangs over an expired lease is killed first. An orderly end is let be.
"""

import argparse
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["is_posted", "post"]

LOOK_S = 0.5
OVERDUE_S = 10.0
LOCK_WAIT_S = 2.0
START_S = 30.0


def post(directory: Path, lifeline: int | None) -> None:
    """Start a sentinel for a directory; where one stands already, the new one ends by itself."""
    tie = ["--lifeline", str(lifeline)] if lifeline is not None else []
    subprocess.Popen(
        [sys.executable, "-m", "specd.supervisor.sentinel", str(directory), *tie],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=() if lifeline is None else (lifeline,),
        env=_environment(),
    )


def is_posted(directory: Path) -> bool:
    """True when a sentinel stands for a directory."""
    return _holder(directory / "sentinel.pid") is not None


def _environment() -> dict[str, str]:
    # The program is found where this one is, also when it is not installed.
    source = str(Path(__file__).parents[2])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _take_post(directory: Path) -> int | None:
    """Become the only sentinel of a directory; None when another one stays."""
    lock = os.open(directory / "sentinel.pid", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(lock)
                return None
            time.sleep(LOOK_S / 10)
            continue
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return lock


def _state(directory: Path) -> dict[str, Any]:
    try:
        state = json.loads((directory / "state.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _holder(path: Path) -> int | None:
    """Return the pid in a lock file that is held, 0 where it is not there yet; None when nobody holds it."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(lock, 32, 0).strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(lock)
    return None


def _start(directory: Path, lifeline: int | None) -> None:
    tie = ["--lifeline", str(lifeline)] if lifeline is not None else []
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-m", "specd.supervisor", str(directory), "--detach", *tie],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=() if lifeline is None else (lifeline,),
            env=_environment(),
            timeout=START_S,
            check=False,
        )


def _is_overdue(guard: dict[str, Any]) -> bool:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return guard.get("state") == "armed" and now > float(guard.get("fires_at", now)) + OVERDUE_S


def watch(directory: Path, lifeline: int | None) -> None:
    """Stand until no guard is armed or acting, the supervisor has ended in order, or the lifeline is cut."""
    while True:
        state = _state(directory)
        guards = [guard for guard in state.get("guards", []) if not guard.get("done")]
        if not guards:
            return
        pid = _holder(directory / "supervisor.pid")
        if pid is None:
            if state.get("ended"):
                return
            _start(directory, lifeline)
        elif pid and any(_is_overdue(guard) for guard in guards):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        cut, _, _ = select.select([] if lifeline is None else [lifeline], [], [], LOOK_S)
        if cut:
            return


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m specd.supervisor.sentinel", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--lifeline", type=int, metavar="FD", help="end when this pipe is closed")
    options = parser.parse_args()
    os.umask(0o077)
    if _take_post(options.directory) is not None:
        watch(options.directory, options.lifeline)
    return 0


if __name__ == "__main__":
    sys.exit(main())
