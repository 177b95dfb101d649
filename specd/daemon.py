"""Composition root: builds the parts, runs them in one TaskGroup, ends them in order."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import structlog

from specd import __version__
from specd.api.app import serve
from specd.api.service import Application
from specd.bus import Bus
from specd.config import Paths
from specd.errors import Refused, StoreError
from specd.fleet import Fleet
from specd.log import configure
from specd.notify import DirectoryLock, tell_manager, watchdog_period_s
from specd.scheduler import Scheduler
from specd.settings import Config
from specd.store import Database, Store, damage, is_locked
from specd.uncut import end_task
from states.events import DaemonStarted, DaemonStopped

__all__ = ["run"]

log = structlog.get_logger()

_LOOK_S = 2.0
_EXAMINED_FIRST_BYTES = 16 * 2**20
_CLOSE_S = 1.5
_LOCKED_S = 60.0


def run(config: Config, paths: Paths) -> int:
    """Run the daemon in the foreground until SIGTERM or SIGINT; returns the exit code."""
    configure(config.daemon.log_level, config.daemon.log_format)
    _private_directory(paths.state_dir)
    _private_directory(paths.runtime_dir)
    lock = DirectoryLock(paths.state_dir)
    try:
        asyncio.run(_main(config, paths))
    finally:
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


async def _main(config: Config, paths: Paths) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    store = _open_store(paths.state_dir / "specd.db")
    bus = Bus(store)
    fleet = Fleet(config, paths.runtime_dir)
    scheduler = Scheduler(fleet, store, bus)
    application = Application(config, paths, store, bus, fleet, scheduler)
    async with serve(application, paths.socket, config.daemon):
        tell_manager("READY=1", f"STATUS=serving {paths.socket}")
        tasks = [
            asyncio.create_task(_drive(store, bus, scheduler, paths), name="scheduler"),
            asyncio.create_task(_feed_watchdog(), name="watchdog"),
        ]
        ended = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.wait({*tasks, ended}, return_when=asyncio.FIRST_COMPLETED)
        tell_manager("STOPPING=1")
        left = await scheduler.stop()
        for task in tasks:
            await end_task(task)
        bus.emit(DaemonStopped(left_behind=tuple(left)))
        log.info("daemon.stopping", left_behind=[scheduler.left_words(trial) for trial in left])
    faults = [task.exception() for task in tasks if task.done() and not task.cancelled()]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_S):
            await fleet.close()
    store.close()
    for fault in faults:
        if fault is not None:
            raise fault


def _open_store(path: Path) -> Store:
    """Open the database, or what can be read of one that can't be used: then nothing is started and no host touched."""
    until = time.monotonic() + _LOCKED_S
    while True:
        try:
            store = Store(path)
            break
        except StoreError as error:
            if is_locked(error) and time.monotonic() < until:
                log.warning("daemon.database-locked", error=str(error))
                continue
            if is_locked(error):
                raise
            log.error("daemon.degraded", error=str(error))
            return Store(path, damage(path, str(error.__cause__)))
    # A file of thousands of trials is looked through while it is in use: nothing that runs should wait for it.
    if path.stat().st_size <= _EXAMINED_FIRST_BYTES:
        _examine(store.database, threading.Event())
    return store


async def _drive(store: Store, bus: Bus, scheduler: Scheduler, paths: Paths) -> None:
    """Take up what is open and run what is queued, for as long as the database can be trusted."""
    database = store.database
    ending = threading.Event()
    taken_up: tuple[str, ...] = ()
    if not database.problem:
        taken_up = scheduler.take_up()
        bus.emit(DaemonStarted(version=__version__, pid=os.getpid(), open_trials=taken_up))
    log.info("daemon.ready", socket=str(paths.socket), open_trials=taken_up, problem=database.problem)
    running = asyncio.create_task(scheduler.run())
    looking = asyncio.create_task(asyncio.to_thread(_examine, database, ending))
    try:
        while not database.problem and not running.done():
            await asyncio.wait({running}, timeout=_LOOK_S)
            if database.is_short and database.find_room():
                log.info("store.room-again")
                scheduler.look()
        if running.done():
            running.result()
        tell_manager("STATUS=degraded: the database is only read")
        log.error("daemon.degraded", problem=database.problem)
        await end_task(running)
        await scheduler.stop()
        await asyncio.Event().wait()
    finally:
        ending.set()
        await end_task(running)
        await end_task(looking)


def _examine(database: Database, ending: threading.Event) -> None:
    """Look through the whole file once; runs in a thread."""
    if not database.problem and (why := database.examine(ending.is_set)):
        database.problem = damage(database.path, why)


async def _feed_watchdog() -> None:
    """Tell the service manager that the loop is alive; without a watchdog there is nothing to do."""
    period = watchdog_period_s()
    while True:
        await asyncio.sleep(period or 3600.0)
        if period:
            tell_manager("WATCHDOG=1")
