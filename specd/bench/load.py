"""The closed loop: as many requests in flight as the level says, until all are done or the level is hopeless."""

import asyncio
import gc
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

from specd.bench.plan import BenchPlan, Level, LevelDone, Progress, Sample, Target
from specd.bench.prompts import Prompt
from specd.bench.server import Server
from specd.bench.stream import Answer
from specd.bench.workload import Mode, Work, counted, warm_up

__all__ = ["LoopLag", "Runner", "is_steady"]

_TICK_S = 1.0
_LAG_PERIOD_S = 0.01
# Warm-up goes on until two rounds agree this well, in time per token, or the rounds are used up.
_AGREEMENT = 0.25
_MAX_ROUNDS = 4
# So many failures in a row, or so many deadlines missed in a row, and the level is given up.
_FAILURES_IN_A_ROW = 5
_TIMEOUTS_IN_A_ROW = 2


class Runner:
    """Runs levels in order; `say` gets progress about once a second, but only while something moves."""

    def __init__(
        self, server: Server, target: Target, plan: BenchPlan, prompts: tuple[Prompt, ...], mode: Mode,
        say: Callable[[Progress], None],
    ) -> None:  # fmt: skip
        self._server = server
        self._target = target
        self._plan = plan
        self._prompts = prompts
        self._mode = mode
        self._say = say
        self._warm: set[int] = set()

    async def run(self, level: Level) -> LevelDone:
        """Warm up (the first time a concurrency is met in this process), measure, and return what was found."""
        warmed = 0
        if level.concurrency not in self._warm:
            warmed = await self._warm_up(level)
            self._warm.add(level.concurrency)
        works = counted(self._prompts, self._plan, level)
        before = await self._server.metrics()
        # What is garbage now is not collected inside the measurement.
        gc.collect()
        gc.freeze()
        async with LoopLag.watched() as lag:
            batch = _Batch(self._server, self._mode, level, self._say)
            started = time.monotonic()
            async with batch.reported(len(works)):
                await batch.run(works)
            wall_s = batch.over_at() - started
            most_open = self._server.most_open
        after = await self._server.metrics()
        counting = await self._count(batch.answers)
        return LevelDone(
            level=level,
            samples=tuple(_sample(level, work, answer, batch.epoch) for work, answer in batch.finished),
            wall_s=wall_s,
            metrics_before=before,
            metrics_after=after,
            loop_lag_p99_ms=lag.p99_ms(),
            warmup=warmed,
            stopped_early=batch.stopped,
            endpoint=self._mode.endpoint,
            counting=counting,
            in_flight=most_open,
            route=self._target.route,
        )

    async def _warm_up(self, level: Level) -> int:
        """Send unscored rounds at the level's concurrency until two agree; return how many requests that took."""
        if not self._plan.warmup_requests:
            return 0
        size = max(math.ceil(self._plan.warmup_requests / 2), level.concurrency)
        costs: list[float] = []
        for number in range(_MAX_ROUNDS):
            batch = _Batch(self._server, self._mode, level, self._say)
            started = time.monotonic()
            async with batch.reported(0):
                await batch.run(warm_up(self._prompts, self._plan, level, size, number))
            tokens = sum(answer.tokens_seen for answer in batch.answers)
            costs.append((time.monotonic() - started) / max(1, tokens))
            if batch.stopped or is_steady(costs):
                break
        return size * len(costs)

    async def _count(self, answers: Sequence[Answer]) -> str:
        """Fill in counts for answers that came without usage; return how the level's tokens are known."""
        good = [answer for answer in answers if not answer.error and answer.has_first_token]
        silent = [answer for answer in good if answer.tokens_out is None]
        for answer in silent:
            answer.counted = await self._server.count_tokens(answer.text)
            if answer.counted is None:
                # All by one measure: a mixture could not be compared with anything.
                for each in silent:
                    each.counted = None
                return "estimated"
        if silent:
            return "tokenize"
        return "running" if any(answer.has_running_usage for answer in good) else "usage"


def is_steady(costs: Sequence[float]) -> bool:
    """True when the last two rounds cost about the same."""
    return len(costs) > 1 and abs(costs[-1] - costs[-2]) <= _AGREEMENT * min(costs[-2:])


class _Batch:
    """Works shared out to `concurrency` senders."""

    def __init__(self, server: Server, mode: Mode, level: Level, say: Callable[[Progress], None]) -> None:
        self.finished: list[tuple[Work, Answer]] = []
        self.stopped = ""
        self.epoch = time.time() - time.monotonic()
        self._server = server
        self._mode = mode
        self._level = level
        self._say = say
        self._in_a_row = 0
        self._timeouts_in_a_row = 0

    @property
    def answers(self) -> list[Answer]:
        """The answers that are over, good or bad."""
        return [answer for _, answer in self.finished]

    def over_at(self) -> float:
        """Return when the last token came; now, if something failed and so there is no last token to go by."""
        times = [answer.last_at for answer in self.answers]
        known = [at for at in times if at is not None]
        return max(known) if known and len(known) == len(times) else time.monotonic()

    async def run(self, works: Sequence[Work]) -> None:
        """Send all works, or stop early."""
        self._server.most_open = 0
        waiting = iter(works)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._level.concurrency, len(works))):
                group.create_task(self._send(waiting))

    async def _send(self, waiting: Iterator[Work]) -> None:
        for work in waiting:
            if self.stopped:
                return
            answer = await self._server.ask(work, self._mode)
            self.finished.append((work, answer))
            self._judge(answer)

    def _judge(self, answer: Answer) -> None:
        self._in_a_row = self._in_a_row + 1 if answer.error else 0
        self._timeouts_in_a_row = self._timeouts_in_a_row + 1 if answer.has_timed_out else 0
        width = self._level.concurrency
        if self._timeouts_in_a_row >= max(_TIMEOUTS_IN_A_ROW, width):
            self.stopped = f"stalled: {self._timeouts_in_a_row} requests in a row without tokens: {answer.error}"
        elif self._in_a_row >= max(_FAILURES_IN_A_ROW, width):
            self.stopped = f"{self._in_a_row} requests failed in a row: {answer.error}"

    @asynccontextmanager
    async def reported(self, total: int) -> AsyncIterator[None]:
        """Report progress while the block runs, and once at its end; a total of 0 is a warm-up."""
        started = time.monotonic()
        reporter = asyncio.create_task(self._report(total, started))
        try:
            yield
        finally:
            await _stop(reporter)
        self._tell(total, started)

    async def _report(self, total: int, started: float) -> None:
        seen = (-1, -1)
        while True:
            await asyncio.sleep(_TICK_S)
            now = (len(self.finished), self._tokens())
            if now != seen:
                seen = now
                self._tell(total, started)

    def _tokens(self) -> int:
        return sum(each.tokens_seen for each in (*self.answers, *self._server.open) if not each.error)

    def _tell(self, total: int, started: float) -> None:
        elapsed, tokens = time.monotonic() - started, self._tokens()
        self._say(
            Progress(
                level=self._level,
                done=len(self.finished) if total else 0,
                total=total,
                failed=sum(1 for answer in self.answers if answer.error),
                output_tok_s=tokens / elapsed if tokens and elapsed > 0 else None,
            )
        )


class LoopLag:
    """How late this process's event loop wakes up: its own contribution to every time it measures."""

    def __init__(self) -> None:
        self._lags: list[float] = []

    @classmethod
    @asynccontextmanager
    async def watched(cls) -> "AsyncIterator[LoopLag]":
        """Measure while the block runs."""
        lag = cls()
        task = asyncio.create_task(lag._watch())
        try:
            yield lag
        finally:
            await _stop(task)

    async def _watch(self) -> None:
        while True:
            due = time.monotonic() + _LAG_PERIOD_S
            await asyncio.sleep(_LAG_PERIOD_S)
            self._lags.append(time.monotonic() - due)

    def p99_ms(self) -> float:
        """Return the 99th percentile in ms; 0 when there was no time to measure."""
        if not self._lags:
            return 0.0
        ordered = sorted(self._lags)
        return max(0.0, ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000)


async def _stop(task: asyncio.Task[None]) -> None:
    """End a task that never ends by itself; a cancellation of the caller passes, an error of the task is raised."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


def _sample(level: Level, work: Work, answer: Answer, epoch: float) -> Sample:
    timing = answer.timing()
    return Sample(
        concurrency=level.concurrency,
        repeat=level.repeat,
        prompt_id=work.prompt_id,
        started_at=epoch + answer.sent,
        ttft_ms=timing.ttft_ms,
        answer_ttft_ms=timing.answer_ttft_ms,
        tpot_ms=timing.tpot_ms,
        e2e_ms=timing.e2e_ms,
        tokens_in=answer.tokens_in,
        tokens_out=timing.tokens_out,
        tokens_reasoning=answer.reasoning(),
        chunks=answer.chunks,
        exact=timing.exact,
        finish=answer.finish,
        error=answer.error,
    )
