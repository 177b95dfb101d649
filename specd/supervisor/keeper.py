"""Starts a unit's main process under a keeper, a process whose only job is to know all of the unit's processes.

    supervisor -> keeper (child subreaper, own session) -> main process -> whatever it starts

Every orphan of the unit becomes a child of its keeper, so the unit's processes are exactly the keeper's descendants,
whatever sessions they open and however they overwrite their environment. The keeper ends when the last of them has.
When the supervisor is killed, the kernel tells the keeper, which kills them all; when the keeper itself is killed, the
kernel kills the main process and the supervisor inherits the rest.

Lines come back on a pipe: `PID` of the main process first, then `error STATUS STEP ERRNO` (nothing was executed) and
`exit STATUS` (as from waitpid).
"""

import ctypes
import fcntl
import os
import resource
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from specd.supervisor.proc import descendants, process_table

__all__ = ["EXIT_CHDIR", "EXIT_EXEC", "Spawned", "become_subreaper", "kill_below", "spawn"]

EXIT_CHDIR = 200
EXIT_EXEC = 203
PIPE_BYTES = 2**20
END_LOOK_S = 0.01
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
DEFAULTED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGXFSZ)

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Spawned:
    """The pids of a keeper and its main process, and the read ends of the report and of the unit's output."""

    keeper: int
    main: int
    report: int
    stdout: int
    stderr: int


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def become_subreaper() -> None:
    """Make this process the new parent of all orphans among its descendants."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def kill_below(root: int) -> None:
    """SIGKILL every process below `root`, also those that appear meanwhile."""
    signalled: set[int] = set()
    for _ in range(200):
        fresh = [stat.pid for stat in descendants(root, process_table()) if stat.pid not in signalled]
        if not fresh:
            return
        for pid in fresh:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            signalled.add(pid)


def spawn(argv: Sequence[str], environment: Mapping[str, str], directory: str) -> Spawned:
    """Start a keeper with its main process and return at once; raises OSError when there can be no new process."""
    pipes: list[int] = []
    try:
        for _ in range(3):
            pipes += os.pipe()
        report, report_end, stdout, stdout_end, stderr, stderr_end = pipes
        for end in (stdout, stderr):
            # A larger pipe keeps an engine running while we are busy; the kernel may refuse it to a user with many.
            with suppress(OSError):
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        supervisor = os.getpid()
        # Blocked until the child has its own handlers, else a signal would run the supervisor's in the child.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            keeper = os.fork()
            if keeper == 0:
                _keep(supervisor, argv, environment, directory, report_end, stdout_end, stderr_end)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    except OSError:
        for fd in pipes:
            os.close(fd)
        raise
    for fd in (report_end, stdout_end, stderr_end):
        os.close(fd)
    main = _first_number(report)
    for fd in (report, stdout, stderr):
        os.set_blocking(fd, False)
    return Spawned(keeper, main, report, stdout, stderr)


def _first_number(report: int) -> int:
    """Wait for the main process's first word, its pid; 0 when it died before."""
    digits = b""
    while (byte := os.read(report, 1)) not in {b"", b"\n"}:
        digits += byte
    return int(digits or b"0")


def _close_all_but(kept: set[int]) -> None:
    start = 3
    for fd in sorted(kept):
        os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 65536))


def _keep(
    supervisor: int,
    argv: Sequence[str],
    environment: Mapping[str, str],
    directory: str,
    report: int,
    stdout: int,
    stderr: int,
) -> NoReturn:
    """Be the keeper: never returns, whatever happens."""
    try:
        signal.set_wakeup_fd(-1)
        for number in DEFAULTED:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.setsid()
        become_subreaper()
        keeper = os.getpid()
        main = os.fork()
        if main == 0:
            _execute(keeper, argv, environment, directory, report, stdout, stderr)
        signal.signal(signal.SIGTERM, _end)
        _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        _close_all_but({report})
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            if os.getppid() == supervisor:
                _reap(main, report)
        except _Told:
            pass
        _end_all()
        os._exit(0)
    finally:
        os._exit(70)


def _say(report: int, line: str) -> None:
    # Nobody may be there to hear it any more.
    with suppress(OSError):
        os.write(report, line.encode() + b"\n")


class _Told(BaseException):
    """The kernel says that the supervisor is dead, or somebody wants this keeper to end."""


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Told


def _end_all() -> None:
    """Kill and reap until no process is left; looks again and again, as no event tells of one forked meanwhile."""
    while True:
        kill_below(os.getpid())
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(END_LOOK_S)
        except ChildProcessError:
            return


def _reap(main: int, report: int) -> None:
    """Take the status of every process that ends, until there is none any more."""
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return
        if pid == main:
            _say(report, f"exit {status}")


def _execute(
    keeper: int,
    argv: Sequence[str],
    environment: Mapping[str, str],
    directory: str,
    report: int,
    stdout: int,
    stderr: int,
) -> NoReturn:
    """Become the unit's main process, or end with systemd's status for the step that failed."""
    status, step = EXIT_EXEC, "EXEC"
    try:
        _say(report, str(os.getpid()))
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        _close_all_but({report})
        os.umask(0o022)
        # SIGPIPE stays ignored, as under systemd.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        status, step = EXIT_CHDIR, "CHDIR"
        os.chdir(directory)
        status, step = EXIT_EXEC, "EXEC"
        os.execvpe(argv[0], list(argv), dict(environment))
    except OSError as error:
        _say(report, f"error {status} {step} {error.errno or 0}")
    finally:
        os._exit(status)
