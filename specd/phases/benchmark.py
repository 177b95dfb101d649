"""State benchmark: measures the candidate, compares it with the baseline, decides by the policy."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from specd.bench.answers import equality
from specd.bench.judge import Comparison, compare
from specd.bench.plan import LevelDone
from specd.bench.sequential import SURE, Look, complete_repeats, look_at
from specd.engines.engine import Engine, Failure, ServerCommand
from specd.engines.openai_probe import Health, NoToken
from specd.errors import BenchError
from specd.phases.context import Context
from specd.phases.measure import foreign_requests, measure, plan_digest, summaries
from specd.phases.ready import candidate_view
from specd.phases.serving import exit_soon, prove_serving
from specd.phases.step import Step
from specd.services.service import UnitFacts
from states.events import VerdictReached
from states.table import Outcome, State, Trigger

__all__ = ["run"]

_DEATH_S = 15.0
_MISMATCH_DRAFTS = 500
_MISMATCH_RATE = 0.05
_FOREIGN_SHARE = 0.2


async def run(ctx: Context) -> Step:
    """Measure what is still missing of the candidate's plan, and judge."""
    facts, server = await candidate_view(ctx)
    engine, command = server.engine, server.command
    invocation = str(ctx.fact("candidate.invocation"))
    plan = ctx.plan()
    digest = plan_digest(plan, ctx.model(command))
    have = ctx.store.levels(ctx.row.id, "candidate", invocation, digest)
    known = ctx.fact("baseline") or {}
    baseline = [m.done for m in ctx.store.baseline_levels(ctx.service.name, str(known.get("invocation")), digest)]
    try:
        await measure(
            ctx,
            side="candidate",
            invocation=invocation,
            facts=facts,
            command=command,
            engine=engine,
            have=have,
            is_sure=lambda levels: _is_sure(ctx, baseline, levels),
        )
    except BenchError:
        if (dead := await _death(ctx, facts, command)) is None:
            raise
        return dead
    candidate = [m.done for m in ctx.store.levels(ctx.row.id, "candidate", invocation, digest)]
    if any(sample.error for done in candidate for sample in done.samples) and (
        dead := await _death(ctx, facts, command)
    ):
        return dead
    step = _judge(ctx, engine, command, baseline, candidate, await _company(ctx))
    if step.trigger is Trigger.KEEP and (trouble := await _unproven(ctx, facts, command)) is not None:
        return trouble
    return step


async def _unproven(ctx: Context, facts: UnitFacts, command: ServerCommand) -> Step | None:
    """Return why a candidate that is to be kept can't be, None when it serves: much may have happened since it was
    measured, and its guard is taken away next."""
    try:
        _, checks = await prove_serving(ctx, ctx.candidate_name, facts, command, within_s=ctx.bench.first_token_s)
    except NoToken as error:
        if (ended := await exit_soon(ctx)) is not None:
            return Step.because(ended)
        return Step.failed(error.kind, f"the candidate gave no token when it was to be kept: {error.what}")
    ctx.report(checks, State.BENCHMARK.value)
    return None


async def _company(ctx: Context) -> Failure | None:
    """Return what makes the numbers void when the baseline was started beside the candidate; None if it was not."""
    status = await ctx.manager.status(ctx.service.unit)
    known = {"", (ctx.fact("baseline") or {}).get("invocation"), ctx.fact("baseline.stopped")}
    if not status.is_running and status.invocation in known:
        return None
    sentence = f"{ctx.service.unit} was started by someone else while the candidate served: both shared the machine"
    return Failure(kind="disturbed", sentence=sentence, hint="submit the trial again and leave the service to it")


async def _death(ctx: Context, facts: UnitFacts, command: ServerCommand) -> Step | None:
    """Requests failed: wait until the server either shows that it lives, or its unit that it died."""
    until = time.monotonic() + _DEATH_S
    while time.monotonic() < until:
        if ctx.watch is not None and ctx.watch.exit is not None:
            return Step.because(ctx.watch.exit)
        async with ctx.probe(facts, command) as probe:
            if await probe.health() is Health.UP:
                try:
                    await probe.first_token(min(_DEATH_S, ctx.bench.first_token_s))
                except NoToken as error:
                    return Step.failed(error.kind, f"the candidate stopped answering in the benchmark: {error.what}")
                return None
        await asyncio.sleep(0.2)
    return Step.failed("engine-died", f"the candidate no longer answers, {_DEATH_S:.0f} s after requests failed")


def _look(ctx: Context, levels: Sequence[LevelDone]) -> Look | None:
    """Return the look that the levels of a candidate are due for; None where there is only one in all."""
    plan = ctx.plan()
    if not ctx.service.policy.sequential:
        return None
    loads = len(plan.levels) + len(plan.rates)
    return look_at(complete_repeats(levels, loads), plan.repeats, ctx.service.policy.confidence)


def _is_sure(ctx: Context, baseline: Sequence[LevelDone], levels: Sequence[LevelDone]) -> bool:
    """True when a candidate needs no more repeats."""
    look = _look(ctx, levels)
    if look is None or look.is_last:
        return False
    return compare(baseline, levels, ctx.service.policy, look).outcome in SURE


def _judge(
    ctx: Context,
    engine: Engine,
    command: ServerCommand,
    baseline: list[LevelDone],
    candidate: list[LevelDone],
    company: Failure | None,
) -> Step:
    sides = {"baseline": summaries(engine, baseline), "candidate": summaries(engine, candidate)}
    ctx.put("levels", sides)
    comparison = compare(baseline, candidate, ctx.service.policy, _look(ctx, candidate))
    flaw = company or _flaw(engine, command, candidate, sides["candidate"]) or _strangers(engine, baseline, candidate)
    outcome = Outcome.INVALID if flaw else Outcome(comparison.outcome)
    reason = flaw.sentence if flaw else comparison.reason
    body = {**comparison.as_json(), "outcome": outcome.value, "reason": reason}
    ctx.put("comparison", body)
    ctx.bus.emit(
        VerdictReached(
            trial=ctx.row.id, service=ctx.service.name, outcome=outcome.value, reason=reason, comparison=body
        )
    )
    if (found := equality(baseline, candidate)) is not None:
        ctx.put("answers", {**found.as_json(), "words": found.words()})
    if outcome is Outcome.BETTER and _wants_keep(ctx, comparison):
        return Step(Trigger.KEEP, reason, outcome)
    return Step(Trigger.RESTORE, reason, outcome, flaw)


def _wants_keep(ctx: Context, comparison: Comparison) -> bool:
    return (ctx.row.spec.after_better or ctx.service.policy.after_better) == "keep" and bool(comparison.reason)


def _strangers(engine: Engine, baseline: list[LevelDone], candidate: list[LevelDone]) -> Failure | None:
    """Return what makes the numbers void when others used the server so much that they decide them, too."""
    for side, levels in (("baseline", baseline), ("candidate", candidate)):
        ours = sum(len(done.samples) for done in levels)
        theirs = sum(foreign_requests(engine, done) for done in levels)
        if ours and theirs > _FOREIGN_SHARE * ours:
            sentence = f"{theirs:.0f} requests of others ended on the {side} beside our {ours}: they shaped the numbers"
            return Failure(kind="disturbed", sentence=sentence, hint="measure in a quieter hour (`windows`)")
    return None


def _flaw(
    engine: Engine, command: ServerCommand, candidate: list[LevelDone], figures: list[dict[str, Any]]
) -> Failure | None:
    """Return why the candidate's numbers do not measure what was asked for; None when nothing speaks against them."""
    asked = engine.speculation_asked(command)
    if not asked:
        return None
    pages = [engine.counters(done.metrics_after) for done in candidate if done.metrics_after]
    if pages and all(not page.draft_tokens for page in pages):
        sentence = "speculation was asked for, but the engine drafted nothing during the benchmark"
        return Failure(kind="speculation-inactive", sentence=sentence, hint="sampling parameters can switch it off")
    drafts = sum(float(level.get("drafts") or 0) for level in figures)
    rates = [level["acceptance_rate"] for level in figures if level.get("acceptance_rate") is not None]
    # An n-gram drafter of Model Runner V2 fills every draft to k tokens, so a low rate says nothing there.
    is_model = asked.get("method") not in {"ngram", "ngram_gpu", "suffix"}
    if is_model and drafts >= _MISMATCH_DRAFTS and rates and max(rates) < _MISMATCH_RATE:
        sentence = (
            f"draft does not match target: {max(rates):.1%} of the drafted tokens accepted over {drafts:.0f} drafts"
        )
        return Failure(kind="draft-mismatch", sentence=sentence, hint="check that the draft was trained for this model")
    return None
