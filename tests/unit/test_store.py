"""The store: what was returned is durable, a move happens once, logs and levels are unique."""

import sqlite3
from pathlib import Path

import pytest

from specd.bench.plan import Level, LevelDone, Sample
from specd.engines.engine import Failure
from specd.errors import NotFound, StoreError
from specd.services.service import JournalRecord
from specd.settings import TrialSpec
from specd.store import Store, TrialRow
from states.events import NoteAdded, TrialMoved
from states.table import Outcome, State, Trigger

_SPEC = TrialSpec(name="ngram", service="kimi", flags={"speculative-config": {"method": "ngram"}}, env={"A": None})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "specd.db"


def _queue(store: Store, spec: TrialSpec = _SPEC) -> TrialRow:
    return store.add_trials([(spec, "gpu1")])[0]


def _move(store: Store, trial: str, source: State, trigger: Trigger, target: State, **more: object) -> None:
    event = TrialMoved(trial=trial, source=source.value, trigger=trigger.value, target=target.value)
    store.move(trial, source, trigger, target, event=event, **more)  # type: ignore[arg-type]


def test_a_trial_comes_back_from_a_fresh_open_as_it_was_stored(path: Path) -> None:
    store = Store(path)
    row = _queue(store)
    failure = Failure(kind="port", sentence="taken", lines=("a", "b"), hint="stop it")
    _move(store, row.id, State.QUEUED, Trigger.START, State.BASELINE)
    _move(
        store,
        row.id,
        State.BASELINE,
        Trigger.FAILED,
        State.WITHDRAWN,
        cause="no",
        outcome=Outcome.FAILED,
        failure=failure,
    )
    store.close()
    again = Store(path).trial(row.id)
    assert again.spec == _SPEC
    assert (again.state, again.outcome, again.reason, again.failure) == (State.WITHDRAWN, Outcome.FAILED, "no", failure)


def test_installation_id_stays(path: Path) -> None:
    first = Store(path)
    name = first.installation
    first.close()
    assert Store(path).installation == name


def test_a_move_from_a_state_the_trial_is_not_in_is_refused_and_leaves_nothing(path: Path) -> None:
    store = Store(path)
    row = _queue(store)
    _move(store, row.id, State.QUEUED, Trigger.START, State.BASELINE)
    with pytest.raises(StoreError, match="is in baseline"):
        _move(store, row.id, State.QUEUED, Trigger.START, State.BASELINE)
    assert len(store.moves(row.id)) == 1
    assert store.last_seq() == 1


def test_the_same_key_gives_the_same_trials(path: Path) -> None:
    store = Store(path)
    first = store.add_trials([(_SPEC, "gpu1"), (_SPEC, "gpu1")], key="k")
    assert store.add_trials([(_SPEC, "gpu1"), (_SPEC, "gpu1")], key="k") == first
    assert len(store.trials()) == 2


def test_trials_are_found_by_id_part_and_name_and_nothing_else(path: Path) -> None:
    store = Store(path)
    old, new = _queue(store), _queue(store)
    assert store.find_trial(old.id).id == old.id
    assert store.find_trial(old.id[7:]).id == old.id
    assert store.find_trial("ngram").id == new.id
    for word in ("", "x", "%%%", "___", "no-such"):
        with pytest.raises(NotFound):
            store.find_trial(word)


def test_events_have_rising_numbers_and_can_be_filtered(path: Path) -> None:
    store = Store(path)
    row = _queue(store)
    seqs = [store.append(NoteAdded(level="info", text=str(n), trial=row.id if n % 2 else None)).seq for n in range(6)]
    assert seqs == sorted(set(seqs))
    assert [event["text"] for event in store.events(since=seqs[2])] == ["3", "4", "5"]
    assert [event["text"] for event in store.events(trial=row.id)] == ["1", "3", "5"]


def test_levels_are_unique_per_invocation_and_plan(path: Path) -> None:
    store = Store(path)
    row = _queue(store)
    sample = Sample(concurrency=1, repeat=1, prompt_id="p", started_at=1.0, tpot_ms=13.6, tokens_out=9)
    done = LevelDone(
        level=Level(1, 1), samples=(sample,), wall_s=1.0, metrics_before="", metrics_after="", loop_lag_p99_ms=0.1
    )
    for _ in range(2):
        store.add_level(row, "baseline", "inv", "plan", done)
    assert [found.done for found in store.levels(row.id, "baseline", "inv", "plan")] == [done]
    assert store.baseline_levels("kimi", "inv", "other") == []
    other = _queue(store)
    assert len(store.baseline_levels(other.service, "inv", "plan")) == 1


def test_logs_are_numbered_and_come_back_as_records(path: Path) -> None:
    store = Store(path)
    row = _queue(store)
    records = [JournalRecord(cursor=f"c{n}", at=float(n), pid=7, text=f"line {n}") for n in range(5)]
    store.add_log(row.id, "u", "inv", records[:3])
    store.add_log(row.id, "u", "inv", records[3:])
    store.add_log(row.id, "u", "other", records[:1])
    assert [line.n for line in store.log(row.id)] == [1, 2, 3, 4, 5, 6]
    assert [line.text for line in store.log(row.id, after=-2)] == ["line 4", "line 0"]
    assert store.log_records(row.id, "inv") == records


def test_durations_leave_rehearsals_and_failed_states_out(path: Path) -> None:
    store = Store(path)
    for spec in (_SPEC, TrialSpec(name="r", service="kimi", rehearsal=True)):
        row = _queue(store, spec)
        _move(store, row.id, State.QUEUED, Trigger.START, State.BASELINE)
        _move(store, row.id, State.BASELINE, Trigger.BASELINE_MEASURED, State.WRITE_UNIT)
        _move(store, row.id, State.WRITE_UNIT, Trigger.FAILED, State.WITHDRAWN)
    found = store.durations("kimi")
    assert list(found) == [State.BASELINE]
    assert len(found[State.BASELINE]) == 1


def test_holding_is_the_trial_a_rollback_concerns(path: Path) -> None:
    store = Store(path)
    row = _queue(store)
    assert store.holding("kimi") is None
    _move(store, row.id, State.QUEUED, Trigger.START, State.BASELINE)
    found = store.holding("kimi")
    assert found is not None
    assert found.id == row.id


def test_a_damaged_file_is_named_and_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"not a database" * 100)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="can't be opened") as caught:
        Store(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before


def test_a_write_that_fails_leaves_no_transaction_open(path: Path) -> None:
    store = Store(path)
    with pytest.raises(StoreError):
        store.put_fact("no-such-trial", "key", 1)
    row = _queue(store)
    store.put_fact(row.id, "key", {"a": [1, None]})
    assert store.fact(row.id, "key") == {"a": [1, None]}


def test_the_file_is_in_wal_mode_and_synced(path: Path) -> None:
    Store(path)
    with sqlite3.connect(path) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_ids_never_meet(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(path)
    letters = iter("aaaaaaaaaabbbbb")
    monkeypatch.setattr("specd.store.store.secrets.choice", lambda _: next(letters))
    first, second = store.add_trials([(_SPEC, "gpu1"), (_SPEC, "gpu1")])
    assert (first.id[7:], second.id[7:]) == ("aaaaa", "bbbbb")
