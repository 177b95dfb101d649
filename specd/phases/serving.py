"""The proof that a unit serves: the right model, a generated token, from a process in this unit's cgroup."""

import asyncio
import contextlib

from specd.checks import Check
from specd.engines.engine import Failure, ServerCommand
from specd.engines.openai_probe import FirstToken
from specd.errors import EngineError
from specd.phases.context import Context
from specd.services.service import UnitFacts

__all__ = ["exit_soon", "prove_serving"]

# How long after a refused connection the manager may take to tell that the process has ended.
_SOON_S = 2.0


async def exit_soon(ctx: Context) -> Failure | None:
    """Return why the candidate has ended, when it is about to be seen that it has: that says more than a request that
    failed."""
    if ctx.watch is None:
        return None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SOON_S):
            await ctx.watch.exited.wait()
    return ctx.watch.exit


async def prove_serving(
    ctx: Context, unit: str, facts: UnitFacts, command: ServerCommand, *, within_s: float
) -> tuple[FirstToken, list[Check]]:
    """Get a token and say whose it was; raises NoToken, or EngineError when another program holds the port."""
    async with ctx.probe(facts, command) as probe:
        token = await probe.first_token(within_s)
    checks = [Check.passed("ready.token", f"first token after {token.seconds * 1e3:.0f} ms ({token.channel})")]
    owners, processes = await asyncio.gather(ctx.manager.port_owners(command.port), ctx.manager.processes(unit))
    members = {process.pid for process in processes}
    if any(owner.pid in members or owner.unit == unit for owner in owners):
        checks.append(Check.passed("ready.owner", f"port {command.port} belongs to {unit}"))
    elif command.in_container:
        checks.append(
            Check.unchecked("ready.owner", f"the server runs in a container, so its processes are not those of {unit}")
        )
    elif owners and any(owner.pid or owner.unit for owner in owners):
        owner = owners[0]
        raise EngineError(
            f"the token came from pid {owner.pid} ({owner.command}) of {owner.unit or 'no unit'}, not from {unit}"
        )
    else:
        checks.append(
            Check.unchecked(
                "ready.owner", f"the host does not tell who listens on port {command.port}", "grant it by sudo"
            )
        )
    return token, checks
