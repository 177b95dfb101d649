"""Composition root: builds the parts, runs them in one TaskGroup, ends them in order."""

import asyncio
import contextlib
import os
import threading
import time
from pathlib import Path

import structlog

from specd import __version__
from specd.api.app import serve
from specd.api.service import Application
from specd.bus import Bus
from specd.config import Paths
from specd.ending import Ending
from specd.errors import Refused, StoreError
from specd.fleet import Fleet
from specd.keeping import Keeping
from specd.log import configure
from specd.notify import DirectoryLock, tell_manager, watchdog_period_s
from specd.scheduler import Scheduler
from specd.settings import Config
from specd.store import Database, Store, damage, is_locked, way_out
from specd.uncut import end_task
from states.events import DaemonStarted, DaemonStopped
from states.table import PARKED, State

__all__ = ["run"]

log = structlog.get_logger()

_LOOK_S = 2.0
_CLOSE_S = 1.0
_LOCKED_S = 60.0
_LOCKED_RETRY_S = 0.2
_SETTLE_TRIES = 5
_SETTLE_RETRY_S = 0.1


def run(config: Config, paths: Paths) -> int:
    """Run the daemon in the foreground until SIGTERM or SIGINT; returns the exit code."""
    configure(config.daemon.log_level, config.daemon.log_format)
    _private_directory(paths.state_dir)
    _private_directory(paths.runtime_dir)
    lock = DirectoryLock(paths.state_dir)
    ending = Ending()
    try:
        asyncio.run(_main(config, paths, ending))
    finally:
        ending.release()
        lock.release()
    return 0


def _private_directory(path: Path) -> None:
    """Make a directory that only we can enter; the API's socket has no other protection."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Refused(
            f"{path} is open to others (owner {found.st_uid}, mode {found.st_mode & 0o777:o}); specd needs its own",
            next_step=f"chmod 700 {path}, or set state_dir and socket in [daemon]",
        )


async def _main(config: Config, paths: Paths, ending: Ending) -> None:
    stop = asyncio.Event()
    ending.listen(stop.set)
    if (store := await _open_store(paths.state_dir / "specd.db", stop)) is not None:
        await _serve(config, paths, store, stop, ending)


async def _serve(config: Config, paths: Paths, store: Store, stop: asyncio.Event, ending: Ending) -> None:
    bus = Bus(store)
    fleet = Fleet(config, paths.runtime_dir)
    scheduler = Scheduler(fleet, store, bus)
    keeping = Keeping(fleet, store, bus, scheduler)
    application = Application(config, paths, store, bus, fleet, scheduler)
    async with serve(application, paths.socket, config.daemon):
        tell_manager("READY=1", f"STATUS=serving {paths.socket}")
        tasks = [
            asyncio.create_task(_drive(store, bus, scheduler, keeping, paths), name="scheduler"),
            asyncio.create_task(_feed_watchdog(), name="watchdog"),
        ]
        ended = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.wait({*tasks, ended}, return_when=asyncio.FIRST_COMPLETED)
        tell_manager("STOPPING=1")
        ending.begin(0 if stop.is_set() else 1)
        left = await _leave(store, scheduler)
        log.info("daemon.stopping", left_behind=[scheduler.left_words(trial) for trial in left])
        for task in (*tasks, ended):
            await end_task(task)
        if not store.database.problem:
            bus.emit(DaemonStopped(left_behind=tuple(left)))
            await _settle(bus)
    faults = [task.exception() for task in tasks if task.done() and not task.cancelled()]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_S):
            await fleet.close()
    store.close()
    for fault in faults:
        if fault is not None:
            raise fault


async def _settle(bus: Bus) -> None:
    """Give events that could not be stored a last chance."""
    for _ in range(_SETTLE_TRIES):
        if bus.catch_up():
            return
        await asyncio.sleep(_SETTLE_RETRY_S)


async def _open_store(path: Path, stop: asyncio.Event) -> Store | None:
    """Open the database, or what can be read of one that can't be used: then nothing is started and no host touched.

    Somebody else who has it is waited for; None when we are told to end meanwhile.
    """
    until = time.monotonic() + _LOCKED_S
    is_told = False
    while not stop.is_set():
        try:
            return Store(path)
        except StoreError as error:
            if not is_locked(error):
                log.error("daemon.degraded", error=str(error))
                return Store(path, damage(path, str(error.__cause__), way_out(path, error.__cause__)))
            if time.monotonic() > until:
                raise
            if not is_told:
                is_told = True
                log.warning("daemon.database-locked", error=str(error), waits_s=_LOCKED_S)
                tell_manager("STATUS=waiting for the database, which another program has")
        await asyncio.sleep(_LOCKED_RETRY_S)
    return None


async def _drive(store: Store, bus: Bus, scheduler: Scheduler, keeping: Keeping, paths: Paths) -> None:
    """Take up what is open and run what is queued, for as long as the database can be trusted."""
    database = store.database
    ending = threading.Event()
    taken_up = _take_up(store, bus, scheduler)
    log.info("daemon.ready", socket=str(paths.socket), open_trials=taken_up, problem=database.problem)
    running = asyncio.create_task(_side_by_side(scheduler, keeping))
    looking = asyncio.create_task(asyncio.to_thread(_examine, database, ending))
    try:
        await _look_after(database, bus, scheduler, running)
        tell_manager("STATUS=degraded: the database is only read")
        await end_task(running)
        left = await _leave(store, scheduler)
        log.error(
            "daemon.degraded",
            problem=database.problem,
            left_behind=[scheduler.left_words(trial) for trial in left],
        )
        bus.cut()
        await asyncio.Event().wait()
    finally:
        ending.set()
        await end_task(running)
        await end_task(looking)


async def _side_by_side(scheduler: Scheduler, keeping: Keeping) -> None:
    """Run both; neither ever returns."""
    async with asyncio.TaskGroup() as group:
        group.create_task(scheduler.run())
        group.create_task(keeping.run())


def _take_up(store: Store, bus: Bus, scheduler: Scheduler) -> tuple[str, ...]:
    """Continue the open trials; one that can't be read makes the database one that is only read."""
    taken_up: tuple[str, ...] = ()
    try:
        if not store.database.problem:
            taken_up = scheduler.take_up()
            bus.emit(DaemonStarted(version=__version__, pid=os.getpid(), open_trials=taken_up))
    except StoreError as error:
        # Without its open trials a daemon would take services for free.
        store.database.harmed(str(error))
    return taken_up


async def _leave(store: Store, scheduler: Scheduler) -> list[str]:
    """End the trials' tasks; returns those that go on where they are, also the ones that the database has ended."""
    left = set(await scheduler.stop())
    if store.database.problem:
        with contextlib.suppress(StoreError):
            open_trials = store.open_trials()
            left |= {row.id for row in open_trials if row.state not in PARKED and row.state is not State.QUEUED}
    return sorted(left)


async def _look_after(database: Database, bus: Bus, scheduler: Scheduler, running: asyncio.Task[None]) -> None:
    """Look now and then whether the database can still be trusted; returns when not. Clients are told of a change."""
    was_short = database.is_short
    while not database.problem:
        await asyncio.wait({running}, timeout=_LOOK_S)
        if running.done():
            running.result()
        database.check_place()
        if database.is_short and database.find_room():
            log.info("store.room-again")
            scheduler.look()
        if database.is_short is not was_short:
            was_short = database.is_short
            bus.cut()


def _examine(database: Database, ending: threading.Event) -> None:
    """Look through the whole file once, if that was not done when it was opened; runs in a thread."""
    if not database.problem and not database.is_examined and (why := database.examine(ending.is_set)):
        database.harmed(why)


async def _feed_watchdog() -> None:
    """Tell the service manager that the loop is alive; without a watchdog there is nothing to do."""
    period = watchdog_period_s()
    while True:
        await asyncio.sleep(period or 3600.0)
        if period:
            tell_manager("WATCHDOG=1")
