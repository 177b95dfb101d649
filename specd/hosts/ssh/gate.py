"""How many sessions are open over one connection: servers allow as few as one (MaxSessions), and do not say so."""

import asyncio
import collections

__all__ = ["SessionGate"]

_USUAL = 8  # OpenSSH allows 10


class SessionGate:
    """Lets so many in at a time, in the order they came; the limit falls when the server turns one away."""

    def __init__(self, limit: int = _USUAL) -> None:
        self.limit = limit
        self.entered = 0
        self.open = 0
        """Sessions the server has granted."""
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()

    async def enter(self) -> None:
        """Wait for a place."""
        if not self._waiting and self.entered < self.limit:
            self.entered += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            else:
                turn.cancel()
            raise

    def leave(self) -> None:
        """Give a place back."""
        self.entered -= 1
        while self._waiting and self.entered < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self.entered += 1
                turn.set_result(None)

    async def step_back(self) -> None:
        """Take the server's refusal for its limit, and wait for a place again."""
        self.limit = max(1, self.open)
        self.entered -= 1
        await self.enter()
