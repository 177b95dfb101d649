"""Baseline, candidate, baseline again: a short look after the trial whether the machine itself has changed."""

import asyncio
import dataclasses
from typing import Any

from specd.bench.answers import equality
from specd.bench.judge import compare
from specd.bench.plan import LevelDone, Progress
from specd.errors import BenchError, EngineError
from specd.phases.context import Baseline, Context
from specd.phases.measure import plan_digest
from states.events import StageProgressed
from states.table import Outcome, State

__all__ = ["measure_drift"]

_LONGEST_S = 300.0
_SPARE_S = 20.0
_ROOM = 3.0
_SIGNIFICANT = 0.01


async def measure_drift(ctx: Context, baseline: Baseline) -> None:
    """Measure the restored baseline once more, at the level that decides, and tell how far it is from before.

    Only right after a verdict, only once, and bounded: it is no part of bringing the service back, so nothing that goes
    wrong here does more than leave it out.
    """
    comparison = ctx.fact("comparison")
    if comparison is None or ctx.fact("drift") is not None or not ctx.service.policy.drift_check:
        return
    if ctx.store.moves(ctx.row.id)[-1]["source"] != State.BENCHMARK.value:
        return
    if comparison["outcome"] == Outcome.INVALID.value:
        return
    known = ctx.fact("baseline") or {}
    digest = plan_digest(ctx.plan(), ctx.model(baseline.command))
    measured = ctx.store.baseline_levels(ctx.service.name, str(known.get("invocation")), digest)
    before = [m.done for m in measured if m.done.level.load == (comparison["level"], 0.0) and m.done.level.repeat == 1]
    if not before:
        return
    try:
        async with asyncio.timeout(min(_LONGEST_S, before[0].wall_s * _ROOM + _SPARE_S)):
            after = await _measured(ctx, baseline, before[0])
    except (TimeoutError, BenchError, EngineError) as error:
        ctx.note("info", f"whether the baseline drifted was not measured: {error or 'it took too long'}")
        return
    ctx.store.add_level(ctx.row, "after", baseline.status.invocation or "after", digest, after)
    ctx.put("drift", _told(ctx, before, after))
    _tell_answers(ctx, baseline, digest, after)


def _tell_answers(ctx: Context, baseline: Baseline, digest: str, after: LevelDone) -> None:
    """Now it is known how often the baseline's own greedy answers differ: put the candidate's beside that."""
    known = ctx.fact("baseline") or {}
    measured = ctx.store.baseline_levels(ctx.service.name, str(known.get("invocation")), digest)
    candidate = ctx.store.levels(ctx.row.id, "candidate", str(ctx.fact("candidate.invocation")), digest)
    found = equality([m.done for m in measured], [m.done for m in candidate], [after])
    if found is None:
        return
    ctx.put("answers", {**found.as_json(), "words": found.words()})
    if found.is_more(_SIGNIFICANT):
        ctx.note("warning", f"the candidate's answers are others: {found.words()}")


async def _measured(ctx: Context, baseline: Baseline, like: LevelDone) -> LevelDone:
    ctx.progressed(
        StageProgressed(
            trial=ctx.row.id,
            service=ctx.service.name,
            state=State.ROLLBACK.value,
            stage="measuring the baseline once more",
            source="specd",
        )
    )
    plan = dataclasses.replace(ctx.plan(), repeats=1, levels=(like.level.concurrency,), rates=())
    async with (
        ctx.route(baseline.command) as route,
        ctx.benchmark.measure(ctx.target(route, baseline.facts, baseline.command), plan, (like.level,)) as run,
    ):
        async for item in run:
            if not isinstance(item, Progress):
                return item
    raise BenchError("the benchmark client gave no level")


def _told(ctx: Context, before: list[LevelDone], after: LevelDone) -> dict[str, Any]:
    found = compare(before, [after], dataclasses.replace(ctx.service.policy, limits={}))
    drift = {
        "metric": found.metric,
        "level": found.level,
        "estimate": found.estimate,
        "low": found.low,
        "high": found.high,
        "outcome": found.outcome,
        "reason": found.reason,
    }
    if found.outcome in {Outcome.BETTER.value, Outcome.WORSE.value}:
        words = f"the baseline itself is another one than before the trial: {found.reason}"
        ctx.note("warning", f"{words}; part of the trial's result may come from that")
    return drift
