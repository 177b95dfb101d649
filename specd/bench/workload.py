"""Which request is sent when: prompt order, the salt against prefix caches, and request bodies.

Everything follows from plan, level and index alone, so both sides of a comparison send equal prompts. Within one side
no two requests begin alike: each prompt starts with a short line of its own, so the server's prefix cache holds nothing
of it (but for what a chat template puts before it). Measuring the same plan twice on one server process would find its
own prefixes again: where the server takes one, each client process gives it a cache salt of its own, which leaves the
prompts as they are; elsewhere give the plan another seed for that.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from specd.bench.plan import BenchPlan, Level, Target
from specd.bench.prompts import Prompt

__all__ = ["CHAT", "COMPLETIONS", "Mode", "Work", "base_id", "body", "counted", "warm_up"]

CHAT = "chat"
COMPLETIONS = "completions"
# What a plan's extra_body can't change: the client depends on it.
_OURS = ("model", "messages", "prompt", "stream", "stream_options", "n")


@dataclass(frozen=True, slots=True)
class Mode:
    """How this server is spoken to: chat or completions, which usage option it takes (running, usage or none), and
    whether it takes a salt for its prefix cache (vLLM's cache_salt)."""

    endpoint: str = CHAT
    usage: str = "running"
    is_salted: bool = False

    @property
    def path(self) -> str:
        """The request path."""
        return "/v1/chat/completions" if self.endpoint == CHAT else "/v1/completions"


@dataclass(frozen=True, slots=True)
class Work:
    """One request to send; `prompt_id` tells a prompt's second turn within a level (`id#2`) from its first."""

    prompt_id: str
    prompt: Prompt
    salt: str


def counted(prompts: Sequence[Prompt], plan: BenchPlan, level: Level) -> list[Work]:
    """Return the scored requests of a level and repeat.

    One seeded order of the whole set, in which kinds alternate, is walked on from repeat to repeat: a few requests
    already meet every kind, and repeats see further prompts rather than the same ones again. It is the same for all
    loads. In a mix each set has an order of its own, and sets take turns by their weights.
    """
    start = level.repeat * plan.requests
    turns: Counter[str] = Counter()
    works = []
    for index, prompt in enumerate(islice(_walk(prompts, plan.seed), start, start + plan.requests)):
        turns[prompt.id] += 1
        turn = turns[prompt.id]
        name = prompt.id if turn == 1 else f"{prompt.id}#{turn}"
        works.append(Work(name, prompt, _salt(plan.seed, level, index)))
    return works


def warm_up(prompts: Sequence[Prompt], plan: BenchPlan, level: Level, count: int, round_number: int) -> list[Work]:
    """Return unscored requests of the same shapes; no scored request shares their salts."""
    first = round_number * count
    walk = islice(_walk(prompts, plan.seed + 1), first, first + count)
    return [Work("", prompt, _salt(plan.seed, level, -1 - first - index)) for index, prompt in enumerate(walk)]


def base_id(prompt_id: str) -> str:
    """Return the prompt behind a sample's prompt_id, whichever turn it was."""
    return prompt_id.partition("#")[0]


def body(work: Work, plan: BenchPlan, target: Target, mode: Mode, max_tokens: int = 0) -> dict[str, Any]:
    """Return a request's JSON body."""
    request: dict[str, Any] = {
        "max_tokens": max_tokens or plan.max_tokens,
        "temperature": plan.temperature,
        **{key: value for key, value in plan.extra_body.items() if key not in _OURS},
        "model": target.model,
        "stream": True,
    }
    if mode.endpoint == CHAT:
        request["messages"] = list(work.prompt.with_prefix(work.salt))
        if work.prompt.tools:
            request["tools"] = list(work.prompt.tools)
    else:
        request["prompt"] = work.prompt.flat(work.salt)
    options: Mapping[str, Any] = {
        "running": {"include_usage": True, "continuous_usage_stats": True},
        "usage": {"include_usage": True},
    }.get(mode.usage, {})
    if options:
        request["stream_options"] = dict(options)
    return request


def _salt(seed: int, level: Level, index: int) -> str:
    name = f"{seed}/{level.concurrency}/{level.rate:g}/{level.repeat}/{index}"
    return f"[{hashlib.blake2b(name.encode(), digest_size=6).hexdigest()}]\n"


def _walk(prompts: Sequence[Prompt], seed: int) -> Iterator[Prompt]:
    """Yield prompts without end: each set in its own order over and over, the sets by turns as their weights say."""
    sets: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        sets.setdefault(prompt.source, []).append(prompt)
    walks = {source: cycle(_mixed(members, seed)) for source, members in sets.items()}
    weights = {source: members[0].weight for source, members in sets.items()}
    whole = sum(weights.values())
    # Smooth weighted turns: the set that is most behind its share comes next, so weights hold for any part of the walk.
    owed = dict.fromkeys(weights, 0.0)
    while True:
        for source, weight in weights.items():
            owed[source] += weight
        source = max(owed, key=lambda each: owed[each])
        owed[source] -= whole
        yield next(walks[source])


def _mixed(prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    rng = random.Random(seed)
    by_kind: dict[str, list[Prompt]] = {}
    for prompt in sorted(prompts, key=lambda each: each.id):
        by_kind.setdefault(prompt.kind, []).append(prompt)
    queues = list(by_kind.values())
    rng.shuffle(queues)
    for queue in queues:
        rng.shuffle(queue)
    # Each prompt gets its place within its kind as a fraction, so kinds alternate to the end however unequal they are.
    placed = [
        ((rank + 0.5) / len(queue), turn, prompt)
        for turn, queue in enumerate(queues)
        for rank, prompt in enumerate(queue)
    ]
    return [prompt for _, _, prompt in sorted(placed, key=lambda each: each[:2])]
