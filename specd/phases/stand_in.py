"""Rehearsals: the same trial with a stand-in for the baseline, so that host, sudo, unit and guard are tried in minutes.

The stand-in is a unit of its own that runs the rehearsal engine with the real baseline's command line on a free port;
the real baseline is only read.
"""

import asyncio
import dataclasses
import posixpath
import sys

from specd.engines import by_name
from specd.errors import EngineError, HostError, UnitError
from specd.phases.context import Context, find_server
from specd.phases.release import stop_and_release
from specd.rehearsal.archive import build
from specd.services.service import Candidate
from specd.settings import ServiceSettings
from specd.watch import UnitWatch
from states.table import State

__all__ = ["set_up", "stand_in", "tear_down"]

_FIND_PORT = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1])"
_UP_S = 120.0


def _tag(trial: str) -> str:
    return f"rehearsal-{trial}"


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
    await ctx.manager.install(candidate)
    for path, content in candidate.side_files.items():
        if path.endswith(".pyz"):
            await ctx.host.write(path, content, privileged=True)
    await ctx.manager.start(ctx.service.unit)
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


async def _stand_in_unit(ctx: Context, real: ServiceSettings) -> Candidate:
    facts = await ctx.manager.facts(real.unit)
    _, command = find_server(real, facts.argv)
    arguments = by_name("rehearsal").change(("rehearsal", "serve", *facts.argv[command.server_at :]), {"port": 0})[2:]
    python = await _python(ctx)
    port = (await ctx.host.run([python, "-c", _FIND_PORT])).text.strip()
    arguments = tuple(port if arguments[i - 1] == "--port" else word for i, word in enumerate(arguments))
    draft = ctx.manager.render(
        facts,
        trial=_tag(ctx.row.id),
        installation=ctx.store.installation,
        argv=(python, "placeholder"),
        env={},
        stop_timeout_s=ctx.service.stop_timeout_s,
    )
    program: tuple[str, ...] = ("-m", "specd.rehearsal")
    extra: dict[str, bytes] = {}
    if ctx.manager.kind != "embedded":
        path = posixpath.join(posixpath.dirname(draft.path), f"specd-{_tag(ctx.row.id)}.pyz")
        program, extra = (path,), {path: build()}
    rendered = ctx.manager.render(
        facts,
        trial=_tag(ctx.row.id),
        installation=ctx.store.installation,
        argv=(python, *program, "serve", *arguments),
        env={},
        stop_timeout_s=ctx.service.stop_timeout_s,
    )
    return dataclasses.replace(rendered, side_files={**rendered.side_files, **extra})


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
        own = [found.path for found in await ctx.manager.own_units() if found.name == unit]
        await ctx.manager.uninstall(unit)
        for path in own:
            await ctx.host.remove(path.removesuffix(".service") + ".pyz", privileged=True)
    except HostError as error:
        ctx.note("warning", f"the stand-in {unit} could not be removed: {error}")
