"""The trial's side of the guard: armed before the baseline stops, renewed while specd lives, disarmed last."""

import time
from collections.abc import Mapping
from typing import Any

from specd import clock
from specd.engines.engine import Failure
from specd.phases.context import Context
from specd.phases.step import Step
from specd.services.service import ArmedGuard, GuardPlan
from states.events import GuardChanged
from states.table import CANDIDATE_OWNS, Outcome, Trigger

__all__ = [
    "arm_guard",
    "disarm_guard",
    "fired_step",
    "guard_json",
    "guard_left_s",
    "has_fired",
    "rearm_guard",
    "renew_guard",
]

# The state that arms the guard and the task that keeps it begin at the same time.
_JUST_NOW_S = 1.0
_MARGIN_S = 60.0
_LEAST_S = 1.0


async def arm_guard(ctx: Context) -> bool:
    """Arm the guard on the host, or renew its lease; returns True when it has fired instead."""
    async with ctx.holding():
        if await has_fired(ctx):
            return True
        await _arm(ctx, max(_LEAST_S, _lease_s(ctx)))
        return False


async def rearm_guard(ctx: Context) -> None:
    """Arm the guard for the way back, afresh when it has fired; one that is acting is not disturbed in that."""
    async with ctx.holding():
        await _rearm(ctx)


async def renew_guard(ctx: Context) -> bool:
    """Renew the lease of a guard that is armed; returns True when it has fired and so ended the candidate."""
    # Under the lock: a renewal that crosses a disarming would leave an armed guard behind for ever.
    async with ctx.guarding:
        if (ctx.fact("guard") or {}).get("state") not in {"armed", "fired"}:
            return False
        if time.monotonic() - ctx.guard_renewed_at < min(_JUST_NOW_S, ctx.service.guard.renew_s / 2):
            return False
        if ctx.machine_state() not in CANDIDATE_OWNS:
            await _rearm(ctx)
            return False
        if await has_fired(ctx):
            return True
        # Past its total deadline a candidate's lease runs out, whoever is still there to renew it.
        if (lease_s := _lease_s(ctx)) > 0:
            # A daemon that can't store what comes next counts as one that is away.
            ctx.put("guard", ctx.fact("guard"))
            await _arm(ctx, lease_s)
        return False


async def disarm_guard(ctx: Context, *, fired_too: bool = True) -> bool:
    """Take the guard away; only after something proven serves. False when it has fired and stays, without
    `fired_too`."""
    async with ctx.holding():
        if not await ctx.manager.disarm_guard(ctx.row.id, fired_too=fired_too):
            _remember_fired(ctx)
            return False
        ctx.put("guard", {"state": "disarmed", "at": clock.now()})
    _tell(ctx, "disarmed")
    return True


async def _rearm(ctx: Context) -> None:
    guard = await _look(ctx)
    if guard is not None and guard.state == "fired":
        if guard.is_acting:
            return
        await ctx.manager.disarm_guard(ctx.row.id)
    await _arm(ctx, _lease_s(ctx))


async def _arm(ctx: Context, lease_s: float) -> None:
    plan = GuardPlan(trial=ctx.row.id, candidate=ctx.candidate_name, baseline=ctx.service.unit, lease_s=lease_s)
    since, until = clock.mark(), clock.after(lease_s)
    await ctx.manager.arm_guard(plan)
    ctx.guard_renewed_at = time.monotonic()
    renewed = (ctx.fact("guard") or {}).get("state") == "armed"
    ctx.put("guard", {"state": "armed", "until": until, "lease_s": lease_s, "since": since})
    _tell(ctx, "renewed" if renewed else "armed", until)


def _lease_s(ctx: Context) -> float:
    """Return the lease to ask for: while the candidate has the service, none that outlives its total deadline by more
    than what our own way back needs to begin."""
    lease_s = ctx.service.guard.lease_s
    if ctx.machine_state() not in CANDIDATE_OWNS:
        return lease_s
    return min(lease_s, ctx.candidate_left_s() + min(_MARGIN_S, lease_s))


async def has_fired(ctx: Context) -> bool:
    """Look whether the guard did its work while nobody renewed it; remembers and tells it once."""
    guard = await _look(ctx)
    return guard is not None and guard.state == "fired"


async def _look(ctx: Context) -> ArmedGuard | None:
    guard = await ctx.manager.guard(ctx.row.id)
    if guard is not None and guard.state == "fired":
        _remember_fired(ctx)
    return guard


def _remember_fired(ctx: Context) -> None:
    if (ctx.fact("guard") or {}).get("state") != "fired":
        ctx.put("guard", {"state": "fired", "at": clock.now()})
        _tell(ctx, "fired")


def guard_left_s(guard: Mapping[str, Any] | None) -> float | None:
    """Return how many seconds a guard waits unless it is renewed, by the fact that is stored of it; None when none is
    armed."""
    if not guard or guard.get("state") != "armed":
        return None
    if "since" not in guard:
        return max(0.0, clock.seconds_between(clock.now(), guard["until"]))
    return max(0.0, float(guard["lease_s"]) - clock.elapsed_s(guard["since"]))


def guard_json(guard: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a guard as the API shows it, with `remaining_s` while it is armed."""
    if not guard:
        return None
    shown = {key: value for key, value in guard.items() if key != "since"}
    left_s = guard_left_s(guard)
    return shown if left_s is None else {**shown, "remaining_s": left_s}


def fired_step() -> Step:
    """Return the step out of a state whose candidate the guard has ended."""
    sentence = "the guard on the host fired: specd was away for longer than its lease, or the trial outlived its total"
    sentence += " deadline; the baseline was started"
    return Step(Trigger.GUARD_FIRED, sentence, Outcome.FAILED, Failure(kind="guard", sentence=sentence))


def _tell(ctx: Context, state: str, until: str | None = None) -> None:
    ctx.bus.emit(GuardChanged(trial=ctx.row.id, service=ctx.service.name, state=state, until=until))
