"""Runs a benchmark plan against one side, keeping each finished level; used by baseline and benchmark."""

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from specd.bench.plan import BenchPlan, Level, LevelDone, Progress
from specd.bench.summary import acceptance, prefix_hit_rate, summarise
from specd.engines.engine import Engine, ServerCommand
from specd.engines.openai_probe import Health
from specd.errors import BenchError
from specd.phases.context import Context
from specd.phases.pace import Pace
from specd.services.service import UnitFacts
from specd.store import MeasuredLevel
from states.events import BenchmarkProgressed, LevelMeasured

__all__ = ["foreign_requests", "measure", "plan_digest", "summaries"]

_TRIES = 2
_ANSWERS_S = 15.0


def plan_digest(plan: BenchPlan, model: str) -> str:
    """Name a plan and the model it asks for: measurements are comparable, and reused, only within one digest."""
    return hashlib.sha256(json.dumps([asdict(plan), model], sort_keys=True).encode()).hexdigest()[:16]


async def measure(
    ctx: Context,
    *,
    side: str,
    invocation: str,
    facts: UnitFacts,
    command: ServerCommand,
    engine: Engine,
    have: list[MeasuredLevel],
    is_sure: Callable[[list[LevelDone]], bool] = lambda _levels: False,
) -> None:
    """Measure what `have` lacks of the plan; a level counts only when it is complete, so a cut one is done again.

    Ends earlier once `is_sure` says so of what is measured by then.
    """
    measured = [each.done for each in have]
    for tries_left in range(_TRIES - 1, -1, -1):
        try:
            await _measure(ctx, side, invocation, facts, command, engine, measured, is_sure)
            return
        except BenchError as error:
            # A link that was cut in the middle, or a restarted sshd: what is measured stays, the rest begins again.
            if not tries_left or not await _answers(ctx, facts, command):
                raise
            ctx.note("info", f"the measurement of the {side} is taken up again: {error.what}")


async def _measure(
    ctx: Context,
    side: str,
    invocation: str,
    facts: UnitFacts,
    command: ServerCommand,
    engine: Engine,
    measured: list[LevelDone],
    is_sure: Callable[[list[LevelDone]], bool],
) -> None:
    """Measure what is missing once; appends to `measured`."""
    plan = ctx.plan()
    digest = plan_digest(plan, ctx.model(command))
    done = {each.level for each in measured}
    wanted = list(plan.work())
    missing = tuple(level for level in wanted if level not in done)
    if not missing or is_sure(measured):
        return
    pace = Pace(plan, missing, _known_s(ctx, digest, measured))
    async with (
        ctx.route(command) as route,
        ctx.benchmark.measure(ctx.target(route, facts, command), plan, missing) as run,
    ):
        async for item in run:
            if isinstance(item, Progress):
                _progressed(ctx, side, item, pace)
                continue
            pace.finished(item)
            measured.append(item)
            ctx.store.add_level(ctx.row, side, invocation, digest, item)
            _tell_level(ctx, side, item, _summary(engine, [item]))
            if _ends_repeat(item.level, wanted) and is_sure(measured):
                _told_sure(ctx, item.level.repeat, plan, len(wanted) - len(measured))
                break


async def _answers(ctx: Context, facts: UnitFacts, command: ServerCommand) -> bool:
    """Wait a little until the server answers again; False when it does not. Raises HostUnreachable."""
    until = time.monotonic() + _ANSWERS_S
    while time.monotonic() < until:
        async with ctx.probe(facts, command) as probe:
            if await probe.health() is Health.UP:
                return True
        await asyncio.sleep(0.2)
    return False


def _tell_level(ctx: Context, side: str, item: LevelDone, summary: dict[str, object]) -> None:
    ctx.bus.emit(
        LevelMeasured(
            trial=ctx.row.id,
            service=ctx.service.name,
            side=side,
            concurrency=item.level.concurrency,
            repeat=item.level.repeat,
            rate=item.level.rate,
            summary=summary,
        )
    )


def _ends_repeat(level: Level, wanted: list[Level]) -> bool:
    """True for the last level of a repeat: then a look is due."""
    return level == [each for each in wanted if each.repeat == level.repeat][-1]


def _told_sure(ctx: Context, repeat: int, plan: BenchPlan, levels_left: int) -> None:
    if levels_left:
        saved = levels_left * plan.requests
        ctx.note("info", f"sure after {repeat} of {plan.repeats} repeats, so {saved} requests were not needed")


def _known_s(ctx: Context, digest: str, have: list[LevelDone]) -> dict[tuple[int, float], float]:
    """Return the seconds of a level of each load, from what is measured of either side under this plan."""
    invocation = str((ctx.fact("baseline") or {}).get("invocation"))
    known = [each.done for each in ctx.store.baseline_levels(ctx.service.name, invocation, digest)]
    return {done.level.load: done.wall_s for done in (*known, *have)}


def _progressed(ctx: Context, side: str, item: Progress, pace: Pace) -> None:
    fraction, eta_s = pace.ahead(item)
    ctx.bus.emit(
        BenchmarkProgressed(
            trial=ctx.row.id,
            service=ctx.service.name,
            side=side,
            concurrency=item.level.concurrency,
            repeat=item.level.repeat,
            rate=item.level.rate,
            done=item.done,
            total=item.total,
            failed=item.failed,
            output_tok_s=item.output_tok_s,
            fraction=fraction,
            eta_s=eta_s,
        )
    )


def summaries(engine: Engine, levels: list[LevelDone]) -> list[dict[str, object]]:
    """Return the figures of each load over all its repeats: concurrencies first, then rates, each lowest first."""
    by_load: dict[tuple[int, float], list[LevelDone]] = {}
    for done in levels:
        by_load.setdefault(done.level.load, []).append(done)
    return [_summary(engine, group) for _, group in sorted(by_load.items(), key=lambda item: (item[0][1], item[0][0]))]


def _summary(engine: Engine, group: list[LevelDone]) -> dict[str, object]:
    concurrency, rate = group[0].level.load
    figures: dict[str, object] = {"concurrency": concurrency, "rate": rate, **summarise(group)}
    if foreign := sum(foreign_requests(engine, done) for done in group):
        figures["foreign_requests"] = foreign
    hits = [prefix_hit_rate(engine.counters(d.metrics_before), engine.counters(d.metrics_after)) for d in group]
    if known := [share for share in hits if share is not None]:
        figures["prefix_hit_rate"] = sum(known) / len(known)
    counted = [acceptance(engine.counters(d.metrics_before), engine.counters(d.metrics_after)) for d in group]
    drafts = sum(found["drafts"] for found in counted if found)
    if drafts:
        accepted = sum(found["accepted_tokens"] for found in counted if found)
        drafted = sum(found["draft_tokens"] for found in counted if found)
        figures["acceptance_length"] = 1 + accepted / drafts
        figures["acceptance_rate"] = accepted / drafted if drafted else None
        figures["drafts"] = drafts
        figures["acceptance_by_position"] = _by_position([found for found in counted if found])
    return figures


def foreign_requests(engine: Engine, done: LevelDone) -> float:
    """Return how many requests that are not ours ended in a level, by the engine's own count; 0 where it has none."""
    before, after = engine.counters(done.metrics_before), engine.counters(done.metrics_after)
    if None in (before.requests_finished, after.requests_finished) or before.process_start != after.process_start:
        return 0.0
    ended = (after.requests_finished or 0.0) - (before.requests_finished or 0.0)
    return max(0.0, ended - len(done.samples))


def _by_position(counted: list[dict[str, Any]]) -> list[float] | None:
    """Return the share of drafts whose token at each position was accepted, over several measurements."""
    told = [(found["drafts"], found["acceptance_by_position"]) for found in counted if found["acceptance_by_position"]]
    drafts = sum(count for count, _ in told)
    if not drafts or len({len(shares) for _, shares in told}) != 1:
        return None
    return [sum(count * shares[n] for count, shares in told) / drafts for n in range(len(told[0][1]))]
