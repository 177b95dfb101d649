"""Requests of one level on their way: a closed loop keeps so many open, an open loop sends each when it is due."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

from specd.bench.health import stop
from specd.bench.plan import Level, Progress
from specd.bench.saturation import Crowd
from specd.bench.server import Server
from specd.bench.stream import Answer
from specd.bench.workload import Mode, Work

__all__ = ["Batch"]

_TICK_S = 1.0
# So many failures in a row, or so many deadlines missed in a row, and the level is given up.
_FAILURES_IN_A_ROW = 5
_TIMEOUTS_IN_A_ROW = 2


class Batch:
    """Sends works and keeps their answers; `stopped` says why it gave up, "" while it has not."""

    def __init__(self, server: Server, mode: Mode, level: Level, say: Callable[[Progress], None]) -> None:
        self.finished: list[tuple[Work, Answer]] = []
        self.stopped = ""
        self.crowd = Crowd()
        self.epoch = time.time() - time.monotonic()
        self._server = server
        self._mode = mode
        self._level = level
        self._say = say
        self._over = asyncio.Event()
        self._width = 1
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

    async def run_closed(self, works: Sequence[Work], width: int, ramp_s: float = 0.0) -> None:
        """Send all works, `width` at a time (reached evenly over `ramp_s`), or stop early."""
        self._server.most_open = 0
        self._width = min(width, len(works))
        waiting = iter(works)
        async with asyncio.TaskGroup() as group:
            for number in range(self._width):
                group.create_task(self._send(waiting, ramp_s * number / self._width))

    async def run_open(self, works: Sequence[Work], due: Sequence[float]) -> None:
        """Send each work when it is due (in seconds from now), whatever became of the others, or stop early."""
        self._server.most_open = 0
        self._width = 1
        started = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            tasks = []
            for number, (work, after) in enumerate(zip(works, due, strict=True)):
                if await self._is_over_by(started + after):
                    break
                tasks.append(group.create_task(self._ask(work, started + after)))
                self.crowd.sent(len(self._server.open))
                if number >= len(works) // 2 and self.crowd.is_hopeless:
                    self._give_up(f"saturated: {self.crowd.words}")
            await self._until_over(tasks)
            if self.stopped:
                for task in tasks:
                    task.cancel()

    async def _until_over(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Wait until all tasks have ended, or until the level is given up."""
        over = asyncio.create_task(self._over.wait())
        try:
            while not over.done() and (left := [task for task in tasks if not task.done()]):
                await asyncio.wait([over, *left], return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()

    async def _is_over_by(self, at: float) -> bool:
        """Wait until `at`, or until the level is given up."""
        try:
            async with asyncio.timeout_at(at):
                await self._over.wait()
        except TimeoutError:
            return False
        return True

    async def _send(self, waiting: Iterator[Work], after_s: float) -> None:
        if after_s:
            await self._is_over_by(asyncio.get_running_loop().time() + after_s)
        for work in waiting:
            if self.stopped:
                return
            await self._ask(work, None)

    async def _ask(self, work: Work, due: float | None) -> None:
        answer = await self._server.ask(work, self._mode, due=due)
        self.finished.append((work, answer))
        if not answer.error:
            self.crowd.answered()
        self._judge(answer)

    def _judge(self, answer: Answer) -> None:
        self._in_a_row = self._in_a_row + 1 if answer.error else 0
        self._timeouts_in_a_row = self._timeouts_in_a_row + 1 if answer.has_timed_out else 0
        if self._timeouts_in_a_row >= max(_TIMEOUTS_IN_A_ROW, self._width):
            self._give_up(f"stalled: {self._timeouts_in_a_row} requests in a row without tokens: {answer.error}")
        elif self._in_a_row >= max(_FAILURES_IN_A_ROW, self._width):
            self._give_up(f"{self._in_a_row} requests failed in a row: {answer.error}")

    def _give_up(self, why: str) -> None:
        self.stopped = self.stopped or why
        self._over.set()

    @asynccontextmanager
    async def reported(self, total: int) -> AsyncIterator[None]:
        """Report progress while the block runs, and once at its end; a total of 0 is a warm-up."""
        started = time.monotonic()
        reporter = asyncio.create_task(self._report(total, started))
        try:
            yield
        finally:
            await stop(reporter)
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
