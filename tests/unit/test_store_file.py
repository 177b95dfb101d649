"""The database file: migrations with a backup first, what can't be used is only read, and full disks."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from specd.errors import StoreError
from specd.settings import TrialSpec
from specd.store import Store, damage, schema

_SPEC = TrialSpec(name="ngram", service="kimi")
_SECOND = "ALTER TABLE trial ADD COLUMN note TEXT NOT NULL DEFAULT ''; CREATE TABLE tag (name TEXT PRIMARY KEY) STRICT;"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "specd.db"


def filled(path: Path) -> str:
    """Make a file with a trial in it and return the trial's id."""
    store = Store(path)
    trial = store.add_trials([(_SPEC, "gpu1")])[0].id
    store.close()
    return trial


def version(path: Path) -> int:
    db = sqlite3.connect(path)
    found: int = db.execute("PRAGMA user_version").fetchone()[0]
    db.close()
    return found


def test_a_migration_keeps_what_was_there_and_makes_a_backup_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = filled(path)
    known = len(schema.MIGRATIONS)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, _SECOND))
    store = Store(path)
    assert store.trial(trial).spec == _SPEC
    store.close()
    assert version(path) == known + 1
    backup = path.with_name(f"specd.db.before-{known + 1}")
    assert version(backup) == known
    assert backup.stat().st_mode & 0o777 == 0o600
    monkeypatch.undo()
    old = Store(backup)
    assert old.trial(trial).name == "ngram"


def test_a_new_file_needs_no_backup(path: Path) -> None:
    filled(path)
    assert not list(path.parent.glob("*.before-*"))


def test_few_backups_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path)
    for number in range(6):
        more = tuple(f"CREATE TABLE extra{n} (name TEXT) STRICT;" for n in range(number + 1))
        with monkeypatch.context() as patch:
            patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, *more))
            Store(path).close()
    assert [backup.name for backup in sorted(path.parent.glob("*.before-*"))] == [
        f"specd.db.before-{number}" for number in (5, 6, 7)
    ]


def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = filled(path)
    known = version(path)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "CREATE TABLE half (a TEXT) STRICT; NONSENSE;"))
        with pytest.raises(StoreError, match="NONSENSE"):
            Store(path)
    assert version(path) == known
    store = Store(path)
    assert store.trial(trial).name == "ngram"
    with pytest.raises(StoreError, match="no such table"):
        store.database.all("SELECT * FROM half")


def test_a_kill_in_any_instant_of_a_migration_leaves_a_file_that_migrates(path: Path) -> None:
    trial = filled(path)
    program = (
        "import sys; from pathlib import Path; from specd.store import Store, schema;"
        "schema.MIGRATIONS = (*schema.MIGRATIONS, sys.argv[2]); Store(Path(sys.argv[1]))"
    )
    words = [sys.executable, "-c", program, str(path), _SECOND]
    points = path.with_name("points")
    deaths = 0
    environment = {**os.environ, "SPECD_FAILPOINTS": str(points), "SPECD_FAILPOINT_KILL": "each"}
    while (status := subprocess.run(words, env=environment, check=False).returncode) != 0:
        assert status == -signal.SIGKILL
        deaths += 1
    assert deaths == len(points.read_text().splitlines()) >= 3
    assert version(path) == len(schema.MIGRATIONS) + 1
    assert sqlite3.connect(path).execute("SELECT id, note FROM trial").fetchall() == [(trial, "")]


def test_a_newer_file_is_refused_in_words(path: Path) -> None:
    filled(path)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match=r"newer specd.*schema 99"):
        Store(path)


def test_a_file_that_is_only_read_shows_its_trials_and_takes_nothing(path: Path) -> None:
    trial = filled(path)
    store = Store(path, damage(path, "a test"))
    assert store.trial(trial).name == "ngram"
    with pytest.raises(StoreError, match="a test"):
        store.put_fact(trial, "key", 1)
    assert "no host is touched" in store.database.problem


def test_a_file_of_which_nothing_can_be_read_stands_as_empty(path: Path) -> None:
    path.write_bytes(os.urandom(8192))
    before = path.read_bytes()
    store = Store(path, damage(path, "noise"))
    assert store.trials(10) == []
    store.close()
    assert path.read_bytes() == before


def test_damage_is_found_by_looking_and_by_reading(path: Path) -> None:
    store = Store(path)
    for _ in range(300):
        store.add_trials([(_SPEC, "gpu1")])
    store.close()
    whole = path.read_bytes()
    half = len(whole) // 8192 * 4096
    path.write_bytes(whole[:half] + b"\xff" * (len(whole) - half))
    store = Store(path)
    assert store.database.examine()
    with pytest.raises(StoreError):
        store.trials(1000)
    assert "can't be used" in store.database.problem
    with pytest.raises(StoreError, match="can't be used"):
        store.add_trials([(_SPEC, "gpu1")])


def test_a_sound_file_is_found_sound(path: Path) -> None:
    filled(path)
    store = Store(path)
    assert store.database.examine() == ""


def test_somebody_else_who_writes_is_not_waited_for_long(path: Path) -> None:
    trial = filled(path)
    store = Store(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        store.put_fact(trial, "key", 1)
    assert not store.database.problem
    other.execute("ROLLBACK")
    store.put_fact(trial, "key", 1)
    assert store.fact(trial, "key") == 1


def test_a_cut_file_and_a_directory_in_its_place_can_t_be_used(path: Path) -> None:
    filled(path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(StoreError):
        Store(path).trials(1)
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match="can't be opened"):
        Store(path)
    assert Store(path, damage(path, "a directory")).trials(1) == []
