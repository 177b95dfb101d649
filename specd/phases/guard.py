"""The trial's side of the guard: armed before the baseline stops, renewed while specd lives, disarmed last."""

import time

from specd import clock
from specd.phases.context import Context
from specd.services.service import GuardPlan
from states.events import GuardChanged

__all__ = ["arm_guard", "disarm_guard", "has_fired", "renew_guard"]

# The state that arms the guard and the task that keeps it begin at the same time.
_JUST_NOW_S = 1.0


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
        await _arm(ctx)
        return False


async def disarm_guard(ctx: Context) -> None:
    """Take the guard away; only after something proven serves."""
    async with ctx.guarding:
        await ctx.manager.disarm_guard(ctx.row.id)
        ctx.put("guard", {"state": "disarmed", "at": clock.now()})
    _tell(ctx, "disarmed")


async def _arm(ctx: Context) -> None:
    lease_s = ctx.service.guard.lease_s
    plan = GuardPlan(trial=ctx.row.id, candidate=ctx.candidate_name, baseline=ctx.service.unit, lease_s=lease_s)
    await ctx.manager.arm_guard(plan)
    ctx.guard_renewed_at = time.monotonic()
    renewed = (ctx.fact("guard") or {}).get("state") == "armed"
    until = clock.after(lease_s)
    ctx.put("guard", {"state": "armed", "until": until, "lease_s": lease_s})
    _tell(ctx, "renewed" if renewed else "armed", until)


async def has_fired(ctx: Context) -> bool:
    """Look whether the guard did its work while nobody renewed it; remembers and tells it once."""
    guard = await ctx.manager.guard(ctx.row.id)
    if guard is None or guard.state != "fired":
        return False
    if (ctx.fact("guard") or {}).get("state") != "fired":
        ctx.put("guard", {"state": "fired", "at": clock.now()})
        _tell(ctx, "fired")
    return True


def _tell(ctx: Context, state: str, until: str | None = None) -> None:
    ctx.bus.emit(GuardChanged(trial=ctx.row.id, service=ctx.service.name, state=state, until=until))
