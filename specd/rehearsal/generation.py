"""Continuous batching: one loop of engine steps in which all running requests advance together.

Each step's end is computed from the end of the step before, on the monotonic clock, so that timer errors do not add
up. Tokens reach a request through its `sink`, called inside the loop at the step's end: no task switch stands between
a step and its bytes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .exposition import Metrics
from .faults import Faults
from .script import Script
from .settings import Settings
from .speed import Acceptance, StepClock, mix
from .tokens import Story

_BLOCK = 16
# A loop that is further behind than this stops catching up: tokens in a burst would be a lie.
_CATCH_UP_S = 0.25

Sink = Callable[[Sequence[int], "str | None"], None]


@dataclass
class Generation:
    """One request in the engine: what it asked and how far it is. Times are loop times in seconds."""

    prompt: Sequence[int]
    key: int
    story: Story
    max_tokens: int
    natural_end: int
    arrived: float
    sink: Sink
    produced: int = 0
    started: float = 0.0
    prefill_left: int = 0
    cached: int = 0
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    is_over: bool = False
    drafted: int = field(default=0, repr=False)


class Scheduler:
    """Admits requests up to the batch limit and steps them; all methods belong to the loop's thread."""

    def __init__(self, script: Script, faults: Faults, settings: Settings, metrics: Metrics) -> None:
        self._script = script
        self._settings = settings
        self._metrics = metrics
        speculative = settings.speculative
        drafts = speculative is not None and not faults.has("spec-inactive")
        self._clock = StepClock(script, speculative.method if speculative and drafts else "none")
        self._acceptance = Acceptance(script, speculative) if speculative is not None and drafts else None
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._wake = asyncio.Event()
        self.idle = asyncio.Event()
        self._step = 0
        self._end = 0.0
        self._prefix = _PrefixCache(settings.has_prefix_caching, script.kv_cache_tokens // _BLOCK)
        self._first_delay_s = faults.number("slow-first", 0.0) if faults.has("slow-first") else 0.0
        self._stall_after = _stall_after(faults)
        self._tokens_made = 0
        self.crowd_limit = int(faults.number("crash-on-load", 0)) if faults.has("crash-on-load") else 0
        self.on_crowd: Callable[[], None] = lambda: None
        self.on_stall: Callable[[], None] = lambda: None

    def submit(self, generation: Generation) -> None:
        """Queue a request."""
        self._waiting.append(generation)
        self._show_load()
        self._wake.set()
        if self.crowd_limit and len(self._waiting) + len(self._running) >= self.crowd_limit:
            self.on_crowd()

    def abort(self, generation: Generation, reason: str = "abort") -> None:
        """Forget a request whose client is gone or which ended by other means than its tokens."""
        if generation.is_over:
            return
        generation.is_over = True
        self._metrics.count_finished(reason)
        self._drop_finished()

    def abort_all(self, reason: str) -> list[Generation]:
        """End every request and return those that were open."""
        open_generations = [each for each in (*self._running, *self._waiting) if not each.is_over]
        for generation in open_generations:
            self.abort(generation, reason)
        return open_generations

    async def run(self) -> None:
        """Step for ever."""
        loop = asyncio.get_running_loop()
        while True:
            self._admit(loop.time())
            if not self._running:
                self._wake.clear()
                await self._wake.wait()
                self._end = max(self._end, self._waiting[0].arrived if self._waiting else loop.time())
                continue
            if self._stall_after is not None and self._tokens_made >= self._stall_after:
                self.on_stall()
                await asyncio.Event().wait()
            if loop.time() - self._end > _CATCH_UP_S:
                self._end = loop.time()
            self._end += self._plan_step()
            await _sleep_until(self._end)
            self._finish_step(self._end)

    def _admit(self, now: float) -> None:
        while self._waiting and len(self._running) < self._settings.max_num_seqs:
            generation = self._waiting.popleft()
            if generation.is_over:
                continue
            generation.started = now
            size = len(generation.prompt)
            generation.cached = self._prefix.take(generation.prompt)
            generation.prefill_left = size - generation.cached
            self._metrics.count("prefix_cache_queries", size)
            self._metrics.count("prefix_cache_hits", generation.cached)
            self._running.append(generation)
        self._show_load()

    def _plan_step(self) -> float:
        """Decide what the next step does and return its length, in seconds."""
        self._step += 1
        verified = prefilled = drafted = 0
        budget = self._settings.max_num_batched_tokens
        for generation in self._running:
            generation.drafted = 0
            if generation.prefill_left:
                part = min(generation.prefill_left, max(0, budget - prefilled))
                generation.prefill_left -= part
                prefilled += part
                # A chunk that is not the last yields no token; such a request is marked by what is left of it.
                verified += 1 if generation.prefill_left == 0 else 0
                continue
            if generation.produced and self._acceptance is not None:
                generation.drafted = self._acceptance.draft(generation.key, generation.produced)
            drafted += generation.drafted
            verified += 1 + generation.drafted
        extra_s, self._first_delay_s = self._first_delay_s, 0.0
        return self._clock.step_s(verified, prefilled, drafted, self._step) + extra_s

    def _finish_step(self, now: float) -> None:
        made = 0
        for generation in list(self._running):
            if generation.is_over or generation.prefill_left:
                continue
            made += self._advance(generation, now)
        self._tokens_made += made
        self._metrics.count("generation_tokens", made)
        self._metrics.observe("iteration_tokens_total", made)
        self._drop_finished()

    def _advance(self, generation: Generation, now: float) -> int:
        """Give a request its tokens of this step; returns their number."""
        accepted = 0
        if generation.drafted and self._acceptance is not None:
            accepted = self._acceptance.accepted(generation.key, generation.produced)
            self._metrics.count_draft(generation.drafted, accepted)
        first = generation.produced
        limit = min(generation.max_tokens, generation.natural_end)
        count = min(1 + accepted, limit - first)
        generation.produced += count
        self._note_times(generation, now, first)
        finish = None
        if generation.produced >= limit:
            finish = "length" if limit == generation.max_tokens else "stop"
            self._note_end(generation, now, finish)
        generation.sink([generation.story.token(index) for index in range(first, first + count)], finish)
        return count

    def _note_times(self, generation: Generation, now: float, first: int) -> None:
        if first == 0:
            generation.first_token_at = now
            self._metrics.observe("time_to_first_token_seconds", now - generation.arrived)
            self._metrics.count("prompt_tokens", len(generation.prompt))
        else:
            self._metrics.observe("inter_token_latency_seconds", now - generation.last_token_at)
        generation.last_token_at = now

    def _note_end(self, generation: Generation, now: float, finish: str) -> None:
        generation.is_over = True
        metrics, decode_s = self._metrics, now - generation.first_token_at
        metrics.count_finished(finish)
        metrics.observe("request_prompt_tokens", len(generation.prompt))
        metrics.observe("request_generation_tokens", generation.produced)
        metrics.observe("request_params_max_tokens", generation.max_tokens)
        metrics.observe("e2e_request_latency_seconds", now - generation.arrived)
        metrics.observe("request_queue_time_seconds", max(0.0, generation.started - generation.arrived))
        metrics.observe("request_inference_time_seconds", now - generation.started)
        metrics.observe("request_prefill_time_seconds", generation.first_token_at - generation.started)
        metrics.observe("request_decode_time_seconds", decode_s)
        if generation.produced > 1:
            metrics.observe("request_time_per_output_token_seconds", decode_s / (generation.produced - 1))

    def finish_early(self, generation: Generation) -> None:
        """End a request whose stop string has come up; the token that held it counts."""
        if not generation.is_over:
            self._note_end(generation, generation.last_token_at, "stop")
            self._drop_finished()

    def _drop_finished(self) -> None:
        self._running = [each for each in self._running if not each.is_over]
        self._waiting = deque(each for each in self._waiting if not each.is_over)
        self._show_load()

    def _show_load(self) -> None:
        if self._running or self._waiting:
            self.idle.clear()
        else:
            self.idle.set()
        held = sum(len(each.prompt) + each.produced for each in self._running)
        self._metrics.set("num_requests_running", len(self._running))
        self._metrics.set("num_requests_waiting", len(self._waiting))
        self._metrics.set("kv_cache_usage_perc", min(1.0, held / self._script.kv_cache_tokens))


class _PrefixCache:
    """Which 16-token blocks have been computed, oldest forgotten first."""

    def __init__(self, is_on: bool, capacity: int) -> None:
        self._is_on = is_on
        self._capacity = max(1, capacity)
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def take(self, prompt: Sequence[int]) -> int:
        """Return how many leading tokens are cached (never the whole prompt), and remember the prompt."""
        if not self._is_on:
            return 0
        chain, hits, is_hit = 0, 0, True
        for start in range(0, len(prompt) - _BLOCK + 1, _BLOCK):
            chain = mix(chain, *prompt[start : start + _BLOCK])
            is_hit = is_hit and chain in self._blocks and start + _BLOCK < len(prompt)
            hits += _BLOCK if is_hit else 0
            self._blocks[chain] = None
            self._blocks.move_to_end(chain)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
        return hits


def _stall_after(faults: Faults) -> int | None:
    """Return after how many tokens all generation stops moving, None for never."""
    if faults.has("no-token"):
        return 0
    serving = faults.at("serving")
    if serving is None or serving[0] == "die":
        return None
    return int(serving[1] or 0)


async def _sleep_until(when: float) -> None:
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    timer = loop.call_at(when, done.set_result, None)
    try:
        await done
    finally:
        timer.cancel()
