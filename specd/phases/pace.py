"""How far a measurement of one side is and when it will end, from what its levels and the other side's took."""

import math
import time
from collections.abc import Callable, Mapping, Sequence

from specd.bench.plan import BenchPlan, Level, LevelDone, Progress

__all__ = ["Pace"]

# What the client needs at most: two rounds that agree, in most cases.
_WARMUP_ROUNDS = 2


class Pace:
    """Estimates in seconds for the levels that are still to be measured.

    `known_s` holds what one level of a load took before, on whichever side. A rate that was never met takes what its
    requests need to be sent; a concurrency what the speed seen now makes of its answers at full length, the speed
    growing with the root of concurrency.
    """

    def __init__(
        self,
        plan: BenchPlan,
        levels: Sequence[Level],
        known_s: Mapping[tuple[int, float], float],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._left = list(levels)
        self._known_s = dict(known_s)
        self._now = now
        self._began = self._level_began = now()
        self._warm: set[tuple[int, float]] = set()
        # Output tokens per second at concurrency 1, by the latest word.
        self._tok_s: float | None = None
        self._fraction = 0.0

    def finished(self, done: LevelDone) -> None:
        """Take a level as measured."""
        self._left = [level for level in self._left if level != done.level]
        self._known_s[done.level.load] = done.wall_s
        self._warm.add(done.level.load)
        self._level_began = self._now()

    def ahead(self, progress: Progress) -> tuple[float | None, float | None]:
        """Return the share of the whole that is done, which never falls, and the seconds left; None while unknown."""
        if progress.output_tok_s and progress.level.concurrency:
            self._tok_s = progress.output_tok_s / math.sqrt(progress.level.concurrency)
        costs = [self._cost_s(level.load) for level in self._left]
        if any(cost is None for cost in costs):
            return None, None
        left_s = sum(cost for cost in costs if cost is not None)
        if self._left and progress.level == self._left[0]:
            left_s -= self._spent_s(progress, costs[0] or 0.0)
        for load in {level.load for level in self._left} - self._warm:
            if not (progress.total and load == progress.level.load):
                left_s += self._warmup_s(load)
        if not progress.total:
            left_s -= min(self._now() - self._level_began, self._warmup_s(progress.level.load))
        left_s = max(left_s, 0.0)
        gone_s = self._now() - self._began
        self._fraction = max(self._fraction, gone_s / (gone_s + left_s) if gone_s + left_s else 0.0)
        return self._fraction, left_s

    def _cost_s(self, load: tuple[int, float]) -> float | None:
        if load in self._known_s:
            return self._known_s[load]
        concurrency, rate = load
        if rate:
            return self._plan.requests / rate + self._plan.ramp_s / 2
        if self._tok_s is None:
            return None
        return self._plan.requests * self._plan.max_tokens / (self._tok_s * math.sqrt(concurrency))

    def _spent_s(self, progress: Progress, cost_s: float) -> float:
        return cost_s * progress.done / progress.total if progress.total else 0.0

    def _warmup_s(self, load: tuple[int, float]) -> float:
        concurrency, rate = load
        if not self._plan.warmup_requests or rate:
            return 0.0
        size = max(math.ceil(self._plan.warmup_requests / 2), concurrency)
        return (self._cost_s(load) or 0.0) * _WARMUP_ROUNDS * size / self._plan.requests
