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

    `levels` are concurrencies (closed loop), `rates` requests per second (open loop; `arrivals` says how they come:
    poisson, constant, or a file of timestamps to replay). `ramp_s` is how long a level takes to reach its full load.
    `prompts` is a set's name, a path, or several of them with weights; `requests` counted ones per level and repeat;
    times in seconds.
    """

    levels: tuple[int, ...]
    repeats: int
    requests: int
    prompts: str | Mapping[str, float]
    max_tokens: int
    temperature: float
    warmup_requests: int
    first_token_s: float
    idle_s: float
    seed: int = 0
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    rates: tuple[float, ...] = ()
    arrivals: str = "poisson"
    ramp_s: float = 0.0

    @property
    def is_greedy(self) -> bool:
        """True when each answer is meant to be the most likely one, so that it can be compared with another."""
        return bool(self.extra_body.get("temperature", self.temperature) == 0)

    def work(self) -> tuple["Level", ...]:
        """Return all levels in order. Repeats are the outer loop: drift of the machine touches every level alike."""
        return tuple(
            level
            for repeat in range(1, self.repeats + 1)
            for level in (
                *(Level(concurrency, repeat) for concurrency in self.levels),
                *(Level(0, repeat, rate) for rate in self.rates),
            )
        )


@dataclass(frozen=True, slots=True)
class Level:
    """One unit of work: a concurrency, or a rate in requests per second (then concurrency is 0), and which repeat."""

    concurrency: int
    repeat: int
    rate: float = 0.0

    @property
    def load(self) -> tuple[int, float]:
        """What is repeated: (concurrency, rate)."""
        return self.concurrency, self.rate

    @property
    def name(self) -> str:
        """The load in words."""
        return f"{self.rate:g} requests/s" if self.rate else f"concurrency {self.concurrency}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request. Times in ms from its send, in an open loop from when it should have been sent; tokens from the
    server's usage (`exact`) or estimated.

    `prompt_id` pairs it with the other side's. `tpot_ms` = (last token - first token) / (tokens out - tokens that came
    with the first), None when no token followed. `e2e_ms` ends with the last token. `exact`: counted by the server.
    `error` is "" for a good one; a failed request has no times and enters no mean. One without an error and without
    times was answered with an empty text. The gaps are those between events with text, each of which may hold several
    tokens. `resent`: its kept connection had been closed, so it went out again. `bunched`: its events were held back
    somewhere on the way. `send_delay_ms` is this client's own.
    `text_digest` and `text_words` stand for the answer of a greedy request (answers.py), "" for others.
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
    gap_p50_ms: float | None = None
    gap_p99_ms: float | None = None
    resent: bool = False
    bunched: bool = False
    send_delay_ms: float = 0.0
    text_digest: str = ""
    text_words: str = ""


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
    The gaps are over all events with text of all good requests. `client_bound` says why the client itself limited what
    it measured, `saturated` why more load brings nothing, `notes` what else a reader should know; "" or () for nothing.
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
    gap_p50_ms: float | None = None
    gap_p99_ms: float | None = None
    send_delay_p99_ms: float = 0.0
    cpu_share: float = 0.0
    client_bound: str = ""
    saturated: str = ""
    notes: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "LevelDone":
        """Return a level from its JSON object; raises TypeError and KeyError for what is none."""
        samples = tuple(Sample(**sample) for sample in body["samples"])
        notes = tuple(body.get("notes", ()))
        return cls(**{**body, "level": Level(**body["level"]), "samples": samples, "notes": notes})


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
