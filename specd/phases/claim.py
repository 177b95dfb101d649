"""The trial's side of the claim: taken before anything is done on the host, renewed all the while, given back last."""

import getpass
import os
import socket
import time

from specd.checks import Check
from specd.phases.context import Context
from specd.phases.step import Step
from specd.services.service import Claim

__all__ = ["CLAIM_CHECK", "claim_check", "claim_service", "claim_words", "give_claim_back", "our_claim", "renew_claim"]

CLAIM_CHECK = "service.claim"

# What takes the claim and the task that keeps it begin at the same time.
_JUST_NOW_S = 1.0


def our_claim(unit: str, installation: str, trial: str, lease_s: float) -> Claim:
    """Return the claim of this daemon on a unit."""
    holder = f"{_user()}@{socket.gethostname()} (pid {os.getpid()})"
    return Claim(unit=unit, installation=installation, holder=holder, trial=trial, lease_s=lease_s)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


async def claim_service(ctx: Context) -> Step | None:
    """Take the claim, or renew ours; returns the step to take when another daemon has the service."""
    async with ctx.holding():
        ctx.claim_is_ours = True
        return await _claim(ctx)


async def renew_claim(ctx: Context) -> Step | None:
    """Renew the claim for as long as it was not given back; returns what `claim_service` does."""
    # Under the lock: a renewal that crosses the giving back would leave a claim behind for ever.
    async with ctx.guarding:
        just_now = time.monotonic() - ctx.claim_renewed_at < min(_JUST_NOW_S, ctx.service.guard.renew_s / 2)
        return None if just_now or not ctx.claim_is_ours else await _claim(ctx)


async def _claim(ctx: Context) -> Step | None:
    ours = our_claim(ctx.service.unit, ctx.store.installation, ctx.row.id, ctx.service.guard.lease_s)
    other = await ctx.manager.claim(ours)
    if other is None:
        ctx.claim_lost = ""
        ctx.claim_renewed_at = time.monotonic()
        return None
    ctx.claim_lost = claim_words(ctx.service.unit, other)
    return Step.failed("claimed", ctx.claim_lost, hint=_fix(ctx.service.name))


def _fix(service: str) -> str:
    return f"wait for it, or `specd takeover {service}` if nobody else works on it any more"


def claim_words(unit: str, claim: Claim) -> str:
    """Say that somebody else drives a unit, and who."""
    return f"{unit} is driven by another specd: {claim.words}"


async def give_claim_back(ctx: Context) -> None:
    """Give the claim back; somebody else's stays."""
    async with ctx.holding():
        ctx.claim_is_ours = False
        await ctx.manager.release_claim(ctx.service.unit, ctx.store.installation)


async def claim_check(ctx: Context) -> Check:
    """Check that nobody else drives the service."""
    claim = await ctx.manager.claimed(ctx.service.unit)
    if claim is None:
        return Check.passed(CLAIM_CHECK, "nobody drives it")
    if claim.installation == ctx.store.installation:
        return Check.passed(CLAIM_CHECK, f"ours, for trial {claim.trial or '-'}")
    return Check.failed(CLAIM_CHECK, claim_words(ctx.service.unit, claim), _fix(ctx.service.name))
