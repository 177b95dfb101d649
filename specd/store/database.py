"""The SQLite file: opened, migrated with a backup first, written one commit at a time, read without surprises.

Full disks are met with a ballast: a file that gives its room up, so that what is under way can still be stored.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import structlog

from specd.errors import StoreError
from specd.failpoint import around
from specd.store.schema import MIGRATIONS, migrate

__all__ = ["Database", "damage", "is_locked"]

log = structlog.get_logger()

Rows = list[tuple[Any, ...]]
_BALLAST_BYTES = 4 * 2**20
# Another process that writes is waited for off the event loop: by trying again.
_BUSY_MS = 100
_OPENING_BUSY_MS = 5000
_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC})
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class Database:
    """The file at `path`. `problem` says in words why it is only read, "" while all is well.

    Raises StoreError when it can't be opened. With `problem` given, it is opened for reading as far as that goes, and
    an empty one in memory stands in for a file that nothing can be read from.
    """

    def __init__(self, path: Path, problem: str = "") -> None:
        self.path = path
        self.problem = problem
        self.is_short = False
        self._ballast = path.with_suffix(".ballast")
        try:
            self._db = _opened_read_only(path) if problem else _opened(path)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"the database {path} can't be opened: {error}",
                next_step=f"no host was touched; move {path} aside to start afresh, or restore it from a backup",
            ) from error
        if not problem:
            self.find_room()

    def close(self) -> None:
        """Close the file; a checkpoint of the WAL happens here."""
        self._db.close()

    # -- reading

    def all(self, query: str, values: Sequence[Any] = ()) -> Rows:
        """Return all rows of a query; raises StoreError."""
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._trouble("read", error) from error

    def one(self, query: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """Return a query's first row, None when there is none; raises StoreError."""
        rows = self.all(query, values)
        return rows[0] if rows else None

    def number(self, query: str, values: Sequence[Any] = ()) -> int:
        """Return the one number that a query gives."""
        row = self.one(query, values)
        return int(row[0]) if row else 0

    # -- writing

    @contextmanager
    def write(self, what: str) -> Iterator[sqlite3.Connection]:
        """Make the body one durable commit of `what`, as its failpoint is called; raises StoreError.

        On a full disk the ballast is given up, so that the caller's next try has room.
        """
        if self.problem:
            raise StoreError(self.problem)
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            with around(f"commit {what}"):
                self._db.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            raise self._trouble("written", error) from error

    def _trouble(self, done: str, error: sqlite3.Error) -> StoreError:
        code = getattr(error, "sqlite_errorcode", 0)
        if code in _FULL:
            self._give_room_up()
        elif code & 0xFF in _DAMAGED and not self.problem:
            self.problem = damage(self.path, str(error))
            log.error("store.damaged", problem=self.problem)
        return StoreError(f"the database {self.path} can't be {done}: {error}")

    # -- room

    def _give_room_up(self) -> None:
        if not self.is_short:
            log.error("store.disk-full", path=str(self.path))
        self.is_short = True
        with suppress(OSError):
            self._ballast.unlink()

    def find_room(self) -> bool:
        """Make the ballast where it is missing and there is room; True when all is well (again)."""
        try:
            descriptor = os.open(self._ballast, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(descriptor).st_blocks * 512 < _BALLAST_BYTES:
                    _leave_as_much(self._ballast.parent)
                    os.posix_fallocate(descriptor, 0, _BALLAST_BYTES)
            finally:
                os.close(descriptor)
        except OSError:
            self._give_room_up()
            return False
        self.is_short = False
        return True

    def examine(self, is_enough: Callable[[], bool] = lambda: False) -> str:
        """Look through the file on a connection of its own, in any thread, until `is_enough` says so.

        Returns what is wrong with it, "" for nothing.
        """
        own = sqlite3.connect(f"file:{_quoted(self.path)}?mode=ro", uri=True, timeout=5.0, check_same_thread=False)
        own.set_progress_handler(lambda: int(is_enough()), 10_000)
        try:
            (found,) = own.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.OperationalError:
            return ""
        except sqlite3.Error as error:
            return str(error)
        finally:
            own.close()
        return "" if found == "ok" else str(found)


def is_locked(error: StoreError) -> bool:
    """True when somebody else has the file; that passes."""
    code = getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF
    return code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def damage(path: Path, why: str) -> str:
    """Return in words that the file can't be used, and what to do."""
    backups = ", ".join(str(backup) for backup in sorted(path.parent.glob(f"{path.name}.before-*")))
    steps = f"restore it from a backup ({backups})" if backups else "restore it from a backup"
    return (
        f"the database {path} can't be used ({why}): it is only read, no trial is started or gone on with, and no host"
        f" is touched; a guard that is armed brings its baseline back by itself. Stop the daemon, {steps}, or move"
        f" {path} aside to start afresh, then start it again"
    )


def _leave_as_much(directory: Path) -> None:
    """Raise OSError unless there would be as much room again beside the ballast."""
    free = os.statvfs(directory)
    if free.f_bavail * free.f_frsize < 2 * _BALLAST_BYTES:
        raise OSError("too little room")


def _quoted(path: Path) -> str:
    return str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _opened(path: Path) -> sqlite3.Connection:
    # What SQLite puts beside the file gets the file's mode.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    os.close(descriptor)
    db = sqlite3.connect(path, isolation_level=None, timeout=_OPENING_BUSY_MS / 1000)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        migrate(db, path)
        db.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
    except BaseException:
        db.close()
        raise
    return db


def _opened_read_only(path: Path) -> sqlite3.Connection:
    """Return what can be read of a damaged file: itself if its tables answer, else an empty one in memory."""
    try:
        db = sqlite3.connect(f"file:{_quoted(path)}?mode=ro", uri=True, isolation_level=None, timeout=1.0)
        try:
            for table in ("trial", "move", "event", "fact", "level", "artefact", "log", "submission"):
                db.execute(f"SELECT * FROM {table} LIMIT 1").fetchall()
        except BaseException:
            db.close()
            raise
    except sqlite3.Error:
        db = sqlite3.connect(":memory:", isolation_level=None)
        for script in MIGRATIONS:
            db.executescript(script)
    return db
