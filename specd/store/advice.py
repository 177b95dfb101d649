"""What is said of a database that can't be used: what it means for trials and hosts, and the way out."""

import sqlite3
from pathlib import Path

__all__ = ["DAMAGED", "FULL", "Unfit", "damage", "is_busy", "way_out"]

# Writing beyond the disk's end shows as the first of these, a quota or a bad disk as the others.
FULL = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_SHMSIZE}
)
DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_DENIED = frozenset({sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH})


class Unfit(sqlite3.DatabaseError):
    """A file that SQLite could use and we must not; `step` is what a person can do, where that is something special."""

    def __init__(self, why: str, step: str = "") -> None:
        super().__init__(why)
        self.step = step


def is_busy(error: BaseException | None) -> bool:
    """True when somebody else has the file; that passes."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY


def way_out(path: Path, error: BaseException | None) -> str:
    """Return what a person can do about an error of the file, as the middle of a sentence."""
    code = getattr(error, "sqlite_errorcode", 0)
    if isinstance(error, Unfit) and error.step:
        return error.step
    if code in FULL:
        return f"make room on the disk of {path.parent}"
    if (isinstance(error, PermissionError) or code & 0xFF in _DENIED) and path.is_file():
        return f"give the daemon's user read and write access to {path} and {path.parent}"
    backups = ", ".join(str(backup) for backup in sorted(path.parent.glob(f"{path.name}.before-*")))
    place = f"put a backup ({backups}) in its place" if backups else "put a backup of yours in its place"
    return f"move {path} aside together with its -wal and -shm, then {place}, or leave the place empty to start afresh"


def damage(path: Path, why: str, step: str = "") -> str:
    """Return in words that the file can't be used, and what to do."""
    return (
        f"the database {path} can't be used ({why}): it is only read, no trial is started or gone on with, and no host"
        f" is touched; a guard that is armed brings its baseline back by itself. Stop the daemon,"
        f" {step or way_out(path, None)}; then start it again"
    )
