"""State verify: proves that what would run is what was meant, and asks the engine whether it would take it."""

import asyncio
from itertools import zip_longest

from specd.checking import Plan, surroundings
from specd.checks import Check, failures
from specd.engines.container import container_checks
from specd.engines.engine import Failure
from specd.engines.server import read_server
from specd.errors import EngineError, SpecdError
from specd.phases.context import Baseline, Context
from specd.phases.ready import remember_candidate
from specd.phases.step import Step
from specd.services.service import Candidate
from states.table import State, Trigger

__all__ = ["candidate_checks", "run"]


async def run(ctx: Context) -> Step:
    """Check the written candidate; any failed check ends the trial with the baseline untouched."""
    baseline = await ctx.look_at_baseline()
    candidate = ctx.render_candidate(baseline)
    unit_checks, others = await asyncio.gather(
        ctx.manager.examine(candidate), candidate_checks(ctx, baseline, candidate)
    )
    checks = [*unit_checks, *others, baseline_unchanged(ctx, baseline)]
    ctx.report(checks, State.VERIFY.value)
    failed = failures(checks)
    if not failed:
        await remember_candidate(ctx)
        return Step(Trigger.VERIFIED, f"{len(checks)} checks, none failed")
    worst = failed[0]
    sentence = f"{worst.name}: {worst.evidence}"
    return Step.because(
        Failure(
            kind="refused", sentence=ctx.mask(sentence), hint=worst.fix, lines=tuple(c.evidence for c in failed[1:])
        )
    )


async def candidate_checks(ctx: Context, baseline: Baseline, candidate: Candidate) -> list[Check]:
    """Check all that needs no written unit: what reaches the server, the engine's own opinion, its files, the port."""
    facts = baseline.facts
    name = "candidate.reached"
    try:
        server = await read_server(
            ctx.host, candidate.argv, candidate.environment, facts.working_directory, engine=ctx.service.engine
        )
    except EngineError as error:
        return [Check.failed(name, error.what, error.next_step)]
    if server is None:
        return [Check.failed(name, "the changed command line is no longer one that starts a known server")]
    whole = baseline.engine.change(baseline.server.line.words, ctx.row.spec.flags, baseline.command.file_flags)
    wanted = whole[baseline.command.server_at :]
    reached = server.line.words[server.command.server_at :]
    if reached != wanted:
        place = next((n for n, (a, b) in enumerate(zip_longest(reached, wanted), start=1) if a != b), 0)
        return [Check.failed(name, f"word {place} of the server's own is not the one that was meant")]
    plan = Plan(
        host=ctx.host,
        manager=ctx.manager,
        service=ctx.service,
        facts=facts,
        server=server,
        environment={**candidate.environment, **server.line.environment},
        expected_s=ctx.history_s(),
    )
    engine_checks, port, around = await asyncio.gather(
        server.examine(
            ctx.host,
            user=facts.user,
            timeout_s=max(30.0, ctx.deadline.remaining_s * 0.7),
            before=baseline.server,
        ),
        _port_check(ctx, server.command.port),
        surroundings(plan),
    )
    through = f" through {server.command.wrapper}" if server.command.wrapper else ""
    words = Check.passed(name, f"{len(wanted)} words reach the server{through}")
    container = server.line.container
    return [words, *(container_checks(container, facts.text) if container else ()), *engine_checks, port, *around]


def baseline_unchanged(ctx: Context, baseline: Baseline) -> Check:
    """Check that the baseline is the invocation that was measured, from the same files."""
    known = ctx.fact("baseline") or {}
    name = "baseline.unchanged"
    if baseline.status.invocation != known.get("invocation"):
        return Check.failed(
            name,
            f"{ctx.service.unit} was restarted since it was measured: invocation {baseline.status.invocation or 'none'}"
            f", measured {known.get('invocation')}",
            "submit the trial again",
        )
    if not baseline.status.is_running:
        return Check.failed(
            name,
            f"{ctx.service.unit} has ended since it was measured: {baseline.status.active}, {baseline.status.sub}",
            "see why it ended, then submit the trial again",
        )
    if dict(baseline.facts.files) != known.get("files"):
        return Check.failed(name, "a file of the baseline's unit has changed since it was measured", "submit it again")
    return Check.passed(name, f"invocation {baseline.status.invocation}")


async def _port_check(ctx: Context, port: int) -> Check:
    name = "port.owner"
    try:
        owners = await ctx.manager.port_owners(port)
        members = {process.pid for process in await ctx.manager.processes(ctx.service.unit)}
    except SpecdError as error:
        return Check.unchecked(name, f"who listens on port {port} could not be read: {error}")
    strangers = [o for o in owners if o.unit != ctx.service.unit and o.pid not in members]
    if not strangers:
        return Check.passed(name, f"port {port} is {'the baseline' + chr(39) + 's' if owners else 'free'}")
    if all(not owner.pid and not owner.unit for owner in strangers):
        return Check.unchecked(name, f"port {port} is in use; the host does not tell by whom")
    owner = strangers[0]
    return Check.failed(
        name,
        f"port {port} belongs to pid {owner.pid} ({owner.command}) of {owner.unit or 'no unit'}",
        "stop that program, or choose another port",
    )
