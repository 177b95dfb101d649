"""The SQLite file in use: written one commit at a time, read without surprises, and trusted no longer than it may be.

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
from specd.store.advice import DAMAGED, FULL, damage, is_busy, way_out
from specd.store.opening import BUSY_S, examine, open_for_reading, open_for_writing

__all__ = ["Database", "is_locked"]

log = structlog.get_logger()

Rows = list[tuple[Any, ...]]
_BALLAST_BYTES = 8 * 2**20


class Database:
    """The file at `path`. `problem` says in words why it is only read, "" while all is well; `is_short`, that the disk
    is full.

    Raises StoreError when it can't be opened. With `problem` given, it is opened for reading as far as that goes, and
    an empty one in memory stands in for a file that nothing can be read from.
    """

    def __init__(self, path: Path, problem: str = "") -> None:
        self.path = path
        self.problem = problem
        self.is_short = False
        self.is_examined = False
        self._ballast = path.with_suffix(".ballast")
        self._is_patient = True
        if problem:
            self._db = open_for_reading(path)
            return
        try:
            self._db, self.is_examined = self._opened()
            self._place = _place(path)
        except (sqlite3.Error, OSError) as error:
            if is_busy(error):
                what = f"the database {path} is in use by another program: {error}"
                raise StoreError(what, next_step=f"end that program; `fuser -v {path}` names it") from error
            raise StoreError(f"the database {path} can't be opened: {error}", next_step=way_out(path, error)) from error
        self.find_room()

    def _opened(self) -> tuple[sqlite3.Connection, bool]:
        if not self.path.exists():
            with suppress(FileNotFoundError):
                self._ballast.unlink()
        try:
            return open_for_writing(self.path, is_new=not self._ballast.exists())
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) not in FULL or not self._ballast.exists():
                raise
        # What a killed daemon left must be put in order, which takes room.
        self._give_room_up()
        return open_for_writing(self.path, is_new=False)

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
            self._be_patient(True)
            try:
                yield self._db
                with around(f"commit {what}"):
                    self._db.execute("COMMIT")
            except BaseException:
                # SQLite may have done so by itself; the first error is the one that tells.
                if self._db.in_transaction:
                    with suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._trouble("written", error) from error

    def _be_patient(self, patient: bool) -> None:
        """Wait a moment for others, or not at all once that was in vain: each such wait holds the event loop."""
        if patient is not self._is_patient:
            self._is_patient = patient
            self._db.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000) if patient else 0}")

    def _trouble(self, done: str, error: sqlite3.Error) -> StoreError:
        code = getattr(error, "sqlite_errorcode", 0)
        if code in FULL:
            self._give_room_up()
        elif is_busy(error):
            self._be_patient(False)
        elif code & 0xFF in DAMAGED:
            return self.harmed(str(error))
        return StoreError(f"the database {self.path} can't be {done}: {error}")

    # -- trust

    def harmed(self, why: str) -> StoreError:
        """Only read the file from now on; returns the error to raise."""
        if not self.problem:
            self.problem = damage(self.path, why)
            log.error("store.damaged", problem=self.problem)
        return StoreError(self.problem)

    def examine(self, is_enough: Callable[[], bool] = lambda: False) -> str:
        """Look through the whole file, in any thread, until `is_enough` says so; returns what is wrong, "" for
        nothing."""
        return examine(self.path, is_enough)

    def check_place(self) -> None:
        """Find out whether the file is still the one that was opened: what is written to another is lost."""
        if not self.problem and _place(self.path) != self._place:
            aside = f"put the right file at {self.path}, without a -wal and -shm of another one"
            self.problem = damage(self.path, "it was removed or replaced while it was in use", aside)
            log.error("store.replaced", problem=self.problem)

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


def is_locked(error: StoreError) -> bool:
    """True when somebody else has the file; that passes."""
    return is_busy(error.__cause__)


def _leave_as_much(directory: Path) -> None:
    """Raise OSError unless there would be as much room again beside the ballast."""
    free = os.statvfs(directory)
    if free.f_bavail * free.f_frsize < 2 * _BALLAST_BYTES:
        raise OSError("too little room")


def _place(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
