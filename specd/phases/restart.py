"""State restart: arms the guard, drains and stops the baseline, starts the candidate exactly once."""

import asyncio
import time

from specd.engines.openai_probe import Health
from specd.errors import UnitError
from specd.phases.context import Baseline, Context
from specd.phases.guard import arm_guard, fired_step
from specd.phases.release import stop_and_release
from specd.phases.step import Step
from specd.services.service import UnitStatus
from specd.uncut import to_the_end
from states.events import StageProgressed
from states.table import State, Trigger

__all__ = ["run"]


async def run(ctx: Context) -> Step:
    """Go from the running baseline to the started candidate; the InvocationID tells whether that happened already."""
    if await arm_guard(ctx):
        return fired_step()
    name = ctx.candidate_name
    before = ctx.fact("restart.before")
    status = await ctx.manager.status(name)
    if before is None:
        ctx.put("host.life", await ctx.manager.life())
        before = status.invocation
        ctx.put("restart.before", before)
    if status.invocation == before:
        if not status.exists:
            # After a boot of the host: the baseline serves, and there is nothing to put in its place.
            raise UnitError(f"{name} is gone: {ctx.host.name} was booted, or somebody removed it", host=ctx.host.name)
        baseline = await ctx.look_at_baseline()
        _stage(ctx, "stopping the baseline")
        await _drain(ctx, baseline)
        if ctx.fact("dependents") is None:
            ctx.put("dependents", await _running_dependents(ctx))
        within_s = _stop_limit_s(baseline) + 5
        await stop_and_release(ctx, ctx.service.unit, baseline.command.port, within_s=within_s)
        ctx.put("baseline.stopped", baseline.status.invocation)
        _stage(ctx, "starting the candidate")
        await to_the_end(ctx.manager.start(name))
        status = await _started(ctx, name, before)
    ctx.put("candidate.invocation", status.invocation)
    return Step(Trigger.CANDIDATE_STARTED, f"invocation {status.invocation}")


async def _running_dependents(ctx: Context) -> list[str]:
    """Return the running units that the baseline's stop takes along, to be brought back with it."""
    found = await ctx.manager.dependents(ctx.service.unit)
    return [each.unit for each in found if each.is_active and not each.unit.endswith(".target")]


def _stage(ctx: Context, words: str) -> None:
    ctx.progressed(
        StageProgressed(
            trial=ctx.row.id, service=ctx.service.name, state=State.RESTART.value, stage=words, source="specd"
        )
    )


def _stop_limit_s(baseline: Baseline) -> float:
    """The baseline's own stop timeout in seconds; systemd's default where it is unset or infinite."""
    text = baseline.facts.extra.get("TimeoutStopUSec", "")
    return int(text) / 1e6 if text.isdigit() and 0 < int(text) < 3_600_000_000 else 90.0


async def _drain(ctx: Context, baseline: Baseline) -> None:
    """Wait, at most `drain_s`, until the baseline has no request running or waiting."""
    if not baseline.status.is_running:
        return
    until = time.monotonic() + ctx.service.drain_s
    async with ctx.probe(baseline.facts, baseline.command) as probe:
        if await probe.health() is not Health.UP:
            return
        while (running := await probe.running()) and time.monotonic() < until:
            _stage(ctx, f"draining {running:.0f} requests")
            await asyncio.sleep(0.5)
    if running:
        ctx.note(
            "warning", f"{running:.0f} requests still ran after {ctx.service.drain_s:.0f} s of draining; stopped anyway"
        )


async def _started(ctx: Context, name: str, before: str) -> UnitStatus:
    for _ in range(600):
        status = await ctx.manager.status(name)
        if status.invocation and status.invocation != before:
            return status
        await asyncio.sleep(0.05)
    # No new invocation: the manager never started it. The next look at the trial begins here again.
    raise UnitError(f"{name} was asked to start but has no invocation (it is {status.active}/{status.sub})")
