"""Looks after candidates that are kept: one that has ended, or that a reboot took away, gives way to its baseline."""

import asyncio

import structlog

from specd.bus import Bus
from specd.errors import HostError, SpecdError, StoreError
from specd.fleet import Fleet
from specd.scheduler import Scheduler
from specd.services.service import UnitStatus
from specd.store import Store, TrialRow
from states.events import NoteAdded
from states.table import State

__all__ = ["Keeping"]

log = structlog.get_logger()

_LOOK_S = 5.0
_SURE_S = 1.0


class Keeping:
    """Asks after each kept candidate, for as long as `run` does.

    Nothing else would bring a server back: a candidate is never enabled and never restarted, and its guard is gone.
    """

    def __init__(self, fleet: Fleet, store: Store, bus: Bus, scheduler: Scheduler) -> None:
        self._fleet = fleet
        self._store = store
        self._bus = bus
        self._scheduler = scheduler

    async def run(self) -> None:
        """Look again and again; never returns. What can't be asked now is asked later."""
        while True:
            try:
                kept = [row for name in self._fleet.config.services if (row := self._kept(name)) is not None]
            except StoreError as error:
                log.warning("keeping.not-read", error=str(error))
                kept = []
            await asyncio.gather(*(self._look(row) for row in kept))
            await asyncio.sleep(_LOOK_S)

    def _kept(self, service: str) -> TrialRow | None:
        row = self._store.holding(service)
        if row is None or row.state is not State.KEPT or self._scheduler.find(row.id) is not None:
            return None
        return row

    async def _look(self, row: TrialRow) -> None:
        try:
            status = await self._status(row)
            if status.is_running:
                return
            # A unit may be between two states; somebody may just have asked for the baseline.
            await asyncio.sleep(_SURE_S)
            status = await self._status(row)
            if not status.is_running and self._kept(row.service) is not None:
                self._give_way(row, status)
        except HostError as error:
            log.info("keeping.not-asked", trial=row.id, error=str(error))
        except SpecdError as error:
            log.warning("keeping.failed", trial=row.id, error=str(error))

    async def _status(self, row: TrialRow) -> UnitStatus:
        manager = self._fleet.manager(self._fleet.service(row.service))
        return await manager.status(manager.candidate_name(row.id))

    def _give_way(self, row: TrialRow, status: UnitStatus) -> None:
        how = f"it is {status.active} ({status.result or status.sub})" if status.exists else "its unit is gone"
        why = f"the kept candidate {status.name} on {row.host} serves no more: {how}"
        text = f"{why}; the baseline is brought back"
        self._bus.emit(NoteAdded(trial=row.id, service=row.service, level="alarm", text=text))
        self._scheduler.rollback(row.service, "specd", why)
