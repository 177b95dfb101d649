"""Numbered migrations; the file's user_version is the number of the last one applied."""

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from specd.failpoint import around
from specd.store.advice import Unfit

__all__ = ["MIGRATIONS", "check", "in_memory", "migrate"]

_FIRST = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE trial (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, service TEXT NOT NULL, host TEXT NOT NULL, spec TEXT NOT NULL,
    created_at TEXT NOT NULL, updated_at TEXT NOT NULL, state TEXT NOT NULL, outcome TEXT, reason TEXT NOT NULL
    DEFAULT '',
    failure TEXT
) STRICT;
CREATE INDEX trial_by_state ON trial (state);
CREATE INDEX trial_by_service ON trial (service, created_at);
-- Append-only. The primary key is the last guard against a double move.
CREATE TABLE move (
    trial TEXT NOT NULL REFERENCES trial (id), seq INTEGER NOT NULL, source TEXT NOT NULL, trigger TEXT NOT NULL,
    target TEXT NOT NULL, cause TEXT NOT NULL, at TEXT NOT NULL, PRIMARY KEY (trial, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE event (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, trial TEXT, service TEXT, body TEXT NOT NULL
) STRICT;
CREATE INDEX event_by_trial ON event (trial, seq);
-- Checkpoints: what a state's work must find again after a crash.
CREATE TABLE fact (
    trial TEXT NOT NULL REFERENCES trial (id), key TEXT NOT NULL, value TEXT NOT NULL, at TEXT NOT NULL,
    PRIMARY KEY (trial, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE level (
    id INTEGER PRIMARY KEY, trial TEXT NOT NULL REFERENCES trial (id), service TEXT NOT NULL, side TEXT NOT NULL,
    invocation TEXT NOT NULL, digest TEXT NOT NULL, concurrency INTEGER NOT NULL, repeat INTEGER NOT NULL,
    at TEXT NOT NULL, body TEXT NOT NULL, UNIQUE (trial, side, invocation, digest, concurrency, repeat)
) STRICT;
CREATE INDEX level_by_invocation ON level (service, side, invocation, digest);
CREATE TABLE artefact (
    trial TEXT NOT NULL REFERENCES trial (id), name TEXT NOT NULL, at TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (trial, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE log (
    trial TEXT NOT NULL REFERENCES trial (id), n INTEGER NOT NULL, at REAL NOT NULL, unit TEXT NOT NULL,
    invocation TEXT NOT NULL, pid INTEGER NOT NULL, cursor TEXT NOT NULL, text TEXT NOT NULL, PRIMARY KEY (trial, n)
) STRICT, WITHOUT ROWID;
CREATE INDEX log_by_invocation ON log (trial, invocation, n);
CREATE TABLE submission (key TEXT PRIMARY KEY, trials TEXT NOT NULL, at TEXT NOT NULL) STRICT, WITHOUT ROWID;
"""

# The list of trials, newest first, a page at a time.
_BY_AGE = "CREATE INDEX trial_by_age ON trial (created_at);"

# Levels of an open loop: a rate belongs to what tells levels apart.
_RATES = """
CREATE TABLE level_by_load (
    id INTEGER PRIMARY KEY, trial TEXT NOT NULL REFERENCES trial (id), service TEXT NOT NULL, side TEXT NOT NULL,
    invocation TEXT NOT NULL, digest TEXT NOT NULL, concurrency INTEGER NOT NULL, rate REAL NOT NULL,
    repeat INTEGER NOT NULL, at TEXT NOT NULL, body TEXT NOT NULL,
    UNIQUE (trial, side, invocation, digest, concurrency, rate, repeat)
) STRICT;
INSERT INTO level_by_load
    SELECT id, trial, service, side, invocation, digest, concurrency, 0.0, repeat, at, body FROM level;
DROP TABLE level;
ALTER TABLE level_by_load RENAME TO level;
CREATE INDEX level_by_invocation ON level (service, side, invocation, digest);
"""

MIGRATIONS: tuple[str, ...] = (_FIRST, _BY_AGE, _RATES)
_BACKUPS_KEPT = 3


def check(connection: sqlite3.Connection) -> None:
    """Raise Unfit unless the file is one of ours, of this version or an older one; writes nothing."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise Unfit(
            f"a newer specd has written it (schema {version}, this one knows {len(MIGRATIONS)})",
            "install that version again, or move the file aside together with its -wal and -shm",
        )
    found = _columns(connection)
    if version == 0 and found:
        raise Unfit(f"another program has written it: it has a table {min(found)[0]!r}")
    if version == len(MIGRATIONS):
        with closing(in_memory()) as fresh:
            missing = sorted(_columns(fresh) - found)
        if missing:
            raise Unfit(f"it lacks {'.'.join(missing[0])}")


def in_memory() -> sqlite3.Connection:
    """Return an empty database of this version that no file holds."""
    fresh = sqlite3.connect(":memory:", isolation_level=None)
    for script in MIGRATIONS:
        fresh.executescript(script)
    return fresh


def _columns(connection: sqlite3.Connection) -> set[tuple[str, str]]:
    query = "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table'"
    return {(table, column) for table, column in connection.execute(query)}


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Apply the migrations that a checked file lacks, each in a transaction of its own, after a backup of the whole."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if 0 < version < len(MIGRATIONS):
        _back_up(connection, path, version)
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        with around(f"commit schema {number}"):
            connection.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;")


def _back_up(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Copy the file as it is now to `NAME.before-N`, whole or not at all, N being the next schema's number."""
    target = path.with_name(f"{path.name}.before-{version + 1}")
    fresh = target.with_name(f".{target.name}.new")
    with suppress(FileNotFoundError):
        fresh.unlink()
    try:
        os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        copy = sqlite3.connect(fresh, isolation_level=None)
        try:
            connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
        finally:
            copy.close()
        _sync(fresh)
    except BaseException:
        # On a full disk the half of a copy would take the room that open trials need.
        with suppress(OSError):
            fresh.unlink()
        raise
    with around("commit backup"):
        os.replace(fresh, target)
        _sync(target.parent)
    copies = sorted(path.parent.glob(f"{path.name}.before-*"), key=lambda each: each.stat().st_mtime)
    for old in copies[:-_BACKUPS_KEPT]:
        old.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
