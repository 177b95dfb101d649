"""The supervisor: which units there are, their boot and their end, and the reaping of every process below."""

import asyncio
import hashlib
import os
import signal
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

from specd.supervisor.guard import Guards
from specd.supervisor.journal import Journal
from specd.supervisor.keeper import become_subreaper
from specd.supervisor.proc import process_table, read_stat
from specd.supervisor.sentinel import is_posted, post
from specd.supervisor.service import Service
from specd.supervisor.statefile import Running, end_stale, read_state, write_state
from specd.supervisor.unit import SUFFIX, BadUnit, normal_name, parse_unit, stem

__all__ = ["NoSuchUnit", "Supervisor", "log"]

STALE_LIMIT_S = 10.0
QUICK_STOP_S = 1.0
JOURNAL_KEPT_S = 7 * 86400.0
SENTINEL_LOOK_S = 2.0


class NoSuchUnit(Exception):
    """No unit of this name has been read."""


def log(text: str) -> None:
    """Say something in the supervisor's own log, which is its stderr."""
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n")
    sys.stderr.flush()


class Supervisor:
    """All units of a directory. Construct it inside the running loop, then `boot`."""

    def __init__(self, directory: Path, lifeline: int | None = None) -> None:
        self.directory = directory
        self._lifeline = lifeline
        self.units_directory = directory / "units"
        self.life = uuid.uuid4().hex
        self.ended = asyncio.Event()
        self.services: dict[str, Service] = {}
        self.broken: dict[str, str] = {}
        self._gone: set[str] = set()
        self._journals: dict[str, Journal] = {}
        self.guards = Guards(self.services.get, self.persist, self._post_sentinel)
        self._shutdown: asyncio.Task[None] | None = None
        self._sentinel_look: asyncio.TimerHandle | None = None

    def boot(self) -> None:
        """End what an earlier supervisor left, take up its guards, then start every enabled unit."""
        become_subreaper()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        state_path = self.directory / "state.json"
        try:
            stored = read_state(state_path)
            if left := end_stale(stored.running if stored.same_boot else (), limit_s=STALE_LIMIT_S):
                log(f"processes of an earlier supervisor can't be ended: {left}")
            self.reload()
            self.guards.restore(stored.guards, same_boot=stored.same_boot)
        except (ValueError, TypeError) as error:
            aside = state_path.with_name("state.json.damaged")
            log(f"{error}; set aside as {aside}, going on without it")
            os.replace(state_path, aside)
            self.reload()
        self._prune_journals()
        for service in self.services.values():
            if service.file.enabled:
                service.start()
        self.persist()

    def reload(self) -> None:
        """Read all unit files again; units whose file is gone are forgotten once they are down."""
        self.broken.clear()
        seen: set[str] = set()
        for path in sorted(self.units_directory.glob("*.json")):
            name = path.name.removesuffix(".json")
            if not name.endswith(SUFFIX):
                continue
            seen.add(name)
            self._read(name, path)
        self._gone = set(self.services) - seen
        self.forget_gone()

    def forget_gone(self) -> None:
        """Forget units that are down and whose file was not there at the last reload."""
        for name in list(self._gone):
            if self.services[name].is_down:
                self._gone.discard(name)
                del self.services[name]

    def find_sound(self, name: str) -> Service:
        """Return a unit whose file could be understood when it was read last; raises NoSuchUnit or BadUnit."""
        service = self.find(name)
        if (why := self.broken.get(service.file.name)) is not None:
            raise BadUnit(f"{service.file.path}: {why}")
        return service

    def find(self, name: str) -> Service:
        """Return a unit, reading its file when that has never been read; raises NoSuchUnit or BadUnit."""
        name = normal_name(name)
        self.forget_gone()
        if name not in self.services and name not in self.broken:
            path = self.path_of(name)
            if path.exists():
                self._read(name, path)
        if name in self.services:
            return self.services[name]
        if name in self.broken:
            raise BadUnit(f"{self.path_of(name)}: {self.broken[name]}")
        raise NoSuchUnit(f"there is no unit {name} in {self.units_directory}")

    def path_of(self, name: str) -> Path:
        """Return where a unit's file is or would be."""
        return self.units_directory / f"{name}.json"

    def needs_reload(self, service: Service) -> bool:
        """True when the file is not what was read of it last."""
        try:
            content = Path(service.file.path).read_bytes()
        except OSError:
            return True
        return hashlib.sha256(content).hexdigest() != service.file.digest

    def journal(self, name: str) -> Journal:
        """Return a unit's journal; it may be there without its unit, and the other way round."""
        name = stem(normal_name(name))
        if name not in self._journals:
            self._journals[name] = Journal(self.directory / "journal", name)
        return self._journals[name]

    def unit_of(self, pid: int) -> str:
        """Return the name of the unit that a process belongs to, "" for none."""
        table = process_table()
        keepers = {service.keeper: name for name, service in self.services.items() if service.keeper}
        while pid in table:
            if pid in keepers:
                return keepers[pid]
            pid = table[pid].parent
        return ""

    def persist(self) -> bool:
        """Store running invocations and guards; False, and a line in the log, when that can't be done."""
        try:
            state = self.directory / "state.json"
            write_state(state, self._running(), self.guards.as_json(), ended=self.is_ending)
        except OSError as error:
            log(f"state.json can't be written: {error}")
            return False
        return True

    def _post_sentinel(self) -> None:
        """Have a sentinel stand for as long as a guard waits; it need not be our child: no event tells its end."""
        if self._sentinel_look is not None:
            self._sentinel_look.cancel()
            self._sentinel_look = None
        if self.is_ending or not self.guards.are_waiting:
            return
        loop = asyncio.get_running_loop()
        self._sentinel_look = loop.call_later(SENTINEL_LOOK_S, self._post_sentinel)
        try:
            if not is_posted(self.directory):
                post(self.directory, self._lifeline)
        except OSError as error:
            log(f"no sentinel could be started: {error}; guards act only while this supervisor runs")

    def request_end(self, *, quick: bool) -> None:
        """Stop all units and end; `quick` gives each only QUICK_STOP_S before SIGKILL. A later call may only hasten."""
        if quick or self._shutdown is not None:
            for service in self.services.values():
                service.stop_within(QUICK_STOP_S)
        if self._shutdown is None:
            self._shutdown = asyncio.create_task(self._end())
            self.persist()

    @property
    def is_ending(self) -> bool:
        """True once the end was asked for: nothing starts any more."""
        return self._shutdown is not None

    async def _end(self) -> None:
        await self.guards.close()
        for service in self.services.values():
            service.stop()
        for service in list(self.services.values()):
            await service.down.wait()
        for journal in self._journals.values():
            journal.close()
        self.persist()
        self.ended.set()

    def _read(self, name: str, path: Path) -> None:
        try:
            file = parse_unit(normal_name(name), path.read_bytes(), str(path))
        except (OSError, BadUnit) as error:
            self.broken[name] = str(error)
            return
        self.broken.pop(name, None)
        if name in self.services:
            self.services[name].file = file
        else:
            self.services[name] = Service(file, self.journal(name), self._persist_quietly)

    def _persist_quietly(self) -> None:
        # A disk that takes no more must not keep a unit from starting.
        self.persist()

    def _running(self) -> list[Running]:
        running: list[Running] = []
        for name, service in self.services.items():
            if not service.is_down:
                keeper = read_stat(service.keeper) if service.keeper else None
                started = keeper.started if keeper is not None else 0
                running.append(Running(name, service.state.invocation, service.keeper, started))
        return running

    def _reap(self) -> None:
        """Take the status of every child that has ended: keepers, and orphans of keepers that were killed."""
        keepers = {service.keeper: service for service in self.services.values() if service.keeper}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            strays = self._strays() if status != 0 or pid not in keepers else set()
            for service in self.services.values():
                service.adopt_strays(strays)
                service.stray_ended(pid)
            if pid in keepers:
                keepers[pid].keeper_ended(strays)

    def _strays(self) -> set[int]:
        keepers = {service.keeper for service in self.services.values()}
        own = os.getpid()
        return {stat.pid for stat in process_table().values() if stat.parent == own and stat.pid not in keepers}

    def _prune_journals(self) -> None:
        """Remove journals whose unit is gone and that nothing was written to for JOURNAL_KEPT_S."""
        oldest = time.time() - JOURNAL_KEPT_S
        for path in (self.directory / "journal").glob("*.jsonl*"):
            name = path.name.partition(".jsonl")[0] + SUFFIX
            with suppress(OSError):
                if name not in self.services and path.stat().st_mtime < oldest:
                    path.unlink()
