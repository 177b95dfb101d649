"""What is taken off the host when a trial lets go of it; what can't be is said, and holds nothing up."""

import asyncio

from specd.errors import SpecdError
from specd.phases.claim import give_claim_back
from specd.phases.context import Context

__all__ = ["discard", "let_go"]

_LIMIT_S = 30.0


async def discard(ctx: Context) -> None:
    """Remove the unit of a candidate that never ran."""
    try:
        async with asyncio.timeout(_LIMIT_S):
            await ctx.manager.uninstall(ctx.candidate_name)
    except (SpecdError, TimeoutError) as error:
        ctx.note("warning", f"{ctx.candidate_name} could not be removed ({error}); the next trial does it")


async def let_go(ctx: Context) -> None:
    """Give the claim back."""
    try:
        async with asyncio.timeout(_LIMIT_S):
            await give_claim_back(ctx)
    except (SpecdError, TimeoutError) as error:
        ctx.note("warning", f"the claim on {ctx.service.unit} could not be given back: {error}")
