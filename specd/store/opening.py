"""How the file is opened: looked at first on a connection that can't write, then for writing, or only to be read."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from specd.store import schema, wal
from specd.store.advice import Unfit, is_busy

__all__ = ["BUSY_S", "examine", "open_for_reading", "open_for_writing"]

# Somebody else who has the file is waited for off the event loop: by trying again.
BUSY_S = 0.1
# A file up to this size is looked through before anything is done; that takes some milliseconds.
_EXAMINED_FIRST_BYTES = 16 * 2**20


def open_for_writing(path: Path, *, is_new: bool) -> tuple[sqlite3.Connection, bool]:
    """Return a connection to the migrated file, and whether all of it was examined; raises sqlite3.Error, OSError.

    Nothing is written before the file is known to be ours and sound as far as that is quick to see. `is_new`: no file
    of this name was ever in use here, so an empty one is no damage.
    """
    size = path.stat().st_size if path.exists() else -1
    # What SQLite puts beside the file gets the file's mode.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    os.close(descriptor)
    is_small = size <= _EXAMINED_FIRST_BYTES
    if size > 0:
        _look_first(path, thoroughly=is_small)
    elif size == 0 and not is_new:
        raise Unfit("it is empty, and it was not when it was used last")
    db = sqlite3.connect(path, isolation_level=None, timeout=BUSY_S)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        schema.migrate(db, path)
    except BaseException:
        db.close()
        raise
    return db, is_small


def _look_first(path: Path, *, thoroughly: bool) -> None:
    """Raise sqlite3.Error for a file that must not be written to.

    A connection that may write would not do: its end copies the log into the file, be it sound or not.
    """
    seen = wal.look(path.with_name(f"{path.name}-wal"))
    with closing(_read_only(path, BUSY_S)) as db:
        schema.check(db)
        if lost := wal.damage_since(seen, path.with_name(f"{path.name}-shm")):
            raise Unfit(lost)
        if thoroughly and (why := _check(db)):
            raise Unfit(why)


def examine(path: Path, is_enough: Callable[[], bool]) -> str:
    """Look through the whole file on a connection of its own, in any thread, until `is_enough` says so.

    Returns what is wrong with it, "" for nothing.
    """
    try:
        with closing(_read_only(path, 5.0)) as db:
            db.set_progress_handler(lambda: int(is_enough()), 10_000)
            return _check(db)
    except sqlite3.Error as error:
        stopped = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT
        return "" if stopped or is_busy(error) else str(error)


def _check(db: sqlite3.Connection) -> str:
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    return "" if found == "ok" else " ".join(str(found).split())


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Return what can be read of a file that can't be used: itself if its tables answer, else an empty one."""
    try:
        db = _read_only(path, 1.0)
        try:
            for table in ("trial", "move", "event", "fact", "level", "artefact", "log", "submission"):
                db.execute(f"SELECT * FROM {table} LIMIT 1").fetchall()
        except BaseException:
            db.close()
            raise
    except sqlite3.Error:
        db = schema.in_memory()
    return db


def _read_only(path: Path, busy_s: float) -> sqlite3.Connection:
    quoted = str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return sqlite3.connect(
        f"file:{quoted}?mode=ro", uri=True, isolation_level=None, timeout=busy_s, check_same_thread=False
    )
