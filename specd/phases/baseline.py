"""State baseline: preflight, then the running baseline's figures, unless fresh ones of the same invocation exist."""

import asyncio

from specd import clock
from specd.checks import Check, failures
from specd.engines.engine import Failure
from specd.engines.openai_probe import Health, NoToken
from specd.errors import NotFound
from specd.phases.claim import CLAIM_CHECK, claim_check, claim_service
from specd.phases.context import Baseline, Context, server_address
from specd.phases.lease import lease_check
from specd.phases.measure import measure, plan_digest
from specd.phases.release import stop_and_release
from specd.phases.stand_in import set_up, trial_of
from specd.phases.step import Step
from specd.start_times import read_start
from specd.store import MeasuredLevel
from states.events import BaselineReused
from states.table import State, Trigger

__all__ = ["preflight", "run"]


async def run(ctx: Context) -> Step:
    """Look whether this service can be tried at all, and measure it."""
    if ctx.row.spec.rehearsal:
        await set_up(ctx, ctx.real_service)
    checks, baseline = await preflight(ctx)
    ctx.report(checks, State.BASELINE.value)
    if failed := failures(checks):
        kind = "claimed" if failed[0].name == CLAIM_CHECK else "refused"
        failure = Failure(kind=kind, sentence=f"{failed[0].name}: {failed[0].evidence}", hint=failed[0].fix)
        return Step.because(failure)
    if (other := await claim_service(ctx)) is not None:
        return other
    assert baseline is not None, "preflight without a failure has found the baseline"
    await _remove_leftovers(ctx)
    invocation = baseline.status.invocation
    ctx.put(
        "baseline",
        {
            "unit": ctx.service.unit,
            "invocation": invocation,
            "enabled": baseline.facts.enabled,
            "files": dict(baseline.facts.files),
            "argv": [ctx.mask(word) for word in baseline.facts.argv],
            "model": ctx.model(baseline.command),
            "engine": baseline.engine.name,
            "port": baseline.command.port,
        },
    )
    ctx.store.put_artefact(ctx.row.id, "baseline.unit", ctx.mask(baseline.facts.text))
    if ctx.fact("baseline.start") is None:
        started = await read_start(ctx.manager, ctx.service.unit, baseline.status.invocation, baseline.engine)
        ctx.put("baseline.start", dict(started.took_s))
    digest = plan_digest(ctx.plan(), ctx.model(baseline.command))
    have = _fresh(ctx, ctx.store.baseline_levels(ctx.service.name, invocation, digest))
    if have:
        ctx.bus.emit(
            BaselineReused(trial=ctx.row.id, service=ctx.service.name, invocation=invocation, measured_at=have[0].at)
        )
    await measure(
        ctx,
        side="baseline",
        invocation=invocation,
        facts=baseline.facts,
        command=baseline.command,
        engine=baseline.engine,
        have=have,
    )
    status = await ctx.manager.status(ctx.service.unit)
    if status.invocation != invocation or not status.is_running:
        return Step.failed(
            "baseline-changed",
            f"{ctx.service.unit} was restarted while measured (invocation {invocation}, now {status.invocation})",
            hint="submit the trial again when the service is steady",
        )
    return Step(Trigger.BASELINE_MEASURED, "reused" if have else "measured")


def _fresh(ctx: Context, levels: list[MeasuredLevel]) -> list[MeasuredLevel]:
    limit = ctx.service.policy.baseline_fresh_s
    return [level for level in levels if clock.seconds_between(level.at, clock.now()) <= limit]


async def preflight(ctx: Context) -> tuple[list[Check], Baseline | None]:
    """Check, without changing anything, that the service can be driven and answers; the baseline if it could be
    read."""
    claim, checks = await asyncio.gather(claim_check(ctx), ctx.manager.preflight(ctx.service.unit))
    checks = [claim, *checks, lease_check(ctx.service, is_local=ctx.host.is_local)]
    if failures(checks):
        return checks, None
    baseline = await ctx.look_at_baseline()
    checks.append(Check.passed("engine.recognised", f"{baseline.engine.name}, model {baseline.command.model}"))
    if not (baseline.status.active == "active" and baseline.status.invocation):
        kept = ctx.store.holding(ctx.service.name)
        fix = (
            f"`specd rollback {ctx.service.name}` brings it back"
            if kept and kept.id != ctx.row.id
            else f"start {ctx.service.unit}"
        )
        words = f"{ctx.service.unit} is {baseline.status.active} ({baseline.status.sub}); a trial needs it serving"
        checks.append(Check.failed("baseline.running", words, fix))
        return checks, None
    checks.append(Check.passed("baseline.running", f"invocation {baseline.status.invocation}"))
    checks += await _answers(ctx, baseline)
    return checks, baseline


async def _answers(ctx: Context, baseline: Baseline) -> list[Check]:
    address, port = server_address(ctx.service, baseline.command)
    async with ctx.probe(baseline.facts, baseline.command) as probe:
        health = await probe.health()
        if health is not Health.UP:
            words = f"{ctx.service.unit} at {address}:{port} {health.words}"
            return [Check.failed("baseline.health", words, "wait until it serves, or correct `endpoint`")]
        try:
            token = await probe.first_token(ctx.bench.first_token_s)
        except NoToken as error:
            return [Check.failed("baseline.token", f"the baseline gave no token: {error.what}", "see its journal")]
    return [
        Check.passed("baseline.health", f"{address}:{port}"),
        Check.passed("baseline.token", f"first token after {token.seconds * 1e3:.0f} ms"),
    ]


async def _remove_leftovers(ctx: Context) -> None:
    """Remove this installation's units of trials that have ended; others' are named and left alone."""
    open_ids = {row.id for row in ctx.store.open_trials()}
    holding = ctx.store.holding(ctx.service.name)
    if holding is not None:
        open_ids.add(holding.id)
    for unit in await ctx.manager.own_units():
        if unit.installation != ctx.store.installation:
            ctx.note("warning", f"{unit.name} on {ctx.host.name} belongs to another specd installation; left alone")
        elif (ended := trial_of(unit.trial)) not in open_ids and not _is_wanted(ctx, ended):
            if ended != unit.trial:
                # A stand-in serves nobody.
                await stop_and_release(ctx, unit.name, 0, within_s=ctx.service.stop_timeout_s)
            if (await ctx.manager.status(unit.name)).is_down:
                await ctx.manager.uninstall(unit.name)
                ctx.note("info", f"removed {unit.name}, left over from an earlier trial")


def _is_wanted(ctx: Context, trial: str) -> bool:
    """True for a unit whose trial asked that it stay for a look."""
    try:
        return ctx.store.trial(trial).spec.keep_unit
    except NotFound:
        return False
