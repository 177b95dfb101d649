"""Keeps the view model true: snapshots, then the event stream from where it was, over every loss."""

import asyncio
from collections.abc import Callable
from typing import Any

from states import events as happened
from states.errors import UnknownEvent
from states.events import Event
from states.wire import decode
from tui.client import ApiClient, Away, Refused
from tui.updates import DaemonAway, DaemonFound, PastLoaded, ServicesLoaded, TrialLoaded, TrialsLoaded, Update

__all__ = ["Feed"]

_TRIALS = 500
_PAST = 5000
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 2.0
_SETTLE_S = 0.2
_SERVICES_EVERY_S = 5.0
# What a snapshot holds and the event does not: who serves now, a failure's lines, the figures.
_STALE_AFTER = (
    happened.TrialMoved,
    happened.TrialSubmitted,
    happened.TrialResumed,
    happened.VerdictReached,
    happened.LevelMeasured,
    happened.HostLost,
    happened.HostBack,
)


class Feed:
    """Tells updates of one daemon in order; `complain` gets what can't be shown in the view, in words."""

    def __init__(
        self,
        client: ApiClient,
        tell: Callable[[Update], None],
        complain: Callable[[str], None],
        now: Callable[[], str],
    ) -> None:
        self._client = client
        self._tell = tell
        self._complain = complain
        self._now = now
        self._seq: int | None = None
        self._wanted = ""
        self._stale = asyncio.Event()
        self._again = asyncio.Event()

    def want(self, trial: str) -> None:
        """Name the trial whose whole is shown; "" for none."""
        self._wanted = trial
        self._stale.set()

    def refresh(self) -> None:
        """Ask for everything again, at once even while the daemon is away."""
        self._again.set()
        self._stale.set()

    async def run(self) -> None:
        """Follow the daemon until cancelled."""
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                await self._load()
                wait_s = _FIRST_WAIT_S
                await self._follow()
            except Away as why:
                self._tell(DaemonAway(str(why), self._now()))
            except Refused as why:
                self._tell(DaemonAway(f"the daemon refuses this console: {why}", self._now()))
            self._again.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._again.wait()
            except TimeoutError:
                wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    async def _load(self) -> None:
        # The position comes first: what happens while the snapshots are read is then told by the stream.
        health = await self._client.health()
        position = health.get("seq")
        seq = position if isinstance(position, int) else 0
        problem = str(health.get("problem") or "")
        self._tell(DaemonFound(str(health.get("version") or ""), self._now(), seq, problem))
        if self._seq is None or not seq - _PAST <= self._seq <= seq:
            self._seq = seq
        await self._load_lists()
        await self._load_wanted()

    async def _load_lists(self) -> None:
        self._tell(TrialsLoaded(await self._client.trials(_TRIALS), self._now()))
        await self._load_services()

    async def _load_services(self) -> None:
        self._tell(ServicesLoaded(await self._client.services(), self._now()))

    async def _load_wanted(self) -> None:
        trial = self._wanted
        if not trial:
            return
        try:
            whole = await self._client.trial(trial)
            since = max(0, (self._seq or 0) - _PAST)
            past = await self._client.past_events(since, trial, _PAST)
        except Refused as why:
            self._complain(f"{trial} can't be shown: {why}")
            return
        self._tell(TrialLoaded(whole, self._now()))
        self._tell(PastLoaded([event for event in map(_decoded, past) if event is not None]))

    async def _follow(self) -> None:
        """Run stream and refreshes until the daemon goes; raises Away or Refused."""
        parts = [asyncio.create_task(self._stream()), asyncio.create_task(self._refresh())]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    async def _stream(self) -> None:
        async with self._client.events(self._seq or 0) as frames:
            async for frame in frames:
                event = _decoded(frame)
                position = frame.get("seq")
                if isinstance(position, int):
                    self._seq = max(self._seq or 0, position)
                if event is None:
                    continue
                self._tell(event)
                if isinstance(event, _STALE_AFTER):
                    self._stale.set()

    async def _refresh(self) -> None:
        """Read snapshots again when an event made them stale, and the services' links now and then."""
        loaded = self._wanted
        while True:
            try:
                async with asyncio.timeout(_SERVICES_EVERY_S):
                    await self._stale.wait()
            except TimeoutError:
                await self._load_services()
                continue
            self._stale.clear()
            if self._again.is_set():
                self._again.clear()
                await self._load_lists()
            if self._wanted != loaded:
                loaded = self._wanted
                await self._load_wanted()
                continue
            await self._load_services()
            await self._load_wanted()
            # A burst of moves is answered once.
            await asyncio.sleep(_SETTLE_S)


def _decoded(frame: dict[str, Any]) -> Event | None:
    """Return the event of a frame; one of a newer version, which this console can't show, is None."""
    try:
        return decode(frame)
    except UnknownEvent:
        return None
