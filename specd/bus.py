"""Fan-out of stored events: each listener has a bounded queue; one that overflows is closed and resumes by seq."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from specd.errors import StoreError
from specd.store import Store
from states.events import Event

__all__ = ["Bus", "Listener"]

log = structlog.get_logger()

_QUEUE = 2000


class Listener:
    """One reader's queue; `lost` is set when it fell too far behind and was cut off."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Event] = asyncio.Queue(_QUEUE)
        self.lost = asyncio.Event()


class Bus:
    """Stores events, then hands them to everyone who listens."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listeners: set[Listener] = set()

    def emit(self, event: Event) -> None:
        """Store an event and publish it; one that can't be stored is not told, and only the log has it."""
        try:
            self.publish(self._store.append(event))
        except StoreError as error:
            log.warning("bus.event-lost", type=type(event).__name__, trial=event.trial, error=str(error))

    def publish(self, stored: Event) -> None:
        """Hand on an event that is stored already."""
        for listener in tuple(self._listeners):
            try:
                listener.queue.put_nowait(stored)
            except asyncio.QueueFull:
                listener.lost.set()
                self._listeners.discard(listener)

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        """Give a queue that gets every event published from now on."""
        listener = Listener()
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
