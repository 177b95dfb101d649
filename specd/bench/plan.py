"""Seam 4, the benchmark: a plan goes in, samples come out, in a process of its own."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["BenchPlan", "Benchmark", "Level", "LevelDone", "Progress", "Sample", "Target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server to measure: where, under which model name, with which key. `unix_socket` overrides the connection."""

    base_url: str
    model: str
    api_key: str = ""
    unix_socket: str | None = None
    route: str = "direct"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """What to send. Both sides of a comparison get an equal plan; `digest` of it names a measurement.

    `prompts` names a shipped set or a JSONL path; `requests` counted ones per level and repeat; times in seconds.
    """

    levels: tuple[int, ...]
    repeats: int
    requests: int
    prompts: str
    max_tokens: int
    temperature: float
    warmup_requests: int
    first_token_s: float
    idle_s: float
    seed: int = 0
    extra_body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Level:
    """One unit of work: a concurrency and which repeat of it."""

    concurrency: int
    repeat: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request. Times in ms from its send; tokens from the server's usage (`exact`) or estimated.

    `prompt_id` pairs it with the other side's. `tpot_ms` = (last token - first token) / (tokens out - tokens that came
    with the first), None when no token followed. `e2e_ms` ends with the last token. `exact`: counted by the server.
    `error` is "" for a good one; a failed request has no times and enters no mean. One without an error and without
    times was answered with an empty text.
    """

    concurrency: int
    repeat: int
    prompt_id: str
    started_at: float
    ttft_ms: float | None = None
    answer_ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_reasoning: int | None = None
    chunks: int = 0
    exact: bool = True
    finish: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a level is."""

    level: Level
    done: int
    total: int
    failed: int
    output_tok_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelDone:
    """A finished level: its samples, its wall seconds, /metrics pages before and after, and the client's own health.

    `endpoint` is chat or completions; `counting` is how tokens are known: running (usage in every event), usage (at the
    end), tokenize (asked afterwards) or estimated. `in_flight` is the highest number of requests seen open at once.
    """

    level: Level
    samples: tuple[Sample, ...]
    wall_s: float
    metrics_before: str
    metrics_after: str
    loop_lag_p99_ms: float
    warmup: int = 0
    stopped_early: str = ""
    endpoint: str = ""
    counting: str = ""
    in_flight: int = 0
    route: str = ""


class Benchmark(Protocol):
    """Something that can produce load and samples."""

    name: str

    def prepare(self) -> None:
        """Let what can be done before a `measure` begin now, in the background; safe to repeat."""
        ...

    async def close(self) -> None:
        """Let go of what was prepared and not used; the object can be used again afterwards."""
        ...

    def measure(
        self, target: Target, plan: BenchPlan, levels: tuple[Level, ...]
    ) -> AbstractAsyncContextManager[AsyncIterator[Progress | LevelDone]]:
        """Run the given levels in order; leaving the context ends the client process. Raises BenchError."""
        ...
