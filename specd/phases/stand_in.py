"""Rehearsals: the same trial with a stand-in for the baseline, so that host, sudo, unit and guard are tried in minutes.

The stand-in is a unit of its own that runs the rehearsal engine with the real baseline's command line on a free port;
the real baseline is only read.
"""

import asyncio
import dataclasses
import sys

from specd.engines import by_name
from specd.errors import EngineError, SpecdError, UnitError
from specd.phases.context import Context, find_server
from specd.phases.release import stop_and_release
from specd.rehearsal.archive import build
from specd.services.effect import effect
from specd.services.service import Candidate
from specd.settings import ServiceSettings
from specd.uncut import to_the_end
from specd.watch import UnitWatch
from states.table import State

__all__ = ["set_up", "stand_in", "tear_down", "trial_of"]

_FIND_PORT = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1])"
_UP_S = 120.0
_STANDS_IN_FOR = frozenset({"vllm", "rehearsal"})


_TAG = "rehearsal-"


def _tag(trial: str) -> str:
    return f"{_TAG}{trial}"


def trial_of(mark: str) -> str:
    """Return the trial that a unit's mark belongs to, be the unit a candidate or a stand-in."""
    return mark.removeprefix(_TAG)


def stand_in(service: ServiceSettings, trial: str) -> ServiceSettings:
    """Return the service as a rehearsal sees it: the stand-in is the baseline, and nothing is ever kept."""
    return dataclasses.replace(
        service,
        unit=f"specd-{_tag(trial)}.service",
        engine="rehearsal",
        endpoint="",
        policy=dataclasses.replace(service.policy, after_better="restore"),
    )


async def set_up(ctx: Context, real: ServiceSettings) -> None:
    """Put the stand-in on the host and wait until it serves; safe to repeat."""
    if (await ctx.manager.status(ctx.service.unit)).is_running:
        return
    candidate = await _stand_in_unit(ctx, real)
    await to_the_end(_put_in_place(ctx, candidate))
    status = await ctx.manager.status(ctx.service.unit)
    while not status.invocation:
        await asyncio.sleep(0.05)
        status = await ctx.manager.status(ctx.service.unit)
    baseline = await ctx.look_at_baseline()
    watch = UnitWatch(ctx.watch_source(baseline.engine), ctx.service.unit, status.invocation, State.BASELINE)
    async with asyncio.timeout(_UP_S), ctx.route(baseline.command) as route, watch.running(route):
        while not watch.is_up:
            if watch.exit is not None:
                raise EngineError(f"the stand-in does not start: {watch.exit.sentence}")
            await watch.changed(timeout_s=1.0)


async def _put_in_place(ctx: Context, candidate: Candidate) -> None:
    await ctx.manager.install(candidate)
    if (archive := _archive_path(candidate.path)) in candidate.side_files:
        # The service's own user must be able to read it, and side files are closed.
        privileged = ctx.real_service.scope == "system"
        with effect("write", archive):
            await ctx.host.write(archive, candidate.side_files[archive], privileged=privileged)
    await ctx.manager.start(ctx.service.unit)


async def _stand_in_unit(ctx: Context, real: ServiceSettings) -> Candidate:
    facts = await ctx.manager.facts(real.unit)
    server = await find_server(real, ctx.host, facts)
    if server.engine.name not in _STANDS_IN_FOR:
        raise EngineError(
            f"{real.unit} runs {server.engine.name}; the rehearsal engine understands the command line of vLLM only",
            unit=real.unit,
            next_step="`specd plan` checks such a trial without a start",
        )
    python = await _python(ctx)
    port = int((await ctx.host.run([python, "-c", _FIND_PORT])).text)

    files = server.command.file_flags

    def rendered(*program: str) -> Candidate:
        argv = (python, *program, "serve", *server.line.words[server.command.server_at :])
        # The rehearsal engine reads no file of flags; what stands there it is told.
        from_file = {} if not files.path else {"config": None, **files.flags}
        return ctx.manager.render(
            facts,
            trial=_tag(ctx.row.id),
            installation=ctx.store.installation,
            argv=by_name("rehearsal").change(argv, {**from_file, "port": port}),
            env={},
            stop_timeout_s=ctx.service.stop_timeout_s,
        )

    unit = rendered("-m", "specd.rehearsal")
    if ctx.manager.kind == "embedded":
        return unit
    archive = _archive_path(unit.path)
    unit = rendered(archive)
    return dataclasses.replace(unit, side_files={**unit.side_files, archive: build()})


def _archive_path(unit_path: str) -> str:
    return unit_path.removesuffix(".service") + ".pyz"


async def _python(ctx: Context) -> str:
    if ctx.manager.kind == "embedded":
        return sys.executable
    found = await ctx.host.tool("python3")
    if found is None:
        raise UnitError(f"a rehearsal needs a python3 on {ctx.host.name}; none was found", host=ctx.host.name)
    return found


async def tear_down(ctx: Context) -> None:
    """Take the stand-in away; what can't be removed now is said."""
    unit = ctx.service.unit
    try:
        await stop_and_release(ctx, unit, 0, within_s=ctx.service.stop_timeout_s)
        await ctx.manager.uninstall(unit)
    except SpecdError as error:
        ctx.note("warning", f"the stand-in {unit} could not be removed: {error}")
