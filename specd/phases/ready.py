"""State ready: a real token from the candidate's own process, and the settings read back from the engine itself."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from specd.checks import Check, failures
from specd.engines.engine import Engine, Failure, ServerCommand
from specd.engines.openai_probe import NoToken
from specd.engines.server import Server
from specd.errors import EngineError, UnitError
from specd.phases.context import Context, find_server
from specd.phases.serving import exit_soon, prove_serving
from specd.phases.step import Step
from specd.services.service import UnitFacts
from states.table import Outcome, State, Trigger

__all__ = ["candidate_view", "remember_candidate", "run"]


async def run(ctx: Context) -> Step:
    """Prove that the candidate serves as asked."""
    facts, server = await candidate_view(ctx)
    engine, command = server.engine, server.command
    try:
        token, checks = await prove_serving(
            ctx, ctx.candidate_name, facts, command, within_s=min(ctx.deadline.remaining_s, ctx.bench.first_token_s)
        )
    except NoToken as error:
        if (ended := await exit_soon(ctx)) is not None:
            return Step.because(ended)
        return Step.failed(error.kind, f"the candidate gave no token: {error.what}", hint="see the candidate's log")
    except EngineError as error:
        return Step.failed("port", error.what)
    checks.append(await _speculation(ctx, facts, engine, command))
    ctx.report(checks, State.READY.value)
    if failed := failures(checks):
        failure = Failure(kind="settings", sentence=f"{failed[0].name}: {failed[0].evidence}", hint=failed[0].fix)
        return Step.because(failure, Outcome.INVALID)
    return Step(Trigger.TOKEN_SEEN, f"first token after {token.seconds * 1e3:.0f} ms")


async def remember_candidate(ctx: Context) -> None:
    """Keep what is proven of the candidate's unit: its file may go while it runs. Secrets stay in memory only."""
    facts = ctx.candidate_facts = await ctx.manager.facts(ctx.candidate_name)
    masked = {
        **dataclasses.asdict(facts),
        "argv": [ctx.mask(word) for word in facts.argv],
        "environment": {name: ctx.mask(value) for name, value in facts.environment.items()},
        "text": "",
    }
    ctx.put("candidate.facts", masked)


def _stored(ctx: Context) -> UnitFacts | None:
    kept = ctx.fact("candidate.facts")
    if kept is None:
        return None
    return UnitFacts(**{**kept, "argv": tuple(kept["argv"]), "drop_in_paths": tuple(kept["drop_in_paths"])})


async def candidate_view(ctx: Context) -> tuple[UnitFacts, Server]:
    """Read the candidate's unit as the manager has it; what was proven of it where its file has gone since."""
    try:
        facts = ctx.candidate_facts = await ctx.manager.facts(ctx.candidate_name, as_loaded=True)
    except UnitError:
        known = ctx.candidate_facts or _stored(ctx)
        if known is None:
            raise
        facts = known
    server = await find_server(ctx.service, ctx.host, facts)
    ctx.secrets.update(server.secrets)
    return facts, server


async def _speculation(ctx: Context, facts: UnitFacts, engine: Engine, command: ServerCommand) -> Check:
    """Compare the speculation asked for with what the engine says it does."""
    name = "ready.speculation"
    asked = engine.speculation_asked(command)
    async with ctx.probe(facts, command) as probe:
        page = await probe.metrics()
    reader = ctx.watch.reader if ctx.watch else engine.reader()
    seen = engine.speculation_seen(reader, engine.counters(page) if page else None)
    if seen is None:
        return Check.unchecked(name, "neither the engine's log nor its metrics tell whether speculation is on")
    if not asked and not seen:
        return Check.passed(name, "off, as asked")
    if bool(asked) != bool(seen):
        return Check.failed(
            name, f"asked {_words(asked)}, the engine reports {_words(seen)}", "check the flag's spelling"
        )
    for key in ("method", "num_speculative_tokens"):
        if key in asked and key in seen and not _equal(asked[key], seen[key]):
            return Check.failed(name, f"{key}: asked {asked[key]!r}, the engine reports {seen[key]!r}")
    return Check.passed(name, f"the engine reports {_words(seen)}")


def _equal(asked: object, seen: object) -> bool:
    """`deepseek_mtp` and its kin are reported as `mtp`."""
    return str(asked) == str(seen) or (str(asked).endswith("_mtp") and str(seen) == "mtp")


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items()) or "no speculation"
