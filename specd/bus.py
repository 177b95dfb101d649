"""Fan-out of stored events: each listener has a bounded queue; one that overflows is closed and resumes by seq."""

import asyncio
import dataclasses
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import structlog

from specd import clock
from specd.errors import StoreError
from specd.store import Store
from states.events import BenchmarkProgressed, Event, StageProgressed

__all__ = ["Bus", "Listener"]

log = structlog.get_logger()

_QUEUE = 2000
_WAITING = 1000
_RETRY_S = 0.25
# Told again soon, and so not worth the room that moves need on a full disk.
_PASSING = (StageProgressed, BenchmarkProgressed)


class Listener:
    """One reader's queue; `lost` is set when it fell too far behind, or all were told to come again. None wakes it."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Event | None] = asyncio.Queue(_QUEUE)
        self.lost = asyncio.Event()


class Bus:
    """Stores events, then hands them to everyone who listens; nobody is told what is not stored."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listeners: set[Listener] = set()
        self._waiting: deque[Event] = deque()
        self._retry: asyncio.TimerHandle | None = None
        self._dropped = 0

    def emit(self, event: Event) -> None:
        """Store an event and publish it; one that can't be stored now waits for its turn, in order."""
        self._waiting.append(dataclasses.replace(event, at=event.at or clock.now()))
        if self._retry is None:
            self.catch_up()
        else:
            self._drop_some()

    def catch_up(self) -> bool:
        """Store and publish what waits; True when nothing waits any more."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._drop_some()
        try:
            while self._waiting:
                self.publish(self._store.append(self._waiting[0]))
                self._waiting.popleft()
        except StoreError as error:
            if self._store.database.problem:
                self._drop(len(self._waiting), str(error))
                self._waiting.clear()
                return False
            self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self.catch_up)
            return False
        if self._dropped and not self._store.database.is_short and not self._store.database.problem:
            log.info("bus.stored-again", dropped=self._dropped)
            self._dropped = 0
        return True

    def _drop_some(self) -> None:
        """Bound what waits: progress goes while the disk is full, else the oldest goes."""
        before = len(self._waiting)
        if self._store.database.is_short:
            self._waiting = deque(event for event in self._waiting if not isinstance(event, _PASSING))
        while len(self._waiting) > _WAITING:
            self._waiting.popleft()
        self._drop(before - len(self._waiting), "no room")

    def _drop(self, count: int, why: str) -> None:
        if count and not self._dropped:
            log.warning("bus.events-lost", why=why)
        self._dropped += count

    def publish(self, stored: Event) -> None:
        """Hand on an event that is stored already."""
        for listener in tuple(self._listeners):
            try:
                listener.queue.put_nowait(stored)
            except asyncio.QueueFull:
                self._cut(listener)

    def cut(self) -> None:
        """Let every listener come again, which then asks how the daemon is."""
        for listener in tuple(self._listeners):
            self._cut(listener)

    def _cut(self, listener: Listener) -> None:
        listener.lost.set()
        self._listeners.discard(listener)
        with suppress(asyncio.QueueFull):
            listener.queue.put_nowait(None)

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        """Give a queue that gets every event published from now on."""
        listener = Listener()
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
