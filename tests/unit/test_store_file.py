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
from specd.store import Store, damage, is_locked, schema

_SPEC = TrialSpec(name="ngram", service="kimi")
_NEXT = "ALTER TABLE trial ADD COLUMN note TEXT NOT NULL DEFAULT ''; CREATE TABLE tag (name TEXT PRIMARY KEY) STRICT;"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "specd.db"


def filled(path: Path, count: int = 1) -> str:
    """Make a file with trials in it and return the last one's id."""
    store = Store(path)
    trials = store.add_trials([(_SPEC, "gpu1")] * count)
    store.close()
    return trials[-1].id


def killed(path: Path, count: int = 30) -> bytes:
    """Let a process fill a file in many commits and die of SIGKILL, so that all of it lies in the log; returns that."""
    program = (
        "import os, sys; from pathlib import Path\n"
        "from specd.settings import TrialSpec; from specd.store import Store\n"
        "store = Store(Path(sys.argv[1]))\n"
        "for n in range(int(sys.argv[2])): store.add_trials([(TrialSpec(name=f't{n}', service='kimi'), 'gpu1')])\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path), str(count)], check=False)
    assert done.returncode == -signal.SIGKILL
    return log_of(path).read_bytes()


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def version(path: Path) -> int:
    db = sqlite3.connect(path)
    found: int = db.execute("PRAGMA user_version").fetchone()[0]
    db.close()
    return found


# -- migrations


def test_a_file_of_the_first_schema_becomes_one_of_this_version(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
        trial = filled(path)
    assert version(path) == 1
    store = Store(path)
    assert store.trials(10)[0].id == trial
    assert store.database.all("EXPLAIN QUERY PLAN SELECT id FROM trial ORDER BY created_at DESC LIMIT 1")[0][
        3
    ].endswith("trial_by_age")
    store.close()
    assert version(path) == len(schema.MIGRATIONS)
    assert version(path.with_name("specd.db.before-2")) == 1


def test_a_migration_keeps_what_was_there_and_makes_a_backup_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = filled(path)
    known = len(schema.MIGRATIONS)
    backup = path.with_name(f"specd.db.before-{known + 1}")
    backup.write_bytes(b"of another life")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, _NEXT))
    store = Store(path)
    assert store.trial(trial).spec == _SPEC
    store.close()
    assert version(path) == known + 1
    assert version(backup) == known
    assert backup.stat().st_mode & 0o777 == 0o600
    monkeypatch.undo()
    assert Store(backup).trial(trial).name == "ngram"


def test_a_new_file_needs_no_backup(path: Path) -> None:
    filled(path)
    assert not list(path.parent.glob("*.before-*"))


def test_few_backups_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path)
    known = len(schema.MIGRATIONS)
    for number in range(6):
        more = tuple(f"CREATE TABLE extra{n} (name TEXT) STRICT;" for n in range(number + 1))
        with monkeypatch.context() as patch:
            patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, *more))
            Store(path).close()
    assert [backup.name for backup in sorted(path.parent.glob("*.before-*"))] == [
        f"specd.db.before-{number}" for number in range(known + 4, known + 7)
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
    words = [sys.executable, "-c", program, str(path), _NEXT]
    points = path.with_name("points")
    deaths = 0
    environment = {**os.environ, "SPECD_FAILPOINTS": str(points), "SPECD_FAILPOINT_KILL": "each"}
    while (status := subprocess.run(words, env=environment, check=False).returncode) != 0:
        assert status == -signal.SIGKILL
        deaths += 1
    assert deaths == len(points.read_text().splitlines()) >= 3
    assert version(path) == len(schema.MIGRATIONS) + 1
    assert sqlite3.connect(path).execute("SELECT id, note FROM trial").fetchall() == [(trial, "")]


# -- files that must not be used


def refusal(path: Path) -> str:
    """Return the words with which the file is refused; it and its log are left as they are."""
    files = [path, log_of(path)]
    before = [file.read_bytes() if file.is_file() else b"" for file in files]
    with pytest.raises(StoreError) as refused:
        Store(path)
    assert [file.read_bytes() if file.is_file() else b"" for file in files] == before
    return str(refused.value)


def test_a_newer_file_is_refused_in_words(path: Path) -> None:
    filled(path)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    words = refusal(path)
    assert "a newer specd has written it (schema 99" in words
    assert "install that version again" in words


def test_a_file_of_another_program_is_left_alone(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE bookmark (url TEXT)")
    db.close()
    assert "another program has written it: it has a table 'bookmark'" in refusal(path)


def test_a_file_that_lacks_a_column_is_refused(path: Path) -> None:
    filled(path)
    db = sqlite3.connect(path)
    db.execute("ALTER TABLE fact DROP COLUMN at")
    db.close()
    assert "it lacks fact.at" in refusal(path)


def test_a_cut_a_noisy_an_emptied_file_and_a_directory_are_refused(path: Path) -> None:
    filled(path, 200)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "move" in refusal(path)
    path.write_bytes(os.urandom(8192))
    assert "file is not a database" in refusal(path)
    path.write_bytes(b"")
    assert "it is empty, and it was not when it was used last" in refusal(path)
    path.unlink()
    path.mkdir()
    assert "Is a directory" in refusal(path)
    assert Store(path, damage(path, "a directory")).trials(1) == []


def test_a_damaged_page_is_found_before_anything_is_done(path: Path) -> None:
    filled(path, 300)
    whole = path.read_bytes()
    half = len(whole) // 8192 * 4096
    path.write_bytes(whole[:half] + b"\xff" * (len(whole) - half))
    assert "Page" in refusal(path)


def test_a_place_left_empty_starts_afresh(path: Path) -> None:
    first = Store(path)
    name = first.installation
    first.close()
    path.unlink()
    assert Store(path).installation != name


# -- damage in the log


def test_a_log_without_damage_holds_all_that_was_committed(path: Path) -> None:
    killed(path)
    assert len(Store(path).trials(100)) == 30


@pytest.mark.parametrize("where", [0, 40, 5000, 100_000])
@pytest.mark.parametrize("length", [64, 20_000])
def test_noise_in_the_log_is_not_taken_for_its_end(path: Path, where: int, length: int) -> None:
    log = bytearray(killed(path))
    log[where : where + length] = os.urandom(length)
    log_of(path).write_bytes(log)
    assert "its write-ahead log" in refusal(path)
    shown = len(Store(path, damage(path, "the log")).trials(100))
    assert shown < 30
    assert log_of(path).read_bytes() == log, "what may be saved by hand was changed"


def test_the_torn_end_of_a_log_is_what_a_power_cut_leaves(path: Path) -> None:
    log = killed(path)
    log_of(path).write_bytes(log[:-5000] + bytes(3000))
    assert len(Store(path).trials(100)) == 29


def test_what_an_earlier_round_has_left_in_the_log_is_no_damage(path: Path) -> None:
    store = Store(path)
    for _ in range(40):
        store.add_trials([(_SPEC, "gpu1")])
    sqlite3.connect(path).execute("PRAGMA wal_checkpoint(RESTART)")
    store.add_trials([(_SPEC, "gpu1")])
    log = log_of(path).read_bytes()
    fresh = path.with_name("copy.db")
    fresh.write_bytes(path.read_bytes())
    log_of(fresh).write_bytes(log)
    assert len(Store(fresh).trials(100)) == 41


# -- damage that shows later


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


def test_damage_that_comes_later_is_found_by_looking_and_by_reading(path: Path) -> None:
    filled(path, 300)
    store = Store(path)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 8192 * 4096)
        file.write(b"\xff" * 100_000)
    assert store.database.examine()
    with pytest.raises(StoreError, match="can't be used"):
        store.trials(1000)
    with pytest.raises(StoreError, match="can't be used"):
        store.add_trials([(_SPEC, "gpu1")])


@pytest.mark.parametrize("column", ["spec = '{'", "state = 'sideways'", "outcome = 'x'", "failure = '[1]'"])
def test_a_row_that_makes_no_sense_is_damage_and_the_others_are_shown(path: Path, column: str) -> None:
    store = Store(path)
    trials = [row.id for row in store.add_trials([(_SPEC, "gpu1")] * 3)]
    with store.database.write("a test") as db:
        db.execute(f"UPDATE trial SET {column} WHERE id = ?", (trials[1],))
    assert [row.id for row in store.trials(10)] == [trials[2], trials[0]]
    assert f"trial {trials[1]} in it makes no sense" in store.database.problem
    with pytest.raises(StoreError, match="makes no sense"):
        store.trial(trials[1])


def test_a_sound_file_is_found_sound(path: Path) -> None:
    filled(path)
    assert Store(path).database.examine() == ""


def test_a_file_that_was_replaced_is_written_to_no_more(path: Path) -> None:
    trial = filled(path)
    store = Store(path)
    store.database.check_place()
    assert not store.database.problem
    copy = path.with_name("copy.db")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)
    store.database.check_place()
    with pytest.raises(StoreError, match="removed or replaced while it was in use"):
        store.put_fact(trial, "key", 1)
    assert store.trial(trial).name == "ngram"


# -- others who write


def test_somebody_else_who_writes_is_not_waited_for_long(path: Path) -> None:
    trial = filled(path)
    store = Store(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for _ in range(50):
        # Only the first try waits: each wait holds the event loop.
        with pytest.raises(StoreError, match="locked") as refused:
            store.put_fact(trial, "key", 1)
        assert is_locked(refused.value)
    assert not store.database.problem
    other.execute("ROLLBACK")
    store.put_fact(trial, "key", 1)
    assert store.fact(trial, "key") == 1


def test_a_file_that_is_locked_at_the_start_is_no_damage(path: Path) -> None:
    filled(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match="in use by another program") as refused:
        Store(path)
    assert is_locked(refused.value)
    assert "fuser" in refused.value.next_step
    other.close()
    Store(path)


# -- the list


def test_trials_are_listed_a_page_at_a_time(path: Path) -> None:
    store = Store(path)
    rows = store.add_trials([(_SPEC, "gpu1")] * 25)
    found: list[str] = []
    while page := store.trials(10, found[-1] if found else ""):
        found += [row.id for row in page]
    assert found == [row.id for row in reversed(rows)]
