"""Switches a host on and off: the process that keeps it, its cgroup, and waiting for sshd."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.testhost.errors import HostError
from tests.testhost.state import noted_pid

GUEST = Path(__file__).with_name("guest.sh")
POLL_S = 0.01
# systemd as PID 1 takes these as "poweroff.target" and "reboot.target".
POWER_OFF = signal.SIGRTMIN + 4
REBOOT = signal.SIGRTMIN + 5


def cgroup_of(name: str) -> Path:
    """Return the host's cgroup directory, whether or not it exists."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(point) / f"specd-{name}"
    raise HostError("no cgroup2 mount on this machine")


def switch_on(disk: Path, name: str, usr: Path) -> None:
    """Start the process that keeps the host running, apart from this one; returns once it has noted itself."""
    cgroup = cgroup_of(name)
    cgroup.mkdir(exist_ok=True)
    for stale in ("pid1", "supervisor"):
        (disk / stale).unlink(missing_ok=True)
    with (disk / "console.log").open("ab") as console:
        command = ["setsid", "--fork", str(GUEST), "power", str(disk), str(cgroup), name, str(usr)]
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, check=True, timeout=10)
    wait_until((disk / "supervisor").exists, 10, f"keeper of {name}")


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll a condition outside of this process; raises HostError when it does not hold in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise HostError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(POLL_S)


def answers_as_sshd(address: str) -> bool:
    """Whether something greets as an SSH server on port 22 of the address."""
    try:
        with socket.create_connection((address, 22), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may have gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def is_gone(file: Path, pid: int) -> bool:
    """Whether the process noted in a file is no longer the given one, or dead."""
    return noted_pid(file) != pid


def remove_cgroup(name: str) -> None:
    """Kill whatever is left in the host's cgroup and remove the tree; raises HostError when it stays."""
    cgroup = cgroup_of(name)
    if not cgroup.exists():
        return
    (cgroup / "cgroup.freeze").write_text("0")
    kill = cgroup / "cgroup.kill"
    if kill.exists():
        kill.write_text("1")

    def removed() -> bool:
        for directory, _, _ in os.walk(cgroup, topdown=False):
            with contextlib.suppress(OSError):  # still populated: its processes are on their way out
                os.rmdir(directory)
        return not cgroup.exists()

    wait_until(removed, 10, f"removal of {cgroup}")
