"""What /proc tells: the tree of processes, what each uses, who listens on a port."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "Stat",
    "Usage",
    "command_line",
    "descendants",
    "environ_has",
    "listeners",
    "process_table",
    "read_stat",
    "usage",
]

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
LISTEN = "0A"


class Stat(NamedTuple):
    """One line of /proc/PID/stat: `started` in clock ticks since boot names the process beyond its pid."""

    pid: int
    state: str
    parent: int
    cpu_s: float
    started: int
    rss_bytes: int

    @property
    def is_alive(self) -> bool:
        """False for a process that only waits to be reaped."""
        return self.state not in "ZX"


class Usage(NamedTuple):
    """A process and what it has used since its start; `read_bytes` None where the kernel will not tell."""

    pid: int
    argv: tuple[str, ...]
    rss_bytes: int
    cpu_s: float
    read_bytes: int | None


def read_stat(pid: int) -> Stat | None:
    """Read one process; None when there is none of this pid."""
    try:
        line = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name stands in parentheses and may hold any character, so the fields count from the last one.
    fields = line[line.rindex(")") + 2 :].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / TICKS
    return Stat(pid, fields[0], int(fields[1]), cpu_s, int(fields[19]), int(fields[21]) * PAGE)


def process_table() -> dict[int, Stat]:
    """Read all processes that can be seen now."""
    stats = (read_stat(int(entry)) for entry in os.listdir(PROC) if entry.isdigit())
    return {stat.pid: stat for stat in stats if stat is not None}


def descendants(root: int, table: Mapping[int, Stat]) -> list[Stat]:
    """List the living processes below `root`, parents before their children; none below 0, which is no process."""
    if root <= 0:
        return []
    children: dict[int, list[Stat]] = {}
    for stat in table.values():
        children.setdefault(stat.parent, []).append(stat)
    below: list[Stat] = []
    level = [root]
    while level:
        step = [stat for pid in level for stat in children.get(pid, ())]
        below += step
        level = [stat.pid for stat in step]
    return [stat for stat in below if stat.is_alive]


def command_line(pid: int) -> tuple[str, ...]:
    """Return a process's command line; () when it is gone."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(part.decode(errors="replace") for part in raw.rstrip(b"\0").split(b"\0"))


def environ_has(pid: int, settings: frozenset[bytes]) -> bool:
    """True when a process was started with one of these NAME=VALUE settings; False when that can't be read."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return not settings.isdisjoint(raw.split(b"\0"))


def usage(stat: Stat) -> Usage:
    """Add to a stat what only other files tell.

    Bytes read are the larger of what read calls returned (page cache included) and what came from a disk (memory maps
    included), because an engine loads its weights in either way.
    """
    read_bytes: int | None = None
    try:
        pairs = (line.split(": ") for line in (PROC / str(stat.pid) / "io").read_text().splitlines())
        io = {key: int(value) for key, value in pairs}
        read_bytes = max(io["rchar"], io["read_bytes"])
    except (OSError, KeyError, ValueError):
        read_bytes = None
    return Usage(stat.pid, command_line(stat.pid), stat.rss_bytes, stat.cpu_s, read_bytes)


def _listening_inodes(port: int) -> set[str]:
    inodes: set[str] = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def _socket_inodes(pid: int) -> Iterator[str]:
    directory = PROC / str(pid) / "fd"
    try:
        entries = os.listdir(directory)
    except OSError:
        return
    for entry in entries:
        try:
            target = os.readlink(directory / entry)
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1]


def listeners(port: int) -> list[int]:
    """List the pids that listen on a TCP port, oldest first; 0 stands for those that are not ours to see."""
    wanted = _listening_inodes(port)
    if not wanted:
        return []
    holders: list[Stat] = []
    seen: set[str] = set()
    for stat in sorted(process_table().values(), key=lambda stat: stat.started):
        held = wanted.intersection(_socket_inodes(stat.pid))
        if held:
            holders.append(stat)
            seen |= held
    return [stat.pid for stat in holders] + ([0] if wanted - seen else [])
