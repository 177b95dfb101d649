"""`python -m specd.supervisor DIR [--detach] [--lifeline FD]`: runs the supervisor of a directory.

Ends with 0 after an orderly end, 2 for wrong usage, 4 when another supervisor has the directory.
"""

import argparse
import asyncio
import fcntl
import os
import signal
import socket
import sys
import time
from pathlib import Path

from specd.supervisor.server import SOCKET_NAME, TIED_NAME, Server, short_path
from specd.supervisor.supervisor import Supervisor, log

EXIT_USAGE = 2
EXIT_HELD = 4
READY = b"ready"
LOCK_WAIT_S = 5.0
LOCK_RETRY_S = 0.02
LOG_BYTES = 2**20


class Held(Exception):
    """Another supervisor has this directory."""


def prepare(directory: Path) -> None:
    """Make the directory and what is in it, for its owner only; raises OSError."""
    for path in (directory, directory / "units", directory / "journal"):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if directory.stat().st_uid != os.getuid():
        raise PermissionError(f"{directory} belongs to another user")
    directory.chmod(0o700)


def take_lock(directory: Path) -> int:
    """Become the only supervisor of a directory and return the lock's descriptor; raises Held, naming the holder.

    A holder that does not answer is starting or ending, so it is waited for.
    """
    lock = os.open(directory / "supervisor.pid", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if _answers(directory) or time.monotonic() > deadline:
                holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(lock)
                raise Held(f"{directory} has a supervisor already: pid {holder}") from None
            time.sleep(LOCK_RETRY_S)
            continue
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return lock


def tie(directory: Path, *, is_tied: bool) -> None:
    """Leave word whether this directory's supervisor is tied to an owner: then nobody starts it on demand any more.

    Else a client that has not yet heard of the owner's death would bring everything back, tied to nobody.
    """
    marker = directory / TIED_NAME
    if is_tied:
        marker.touch()
    else:
        marker.unlink(missing_ok=True)


def _answers(directory: Path) -> bool:
    name, held = short_path(directory / SOCKET_NAME)
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(name)
    except OSError:
        return False
    finally:
        if held is not None:
            os.close(held)
    return True


def detach(directory: Path) -> int:
    """Go on in a process of its own session that has this program's log as output; return where to say READY.

    The caller's own process waits for that word, then ends: with 0, or with the status of a start that failed.
    """
    heard, said = os.pipe()
    if os.fork() != 0:
        os.close(said)
        word = b""
        while chunk := os.read(heard, 4096):
            word += chunk
        if word == READY:
            os._exit(0)
        sys.stderr.write(word.decode(errors="replace") or "the supervisor died at its start\n")
        sys.stderr.flush()
        os._exit(EXIT_HELD if b"has a supervisor already" in word else 1)
    os.close(heard)
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    path = directory / "supervisor.log"
    if path.exists() and path.stat().st_size > LOG_BYTES:
        os.replace(path, path.with_name("supervisor.log.1"))
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(null)
    os.close(output)
    return said


async def run(directory: Path, lifeline: int | None, said: int | None) -> None:
    """Supervise until told to end: by SIGTERM or SIGINT (orderly), a second one or a cut lifeline (quickly)."""
    supervisor = Supervisor(directory, lifeline)
    server = Server(supervisor)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: supervisor.request_end(quick=False))
    loop.add_signal_handler(signal.SIGHUP, lambda: None if said is not None else supervisor.request_end(quick=False))
    supervisor.boot()
    if lifeline is not None:

        def cut() -> None:
            # Whatever comes in on it means nothing; only its end does.
            if not os.read(lifeline, 4096):
                loop.remove_reader(lifeline)
                log("the lifeline was cut")
                supervisor.request_end(quick=True)

        loop.add_reader(lifeline, cut)
    await server.listen()
    log(f"supervisor {os.getpid()} serves {directory}")
    if said is not None:
        os.write(said, READY)
        os.close(said)
    await supervisor.ended.wait()
    await server.close()
    log("ended")


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m specd.supervisor", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--detach", action="store_true", help="go on in the background once it is ready")
    parser.add_argument("--lifeline", type=int, metavar="FD", help="end everything when this pipe is closed")
    options = parser.parse_args()
    directory = options.directory.absolute()
    lifeline = options.lifeline
    said = None
    os.umask(0o077)
    try:
        if lifeline is not None:
            os.set_inheritable(lifeline, False)
            os.set_blocking(lifeline, False)
        prepare(directory)
        if options.detach:
            said = detach(directory)
        os.chdir(directory)
        take_lock(directory)
        tie(directory, is_tied=lifeline is not None)
    except (Held, OSError) as error:
        return refuse(str(error), said, EXIT_HELD if isinstance(error, Held) else EXIT_USAGE)
    asyncio.run(run(directory, lifeline, said))
    return 0


def refuse(why: str, said: int | None, status: int) -> int:
    """Say why there is no start, also to the process that waits for it."""
    sys.stderr.write(why + "\n")
    if said is not None:
        os.write(said, (why + "\n").encode())
        os.close(said)
    return status


if __name__ == "__main__":
    sys.exit(main())
