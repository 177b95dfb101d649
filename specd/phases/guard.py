"""The trial's side of the guard: armed before the baseline stops, renewed while specd lives, disarmed last."""

import time

from specd import clock
from specd.engines.engine import Failure
from specd.phases.context import Context
from specd.phases.step import Step
from specd.services.service import GuardPlan
from states.events import GuardChanged
from states.table import CANDIDATE_OWNS, Outcome, Trigger

__all__ = ["arm_guard", "disarm_guard", "fired_step", "has_fired", "renew_guard"]

# The state that arms the guard and the task that keeps it begin at the same time.
_JUST_NOW_S = 1.0
_MARGIN_S = 60.0
_LEAST_S = 1.0


async def arm_guard(ctx: Context) -> None:
    """Arm the guard on the host, or renew its lease; one that has fired is told and armed afresh."""
    async with ctx.guarding:
        if await has_fired(ctx):
            await ctx.manager.disarm_guard(ctx.row.id)
        await _arm(ctx)


async def renew_guard(ctx: Context) -> bool:
    """Renew the lease of a guard that is armed; returns True when it has fired instead."""
    # Under the lock: a renewal that crosses a disarming would leave an armed guard behind for ever.
    async with ctx.guarding:
        if (ctx.fact("guard") or {}).get("state") not in {"armed", "fired"}:
            return False
        if time.monotonic() - ctx.guard_renewed_at < min(_JUST_NOW_S, ctx.service.guard.renew_s / 2):
            return False
        if await has_fired(ctx):
            return True
        # A daemon that can't store what comes next counts as one that is away.
        ctx.put("guard", ctx.fact("guard"))
        await _arm(ctx)
        return False


async def disarm_guard(ctx: Context) -> None:
    """Take the guard away; only after something proven serves."""
    async with ctx.guarding:
        await ctx.manager.disarm_guard(ctx.row.id)
        ctx.put("guard", {"state": "disarmed", "at": clock.now()})
    _tell(ctx, "disarmed")


async def _arm(ctx: Context) -> None:
    lease_s = _lease_s(ctx)
    plan = GuardPlan(trial=ctx.row.id, candidate=ctx.candidate_name, baseline=ctx.service.unit, lease_s=lease_s)
    await ctx.manager.arm_guard(plan)
    ctx.guard_renewed_at = time.monotonic()
    renewed = (ctx.fact("guard") or {}).get("state") == "armed"
    until = clock.after(lease_s)
    ctx.put("guard", {"state": "armed", "until": until, "lease_s": lease_s})
    _tell(ctx, "renewed" if renewed else "armed", until)


def _lease_s(ctx: Context) -> float:
    """Return the lease to ask for: while the candidate has the service, none that outlives its total deadline by more
    than what our own way back needs to begin."""
    lease_s = ctx.service.guard.lease_s
    if ctx.machine_state() not in CANDIDATE_OWNS:
        return lease_s
    return min(lease_s, max(_LEAST_S, ctx.candidate_left_s() + min(_MARGIN_S, lease_s)))


async def has_fired(ctx: Context) -> bool:
    """Look whether the guard did its work while nobody renewed it; remembers and tells it once."""
    guard = await ctx.manager.guard(ctx.row.id)
    if guard is None or guard.state != "fired":
        return False
    if (ctx.fact("guard") or {}).get("state") != "fired":
        ctx.put("guard", {"state": "fired", "at": clock.now()})
        _tell(ctx, "fired")
    return True


def fired_step() -> Step:
    """Return the step out of a state whose candidate the guard has ended."""
    sentence = "the guard on the host fired: specd was away for longer than its lease, or the trial outlived its total"
    sentence += " deadline; the baseline was started"
    return Step(Trigger.GUARD_FIRED, sentence, Outcome.FAILED, Failure(kind="guard", sentence=sentence))


def _tell(ctx: Context, state: str, until: str | None = None) -> None:
    ctx.bus.emit(GuardChanged(trial=ctx.row.id, service=ctx.service.name, state=state, until=until))
