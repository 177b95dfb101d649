"""How many sessions are open over one connection: servers allow as few as one (MaxSessions), and do not say so."""

import asyncio
import collections

__all__ = ["SessionGate"]

_USUAL = 8
"""OpenSSH allows 10 unless told otherwise."""

_PATIENCE_S = 2.0
"""Seconds to wait before the learnt limit is put to the test again."""


class SessionGate:
    """Lets so many in at a time, in the order they came; the limit falls when the server turns one away."""

    def __init__(self, limit: int = _USUAL) -> None:
        self.limit = limit
        self._entered = 0
        self._open = 0
        self._most_open = 0
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()

    @property
    def open(self) -> int:
        """Sessions the server has granted and not taken back."""
        return self._open

    async def enter(self) -> None:
        """Wait for a place."""
        if not self._waiting and self._entered < self.limit:
            self._entered += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            while not turn.done():
                await asyncio.wait([turn], timeout=_PATIENCE_S)
                if not turn.done():
                    # The limit may have been learnt in a bad moment, and a follower holds its place for hours.
                    self.limit = max(self.limit, self._most_open + 1)
                    self._admit()
        except asyncio.CancelledError:
            if turn.done():
                self.leave()
            else:
                turn.cancel()
            raise

    def granted(self) -> None:
        """Note that the server has opened a session."""
        self._open += 1
        self._most_open = max(self._most_open, self._open)

    def leave(self, *, was_granted: bool = False) -> None:
        """Give a place back."""
        self._entered -= 1
        if was_granted:
            self._open -= 1
        self._admit()

    async def step_back(self) -> None:
        """Take the server's refusal for its limit, which is not below what it once granted, and wait again."""
        self.limit = max(1, self._most_open)
        self._entered -= 1
        self._admit()
        await self.enter()

    def _admit(self) -> None:
        while self._waiting and self._entered < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._entered += 1
                turn.set_result(None)
