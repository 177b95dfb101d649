"""Follows one invocation of a unit: its journal into the store, its stages, progress, exit, and whether it answers.

No single sign is needed: the journal, the unit's properties, the processes and the port are read side by side.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from specd.engines.engine import Engine, Failure, Stage
from specd.engines.openai_probe import Health, ServerProbe
from specd.engines.progress import Estimate, Estimator, Reading
from specd.errors import HostError, HostUnreachable, StoreError
from specd.hosts.gpu import gpu_memory
from specd.hosts.host import Host, Route
from specd.services.service import JournalRecord, ServiceManager, UnitStatus
from states.table import State

__all__ = ["UnitWatch", "WatchSource"]

log = structlog.get_logger()

_STATUS_S = 0.25
_BLIND_S = 3.0
_PROBE_S = 0.08
# Once the log says that the server comes up, it is asked this often, for so long.
_EAGER_PROBE_S = 0.02
_EAGER_FOR_S = 10.0
_OUTSIDE_S = 1.0
_GPU_EVERY = 5
_STORE_S = 0.2
_HELD_LINES = 50_000
_TOLD_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSource:
    """Where a watch reads from and writes to."""

    host: Host
    manager: ServiceManager
    engine: Engine
    history_s: Mapping[str, float]
    store_records: Callable[[str, str, list[JournalRecord]], None]
    stored_lines: Callable[[str], list[JournalRecord]]
    progressed: Callable[[State, Estimate], None]


class UnitWatch:
    """One invocation's life as seen from outside; `state` is the trial's state that progress is told for."""

    def __init__(self, source: WatchSource, unit: str, invocation: str, state: State) -> None:
        self._source = source
        self.engine = source.engine
        self.unit = unit
        self.invocation = invocation
        self.state = state
        self.reader = source.engine.reader()
        self.is_up = False
        self.exit: Failure | None = None
        self._estimator = Estimator(time.monotonic(), history=source.history_s)
        self.exited = asyncio.Event()
        self._changed = asyncio.Event()
        self._announced = asyncio.Event()
        self._seen_running = asyncio.Event()
        self._announced_at = 0.0
        self._looked_at = self._back_at = time.monotonic()
        self._cursor = ""
        self._told = (0.0, "")
        self._tail: list[str] = []
        self._batch: list[JournalRecord] = []
        self._is_holding = False
        self._followers: list[asyncio.Task[None]] = []

    @property
    def stage(self) -> str:
        """The start-up stage reached, as Stage names it."""
        return self._estimator.stage

    @property
    def moved_at(self) -> float:
        """time.monotonic() of the last sign of progress of any kind; what nobody could see counts as one."""
        return max(self._back_at, self._estimator.estimate(time.monotonic()).moved_at)

    @property
    def still_s(self) -> float:
        """Seconds without progress, as far as it was looked at."""
        return max(0.0, self._looked_at - self.moved_at)

    @property
    def took_s(self) -> Mapping[str, float]:
        """Seconds that each start-up stage took."""
        return self._estimator.took_s

    def last_lines(self, count: int) -> tuple[str, ...]:
        """Return the log's last lines."""
        return tuple(self._tail[-count:])

    async def changed(self, timeout_s: float) -> None:
        """Wait until something worth a look happened, at most `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self._changed.clear()

    @contextlib.asynccontextmanager
    async def running(self, route: Route) -> AsyncIterator["UnitWatch"]:
        """Watch for as long as the context lasts; an error in a part of it ends the body with that error."""
        if not self._cursor:
            for record in self._source.stored_lines(self.invocation):
                self._read(record)
        try:
            async with asyncio.TaskGroup() as group:
                self._followers = [group.create_task(self._steadily(self._follow_journal), name="watch.journal")]
                parts = [group.create_task(self._steadily(part)) for part in (self._follow_status, self._read_outside)]
                parts.append(group.create_task(self._wait_for_health(route)))
                parts.append(group.create_task(self._store_steadily()))
                try:
                    yield self
                finally:
                    for task in (*self._followers, *parts):
                        task.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _steadily(self, part: Callable[[], Awaitable[None]]) -> None:
        """Run a part again, with backoff, for as long as the host is the trouble; unknown is not an exit."""
        pause = 0.2
        while True:
            started = time.monotonic()
            try:
                await part()
                return
            except HostError as error:
                log.info("watch.part-failed", part=part.__name__, error=str(error))
                if time.monotonic() - started > 30:
                    pause = 0.2
                await asyncio.sleep(pause)
                pause = min(pause * 2, 5.0)

    # -- journal

    def _read(self, record: JournalRecord) -> None:
        self._cursor = record.cursor
        self._tail.append(record.text[-2000:])
        del self._tail[:-200]
        for observation in self.reader.feed(record.text):
            self._estimator.observe(observation, time.monotonic())
        if self._estimator.stage == Stage.SERVER and not self._announced.is_set():
            self._announced_at = time.monotonic()
            self._announced.set()
        self._changed.set()

    async def _follow_journal(self) -> None:
        async with self._source.manager.journal(self.unit, self.invocation, after=self._cursor) as records:
            async for record in records:
                self._batch.append(record)
                self._read(record)

    async def _store_steadily(self) -> None:
        try:
            while True:
                await asyncio.sleep(_STORE_S)
                self.store_lines()
        finally:
            self.store_lines()

    def store_lines(self) -> None:
        """Store what was read and could not be stored yet; what can't be stored now either waits."""
        if not self._batch:
            return
        try:
            self._source.store_records(self.unit, self.invocation, self._batch)
        except StoreError as error:
            if not self._is_holding:
                log.warning("watch.lines-held", error=str(error))
            self._is_holding = True
            del self._batch[:-_HELD_LINES]
        else:
            self._is_holding = False
            self._batch.clear()

    # -- the unit

    async def _follow_status(self) -> None:
        while True:
            status = await self._source.manager.status(self.unit)
            if status.invocation != self.invocation or status.is_down:
                await self._ended(status)
                return
            self._seen_running.set()
            self._looked()
            await asyncio.sleep(_STATUS_S)

    def _looked(self) -> None:
        now = time.monotonic()
        if now - self._looked_at > _BLIND_S:
            # The host was away: what has moved meanwhile is not known yet.
            self._back_at = now
        self._looked_at = now

    async def _ended(self, status: UnitStatus) -> None:
        """The invocation is over: read the rest of its journal, then say why."""
        was_stopped = await self._read_rest()
        if status.invocation != self.invocation:
            words = "was removed" if not status.exists else "was started again by someone else"
            self.exit = self.reader.failure() or Failure(kind="operator", sentence=f"{self.unit} {words}")
        elif was_stopped:
            # However it ended then: an engine that swallows SIGTERM is killed in the end, and that is no news.
            sentence = f"{self.unit} was stopped by someone else on {self._source.host.name}, not by specd"
            hint = "whoever did it should use `specd cancel`; submit the trial again when it suits"
            self.exit = Failure(kind="operator", sentence=sentence, hint=hint)
        else:
            self.exit = self.engine.explain_exit(
                self.reader, result=status.result, code=status.exec_code, status=status.exec_status
            )
        self.exited.set()
        self._changed.set()

    async def _read_rest(self) -> bool:
        """Take over from the follower, which may be some records behind: the manager has them all by now.

        Returns True when the manager says that it was asked to stop the unit.
        """
        for follower in self._followers:
            follower.cancel()
        await asyncio.wait(self._followers)
        history = await self._source.manager.history(self.unit, self.invocation, last=4000)
        known = [record.cursor for record in history]
        rest = history[known.index(self._cursor) + 1 :] if self._cursor in known else history
        for record in rest:
            self._batch.append(record)
            self._read(record)
        self.store_lines()
        return any(record.tells_stop for record in history)

    # -- what moves while the log is silent

    async def _read_outside(self) -> None:
        look = 0
        while not self.is_up:
            processes = await self._source.manager.processes(self.unit)
            gpu_mib: int | None = None
            if look % _GPU_EVERY == 0 and (gpus := await gpu_memory(self._source.host)) is not None:
                gpu_mib = sum(gpu.used_mib for gpu in gpus)
            reads = [process.read_bytes for process in processes if process.read_bytes is not None]
            self._estimator.read(
                Reading(
                    at=time.monotonic(),
                    read_bytes=sum(reads) if reads else None,
                    rss_bytes=sum(process.rss_bytes for process in processes),
                    cpu_s=sum(process.cpu_s for process in processes),
                    gpu_mib=gpu_mib,
                )
            )
            self._tell()
            look += 1
            await asyncio.sleep(_OUTSIDE_S)

    def _tell(self) -> None:
        estimate = self._estimator.estimate(time.monotonic())
        if time.monotonic() - self._told[0] < _TOLD_S and estimate.stage == self._told[1]:
            return
        self._told = (time.monotonic(), estimate.stage)
        self._source.progressed(self.state, estimate)

    # -- the port

    async def _wait_for_health(self, route: Route) -> None:
        # Who answers on the port while this invocation is over is somebody else.
        await self._seen_running.wait()
        async with ServerProbe(route, model="") as probe:
            while True:
                with contextlib.suppress(HostUnreachable):
                    if await probe.health() is Health.UP:
                        break
                await self._pause_probing()
        if self.exit is not None:
            return
        self.is_up = True
        self._changed.set()

    async def _pause_probing(self) -> None:
        """Wait before the next probe; the log's word that the server comes up only hastens it."""
        if not self._announced.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PROBE_S):
                    await self._announced.wait()
        elif time.monotonic() - self._announced_at < _EAGER_FOR_S:
            await asyncio.sleep(_EAGER_PROBE_S)
        else:
            await asyncio.sleep(_PROBE_S)
