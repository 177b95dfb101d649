"""Where hosts of this machine are kept and who made them; owns the lock that guards names and numbers."""

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.testhost import network
from tests.testhost.cache import locked
from tests.testhost.errors import HostError, Unavailable

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,39}")


def state_root() -> Path:
    """Return the machine-wide directory of hosts; the first whose file system can carry an overlay's upper layer."""
    if override := os.environ.get("SPECD_TESTHOST_STATE"):
        return Path(override)
    for parent in (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")):
        if _file_system(parent) != "overlay":
            return parent / "specd-testhosts"
    raise Unavailable("a test host needs a directory that is not on an overlay file system; see SPECD_TESTHOST_STATE")


def _file_system(path: Path) -> str:
    mounts = (line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines())
    over = [(len(point), kind) for point, kind in mounts if path.is_relative_to(point)]
    return max(over)[1] if over else ""


@contextlib.contextmanager
def guarded() -> Iterator[Path]:
    """Hold the lock over names, numbers and the guard route; gives the directory of hosts. Needs root."""
    if os.geteuid() != 0:
        raise Unavailable("a test host needs root")
    root = state_root()
    with locked(root / "lock"):
        hosts = root / "hosts"
        hosts.mkdir(exist_ok=True)
        yield hosts


@dataclass(frozen=True, slots=True)
class Record:
    """What a host's directory remembers of its making; creator 0 stands for a person, who cleans up by hand."""

    number: int
    behind: str | None
    creator: int
    creator_start: int

    def save(self, disk: Path) -> None:
        """Write the record into the host's directory."""
        (disk / "host.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, disk: Path) -> "Record":
        """Read a host's record; raises FileNotFoundError when it was never finished."""
        return cls(**json.loads((disk / "host.json").read_text()))

    def is_abandoned(self) -> bool:
        """Whether the process that made the host is gone."""
        return self.creator != 0 and start_time(self.creator) != self.creator_start


def reserve(name: str | None, behind: str | None, for_person: bool) -> tuple[Path, Record]:
    """Make an empty directory for a new host with a number of its own; raises HostError when the name is taken."""
    creator = 0 if for_person else os.getpid()
    with guarded() as hosts:
        if name is None:
            names = (f"t{os.getpid()}-{count}" for count in itertools.count(1))
            name = next(free for free in names if not (hosts / free).exists())
        elif not _NAME.fullmatch(name):
            raise HostError(f"{name!r} is no host name: letters, digits and dashes, 40 at most")
        elif (hosts / name).exists():
            raise HostError(f"host {name} exists")
        disk = hosts / name
        disk.mkdir(mode=0o755)
        taken = {Record.load(other).number for other in hosts.iterdir() if (other / "host.json").exists()}
        # Links of another state directory on this machine count as well.
        links = {entry.name for entry in Path("/sys/class/net").iterdir()}
        free = (n for n in network.NUMBERS if n not in taken and network.link_name(n) not in links)
        number = next(free, None)
        if number is None:
            disk.rmdir()
            raise HostError("all 254 networks of test hosts are in use")
        record = Record(number, behind, creator, start_time(creator) or 0)
        record.save(disk)
    return disk, record


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, or None if it is gone; a zombie is gone."""
    if pid <= 0:
        return None
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if after_name[0] in "ZX" else int(after_name[19])


def noted_pid(file: Path) -> int | None:
    """Return the PID that guest.sh noted in a file, or None unless that very process is alive."""
    try:
        pid, started = (int(word) for word in file.read_text().split())
    except FileNotFoundError:
        return None
    return pid if start_time(pid) == started else None
