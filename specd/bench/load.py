"""Runs a level: warm-up, the load itself, and what is to be known of it afterwards."""

import gc
import math
import time
from collections.abc import Callable, Sequence

from specd.bench.answers import digests
from specd.bench.arrivals import due_times
from specd.bench.batch import Batch
from specd.bench.health import Health, send_delay_p99_ms, share_of
from specd.bench.plan import BenchPlan, Level, LevelDone, Progress, Sample, Target
from specd.bench.prompts import Prompt
from specd.bench.saturation import no_gain
from specd.bench.server import Server
from specd.bench.stream import Answer
from specd.bench.workload import Mode, Work, counted, warm_up

__all__ = ["Runner", "is_steady"]

# Warm-up goes on until two rounds agree this well, in time per token, or the rounds are used up.
_AGREEMENT = 0.25
_MAX_ROUNDS = 4
# An open loop is warmed up with as many requests at once as come in this time.
_WARM_CROWD_S = 2.0


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
        self._warm: set[tuple[int, float]] = set()
        self._speeds: dict[int, dict[int, float]] = {}

    async def run(self, level: Level) -> LevelDone:
        """Warm up (the first time a load is met in this process), measure, and return what was found."""
        warmed = 0
        if level.load not in self._warm:
            warmed = await self._warm_up(level)
            self._warm.add(level.load)
        works = counted(self._prompts, self._plan, level)
        due = due_times(self._plan, level) if level.rate else []
        before = await self._server.metrics()
        # What is garbage now is not collected inside the measurement.
        gc.collect()
        gc.freeze()
        async with Health.watched() as health:
            batch = Batch(self._server, self._mode, level, self._say)
            started = time.monotonic()
            async with batch.reported(len(works)):
                if level.rate:
                    await batch.run_open(works, due)
                else:
                    await batch.run_closed(works, level.concurrency, self._plan.ramp_s)
            wall_s = batch.over_at() - started
            most_open = self._server.most_open
        after = await self._server.metrics()
        counting = await self._count(batch.answers)
        samples = tuple(
            _sample(level, work, answer, batch.epoch, is_greedy=self._plan.is_greedy) for work, answer in batch.finished
        )
        gaps = [gap for answer in batch.answers if not answer.error for gap in answer.gaps_ms]
        return LevelDone(
            level=level,
            samples=samples,
            wall_s=wall_s,
            metrics_before=before,
            metrics_after=after,
            loop_lag_p99_ms=health.lag_p99_ms(),
            warmup=warmed,
            stopped_early=batch.stopped,
            endpoint=self._mode.endpoint,
            counting=counting,
            in_flight=most_open,
            route=self._target.route,
            gap_p50_ms=share_of(gaps, 0.5),
            gap_p99_ms=share_of(gaps, 0.99),
            send_delay_p99_ms=send_delay_p99_ms(batch.answers),
            cpu_share=health.cpu_share,
            client_bound=health.client_bound(batch.answers),
            saturated=self._saturation(level, batch, samples, wall_s),
            notes=_notes(batch.answers),
        )

    def _saturation(self, level: Level, batch: Batch, samples: Sequence[Sample], wall_s: float) -> str:
        if level.rate:
            return batch.crowd.words if batch.crowd.is_growing else ""
        speeds = self._speeds.setdefault(level.repeat, {})
        tokens = sum(sample.tokens_out or 0 for sample in samples if not sample.error)
        if tokens and wall_s > 0 and not batch.stopped:
            speeds[level.concurrency] = tokens / wall_s
        return no_gain(speeds, level.concurrency)

    async def _warm_up(self, level: Level) -> int:
        """Send unscored rounds, as wide as the level, until two agree; return how many requests that took."""
        if not self._plan.warmup_requests:
            return 0
        width = level.concurrency or max(1, min(self._plan.requests, math.ceil(level.rate * _WARM_CROWD_S)))
        size = max(math.ceil(self._plan.warmup_requests / 2), width)
        costs: list[float] = []
        for number in range(_MAX_ROUNDS):
            batch = Batch(self._server, self._mode, level, self._say)
            started = time.monotonic()
            async with batch.reported(0):
                await batch.run_closed(warm_up(self._prompts, self._plan, level, size, number), width)
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


def _sample(level: Level, work: Work, answer: Answer, epoch: float, *, is_greedy: bool) -> Sample:
    timing = answer.timing()
    whole, words = digests(answer.text) if is_greedy and not answer.error else ("", "")
    gaps = [] if answer.error else answer.gaps_ms
    return Sample(
        concurrency=level.concurrency,
        repeat=level.repeat,
        prompt_id=work.prompt_id,
        started_at=epoch + answer.start,
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
        gap_p50_ms=share_of(gaps, 0.5),
        gap_p99_ms=share_of(gaps, 0.99),
        resent=answer.is_resent,
        bunched=answer.is_bunched,
        send_delay_ms=answer.send_delay_s * 1000,
        text_digest=whole,
        text_words=words,
    )


def _notes(answers: Sequence[Answer]) -> tuple[str, ...]:
    """Return what a reader of the level should know about the way to the server."""
    good = [answer for answer in answers if not answer.error]
    resent = sum(answer.is_resent for answer in answers)
    bunched = sum(answer.is_bunched for answer in good)
    compressed = sum(answer.is_compressed for answer in good)
    notes = []
    if resent:
        notes.append(f"{_times(resent)} the server had closed a kept connection, and the request went out again")
    if bunched:
        notes.append(
            f"{bunched} of {len(good)} answers came in bunches: something on the way (a proxy?) holds events back,"
            " so times to the first token and gaps are not the engine's"
        )
    if compressed:
        notes.append(f"{compressed} of {len(good)} answers came compressed although that was not asked for")
    return tuple(notes)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
