"""What anybody could have seen of a trial while it went on: none of it may ever be taken back."""

import asyncio
import contextlib
from collections.abc import Container
from types import TracebackType
from typing import Any, Self

from specd.errors import DaemonUnreachable
from tests.rig import Daemon

__all__ = ["SETTLED", "Witness"]

SETTLED = frozenset({"kept", "restored", "withdrawn", "rollback-failed"})
_LOOK_S = 0.15


class Witness:
    """Asks for one trial again and again for as long as its context lasts; the daemon may be away meanwhile.

    `shown` is the trial as last seen, {} before. What was shown and is gone, or is another, is an AssertionError of
    `until` and of the end.
    """

    def __init__(self, daemon: Daemon, trial: str) -> None:
        self._daemon = daemon
        self.trial = trial
        self.shown: dict[str, Any] = {}
        self._levels = {"baseline": 0, "candidate": 0}
        self._seen = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._looking = asyncio.create_task(self._look())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._looking is not None
        self._looking.cancel()
        (end,) = await asyncio.gather(self._looking, return_exceptions=True)
        if kind is None and isinstance(end, Exception):
            raise end

    async def until(self, states: Container[str] = SETTLED, *, within_s: float = 120) -> dict[str, Any]:
        """Wait until the trial is seen in one of the states; returns it whole."""
        assert self._looking is not None
        async with asyncio.timeout(within_s):
            while True:
                seen = asyncio.ensure_future(self._seen.wait())
                try:
                    await asyncio.wait({seen, self._looking}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    seen.cancel()
                if self._looking.done():
                    self._looking.result()
                self._seen.clear()
                if self.shown["state"] in states:
                    return self.shown

    async def _look(self) -> None:
        while True:
            with contextlib.suppress(DaemonUnreachable):
                self._saw(await self._daemon.client.trial(self.trial))
            await asyncio.sleep(_LOOK_S)

    def _saw(self, shown: dict[str, Any]) -> None:
        before = self.shown
        if before:
            moves = before["history"]
            assert shown["history"][: len(moves)] == moves, "moves that were shown are others now, or gone"
            for key in ("outcome", "class", "comparison"):
                assert before[key] in (None, shown[key]), f"{key} was shown as {before[key]}, then as {shown[key]}"
        for side, count in self._levels.items():
            levels = len(shown[side]["levels"])
            assert levels >= count, f"levels of the {side} were shown and are gone"
            self._levels[side] = levels
        self.shown = shown
        self._seen.set()
