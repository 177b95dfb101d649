"""State rollback: stops the candidate, starts the baseline, proves that it serves, takes the guard and the unit
away."""

import asyncio

from specd.engines.engine import Failure
from specd.engines.openai_probe import NoToken
from specd.errors import EngineError, HostError, SpecdError
from specd.phases.claim import claim_service, give_claim_back
from specd.phases.context import Baseline, Context
from specd.phases.drift import measure_drift
from specd.phases.guard import disarm_guard, rearm_guard
from specd.phases.loading import stalled
from specd.phases.release import stop_and_release
from specd.phases.serving import prove_serving
from specd.phases.step import Step
from specd.services.service import UnitStatus
from specd.watch import UnitWatch
from states.events import StageProgressed
from states.table import State, Trigger

__all__ = ["run"]

_STARTS = 3
# An engine that loads serves nobody, and vLLM swallows SIGTERM for as long as it does.
_LOADING_GRACE_S = 2.0


async def run(ctx: Context) -> Step:
    """Bring the baseline back from wherever the host is; where another daemon has taken over, that is its matter."""
    if (other := await claim_service(ctx)) is not None:
        return other
    await _keep_guarded(ctx)
    baseline = await ctx.look_at_baseline(as_loaded=True)
    await _stop_candidate(ctx, baseline)
    failure: Failure | None = None
    for _ in range(_STARTS):
        status = await _start_baseline(ctx, baseline)
        failure = await _wait_until_up(ctx, baseline, status)
        if failure is None:
            break
        ctx.note("warning", f"{ctx.service.unit} did not come up: {failure.sentence}")
        await _end_stuck_baseline(ctx, baseline)
    if failure is not None:
        return await _not_up(ctx, failure)
    try:
        _, checks = await prove_serving(
            ctx, ctx.service.unit, baseline.facts, baseline.command, within_s=ctx.bench.first_token_s
        )
    except NoToken as error:
        # Tried again like any trouble of a rollback: a first answer may be slow or refused for a while.
        raise EngineError(f"{ctx.service.unit} is up but gave no token: {error.what}") from error
    ctx.report(checks, State.ROLLBACK.value)
    await _start_dependents(ctx)
    await measure_drift(ctx, await ctx.look_at_baseline(as_loaded=True))
    await _unchanged(ctx)
    await _clear_away(ctx)
    return Step(Trigger.RESTORED, f"{ctx.service.unit} serves again")


async def _end_stuck_baseline(ctx: Context, baseline: Baseline) -> None:
    """A start that hangs serves nobody and would make the next one impossible: end it before that."""
    if (await ctx.manager.status(ctx.service.unit)).is_running:
        within_s = ctx.service.stop_timeout_s
        await stop_and_release(ctx, ctx.service.unit, baseline.command.port, within_s=within_s)


async def _not_up(ctx: Context, failure: Failure) -> Step:
    sentence = f"{ctx.service.unit} does not come up: {failure.sentence}"
    if (await ctx.manager.status(ctx.service.unit)).needs_reload:
        sentence += "; systemd has not read the latest change of its files: if it is meant, run systemctl daemon-reload"
    return Step(Trigger.FAILED, sentence, failure=failure)


async def _keep_guarded(ctx: Context) -> None:
    """Renew the guard for as long as the rollback takes; a host that refuses it must not keep the baseline away."""
    try:
        await rearm_guard(ctx)
    except HostError as error:
        if error.retryable:
            raise
        ctx.note("warning", f"the guard could not be renewed for the rollback: {error}")


def _stage(ctx: Context, words: str) -> None:
    ctx.progressed(
        StageProgressed(
            trial=ctx.row.id, service=ctx.service.name, state=State.ROLLBACK.value, stage=words, source="specd"
        )
    )


async def _stop_candidate(ctx: Context, baseline: Baseline) -> None:
    name = ctx.candidate_name
    status, processes = await asyncio.gather(ctx.manager.status(name), ctx.manager.processes(name))
    if status.is_down and not processes:
        return
    _stage(ctx, "stopping the candidate")
    port = baseline.command.port if not baseline.status.is_running else 0
    has_answered = ctx.fact("start.took") is not None
    patience_s = ctx.service.stop_timeout_s + 3
    await stop_and_release(ctx, name, port, within_s=patience_s if has_answered else min(patience_s, _LOADING_GRACE_S))


async def _start_baseline(ctx: Context, baseline: Baseline) -> UnitStatus:
    """Start the baseline unless it runs; returns its status with the invocation that counts."""
    unit = ctx.service.unit
    status = await ctx.manager.status(unit)
    while status.active == "deactivating":
        _stage(ctx, "the baseline is still stopping")
        await asyncio.sleep(0.2)
        status = await ctx.manager.status(unit)
    if status.is_running:
        return status
    before = status.invocation
    _stage(ctx, "starting the baseline")
    await ctx.manager.start(unit)
    for _ in range(600):
        status = await ctx.manager.status(unit)
        if status.invocation and status.invocation != before:
            return status
        await asyncio.sleep(0.05)
    return status


async def _wait_until_up(ctx: Context, baseline: Baseline, status: UnitStatus) -> Failure | None:
    """Follow the baseline's start until it answers; returns why it does not."""
    if not status.invocation:
        return Failure(kind="unit", sentence=f"the start left no invocation ({status.active}/{status.sub})")
    source = ctx.watch_source(baseline.engine, of_baseline=True)
    watch = UnitWatch(source, ctx.service.unit, status.invocation, State.ROLLBACK)
    async with ctx.route(baseline.command) as route, watch.running(route):
        while True:
            if watch.is_up:
                return None
            if watch.exit is not None:
                return watch.exit
            if (step := stalled(ctx, watch, State.ROLLBACK)) and step.failure:
                return step.failure
            await watch.changed(timeout_s=1.0)


async def _start_dependents(ctx: Context) -> None:
    """Start again what was stopped along with the baseline; one that does not start is somebody's to look at."""
    for unit in ctx.fact("dependents") or ():
        try:
            if (await ctx.manager.status(unit)).is_running:
                continue
            _stage(ctx, f"starting {unit}")
            await ctx.manager.start(unit)
        except SpecdError as error:
            if error.retryable:
                raise
            words = f"{unit}, which stopped along with {ctx.service.unit}, could not be started again: {error}"
            ctx.note("alarm", words)


async def _unchanged(ctx: Context) -> None:
    """Say loudly when the baseline's files or its enablement are not what they were; never put them right by
    ourselves."""
    known = ctx.fact("baseline") or {}
    facts = await ctx.manager.facts(ctx.service.unit, as_loaded=True)
    if known and dict(facts.files) != known.get("files"):
        words = f"files of {ctx.service.unit} were changed by someone else during the trial"
        if (await ctx.manager.status(ctx.service.unit)).needs_reload:
            words += "; it was started as systemd had read it before, the change takes effect at its next start"
        ctx.note("alarm", words)
    if known and facts.enabled != known.get("enabled"):
        ctx.note("alarm", f"{ctx.service.unit} was {known.get('enabled')}, it is {facts.enabled} now")


async def _clear_away(ctx: Context) -> None:
    """The baseline is proven: disarm the guard, then remove the candidate's unit unless it is asked for."""
    await disarm_guard(ctx)
    await give_claim_back(ctx)
    if ctx.row.spec.keep_unit or ctx.service.policy.keep_unit:
        ctx.note("info", f"{ctx.candidate_name} stays on {ctx.host.name} as asked; it is not enabled")
        return
    try:
        await ctx.manager.uninstall(ctx.candidate_name)
    except SpecdError as error:
        ctx.note("warning", f"{ctx.candidate_name} could not be removed: {error}; the next trial does it")
