"""What a supervisor leaves for the next one: the invocations that run, and the guards."""

import json
import os
import select
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specd.supervisor.proc import Stat, descendants, environ_has, process_table

__all__ = ["Running", "Stored", "end_stale", "read_state", "write_state"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TICK_MS = 100.0


@dataclass(frozen=True, slots=True)
class Running:
    """An invocation that has, or is about to have, processes; `started` is its keeper's start in ticks."""

    unit: str
    invocation: str
    keeper: int = 0
    started: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """A state file's content; `same_boot` is False after a reboot of the machine."""

    running: tuple[Running, ...] = ()
    guards: list[dict[str, Any]] = field(default_factory=list)
    same_boot: bool = True


def _boot() -> str:
    return BOOT_ID.read_text().strip()


def write_state(path: Path, running: Iterable[Running], guards: list[dict[str, Any]], *, ended: bool = False) -> None:
    """Store durably: the file is whole at every moment; `ended` says that the end is orderly. Raises OSError."""
    content = {
        "version": 1,
        "boot": _boot(),
        "running": [
            {"unit": one.unit, "invocation": one.invocation, "keeper": one.keeper, "started": one.started}
            for one in running
        ],
        "guards": guards,
        "ended": ended,
    }
    temporary = path.with_name(path.name + ".new")
    try:
        with temporary.open("wb") as file:
            file.write(json.dumps(content).encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_state(path: Path) -> Stored:
    """Read a state file; nothing stored when there is none. Raises ValueError for one that can't be understood."""
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        return Stored()
    if not isinstance(raw, Mapping) or raw.get("version") != 1:
        raise ValueError(f"{path} is not a state file of this version")
    try:
        running = tuple(Running(**item) for item in raw["running"])
        return Stored(running, list(raw["guards"]), raw["boot"] == _boot())
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def _is_same(one: Running, stat: Stat | None) -> bool:
    return one.keeper > 0 and stat is not None and stat.started == one.started and stat.is_alive


def _stale(running: Iterable[Running]) -> list[int]:
    """List the processes of these invocations: by their keeper, by their environment, and what is below."""
    table = process_table()
    marks = frozenset(f"INVOCATION_ID={one.invocation}".encode() for one in running)
    roots = {one.keeper for one in running if _is_same(one, table.get(one.keeper))}
    roots |= {pid for pid, stat in table.items() if stat.is_alive and environ_has(pid, marks)}
    found = roots | {stat.pid for root in roots for stat in descendants(root, table)}
    own = os.getpid()
    while own in table:
        # The supervisor itself may have been started from inside a unit.
        found.discard(own)
        own = table[own].parent
    return sorted(found)


def end_stale(running: Iterable[Running], *, limit_s: float) -> list[int]:
    """SIGKILL what a killed supervisor's units left and wait for their end; return pids that would not die in time."""
    running = list(running)
    deadline = time.monotonic() + limit_s
    keepers = {one.keeper for one in running}
    while running and (pids := _stale(running)):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return pids
        _kill_and_wait(pids, keepers, min(left_s * 1000, TICK_MS))
    return []


def _kill_and_wait(pids: list[int], keepers: set[int], limit_ms: float) -> None:
    poll = select.poll()
    handles: list[int] = []
    try:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                handle = os.pidfd_open(pid)
                handles.append(handle)
                poll.register(handle, select.POLLIN)
                # A keeper kills what is below it better than we can, and ends with the last of it.
                for number in (signal.SIGTERM, signal.SIGCONT) if pid in keepers else (signal.SIGKILL,):
                    signal.pidfd_send_signal(handle, number)
        poll.poll(limit_ms)
    finally:
        for handle in handles:
            os.close(handle)
