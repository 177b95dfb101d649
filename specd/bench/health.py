"""What the client itself adds to its figures: how late its event loop wakes, how late it sends, how much CPU it takes.

A level is client-bound when any of that is no longer small against what is measured; nothing may be decided by it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from specd.bench.stream import Answer

__all__ = ["Health", "send_delay_p99_ms", "share_of", "stop"]

_LAG_PERIOD_S = 0.01
# One event loop has one core; above this share of it requests wait for the client.
_MOST_CPU = 0.9
_SHORTEST_LEVEL_S = 1.0
# How late a send may be at the 99th percentile: in ms at least, and as a share of a median. In an open loop it is
# part of the time to the first token; in a closed one, where the clock starts with the send, it only takes load away,
# so there it is a share of the whole request.
_DELAY_SHARE = 0.1
_DELAY_MS = 5.0


class Health:
    """Watches this process while a level runs."""

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._began = (time.monotonic(), time.process_time())
        self.cpu_share = 0.0
        self.wall_s = 0.0

    @classmethod
    @asynccontextmanager
    async def watched(cls) -> "AsyncIterator[Health]":
        """Watch while the block runs."""
        health = cls()
        task = asyncio.create_task(health._watch())
        try:
            yield health
        finally:
            await stop(task)
            wall, cpu = time.monotonic() - health._began[0], time.process_time() - health._began[1]
            health.wall_s = wall
            health.cpu_share = cpu / wall if wall > 0 else 0.0

    async def _watch(self) -> None:
        while True:
            due = time.monotonic() + _LAG_PERIOD_S
            await asyncio.sleep(_LAG_PERIOD_S)
            self._lags.append(time.monotonic() - due)

    def lag_p99_ms(self) -> float:
        """Return the 99th percentile of the loop's lateness in ms; 0 when there was no time to measure."""
        return max(0.0, (share_of(self._lags, 0.99) or 0.0) * 1000)

    def client_bound(self, answers: Sequence[Answer]) -> str:
        """Return why the client limited what it measured, "" if it did not."""
        if self.cpu_share > _MOST_CPU and self.wall_s >= _SHORTEST_LEVEL_S:
            return f"the client used {self.cpu_share:.0%} of the one core it can use"
        delay = send_delay_p99_ms(answers)
        timings = [(answer.due is not None, answer.timing()) for answer in answers]
        spans = [timing.ttft_ms if is_open else timing.e2e_ms for is_open, timing in timings]
        known = [span for span in spans if span is not None]
        allowed = max(_DELAY_MS, _DELAY_SHARE * (share_of(known, 0.5) or 0.0))
        if delay > allowed:
            return f"the client sent up to {delay:.1f} ms late (99th percentile; {allowed:.1f} ms are harmless)"
        return ""


def send_delay_p99_ms(answers: Sequence[Answer]) -> float:
    """Return the 99th percentile of how late requests went out, in ms."""
    return (share_of([answer.send_delay_s for answer in answers], 0.99) or 0.0) * 1000


def share_of(values: Sequence[float], share: float) -> float | None:
    """Return the value at a share (0..1) of the ordered values; None when there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


async def stop(task: asyncio.Task[None]) -> None:
    """End a task that never ends by itself; a cancellation of the caller passes, an error of the task is raised."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
