"""The bus: nobody is told what is not stored; what can't be stored now waits for its turn, or is dropped."""

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from specd.bus import Bus, Listener
from specd.store import Store, damage
from states.events import Event, NoteAdded, StageProgressed


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "specd.db")
    yield store
    store.close()


def note(text: str) -> NoteAdded:
    return NoteAdded(trial="t", service="s", level="info", text=text)


def progress() -> StageProgressed:
    return StageProgressed(
        trial="t", service="s", state="loading", stage="weights", fraction=0.5, overall=0.2, source="log", eta_s=1.0
    )


def told(listener: Listener) -> list[Event]:
    found = []
    while not listener.queue.empty():
        event = listener.queue.get_nowait()
        assert event is not None
        found.append(event)
    return found


async def test_while_another_program_writes_events_wait_in_order_and_are_told_once_stored(store: Store) -> None:
    bus = Bus(store)
    other = sqlite3.connect(store.database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with bus.listen() as listener, capture_logs() as logs:
        for n in range(5):
            bus.emit(note(str(n)))
        assert listener.queue.empty()
        assert store.last_seq() == 0
        other.execute("ROLLBACK")
        async with asyncio.timeout(10):
            first = await listener.queue.get()
        events = [first, *told(listener)]
    assert [event.text for event in events if isinstance(event, NoteAdded)] == list("01234")
    assert [event.seq for event in events if event] == [1, 2, 3, 4, 5]
    assert [body["text"] for body in store.events()] == list("01234")
    assert logs == []


async def test_what_waits_is_bounded_and_the_oldest_goes(store: Store) -> None:
    bus = Bus(store)
    other = sqlite3.connect(store.database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with capture_logs() as logs:
        for n in range(1500):
            bus.emit(note(str(n)))
        other.execute("ROLLBACK")
        assert bus.catch_up()
    assert [body["text"] for body in store.events()] == [str(n) for n in range(500, 1500)]
    assert [(each["event"], each.get("dropped")) for each in logs] == [
        ("bus.events-lost", None),
        ("bus.stored-again", 500),
    ]


async def test_on_a_full_disk_progress_is_dropped_and_that_is_said_once(store: Store) -> None:
    bus = Bus(store)
    store.database.is_short = True
    with capture_logs() as logs:
        for _ in range(3):
            bus.emit(progress())
            bus.emit(note("kept"))
    assert [body["type"] for body in store.events()] == ["NoteAdded"] * 3
    assert [each["event"] for each in logs] == ["bus.events-lost"]


async def test_a_database_that_is_only_read_takes_no_events_and_keeps_none_waiting(store: Store) -> None:
    bus = Bus(store)
    store.database.problem = damage(store.database.path, "a test")
    with bus.listen() as listener:
        bus.emit(note("lost"))
        assert listener.queue.empty()
    store.database.problem = ""
    bus.emit(note("stored"))
    assert [body["text"] for body in store.events()] == ["stored"]


async def test_listeners_that_are_cut_are_woken(store: Store) -> None:
    bus = Bus(store)
    with bus.listen() as listener:
        bus.cut()
        assert listener.lost.is_set()
        assert await listener.queue.get() is None
        bus.emit(note("after"))
        assert listener.queue.empty()
