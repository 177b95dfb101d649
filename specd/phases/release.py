"""Stopping a unit until nothing of it is left: no process, no port, no GPU memory."""

import asyncio
import time

from specd.errors import EngineError, HostError
from specd.hosts.gpu import gpu_memory
from specd.phases.context import Context
from specd.services.service import UnitStatus
from specd.uncut import to_the_end

__all__ = ["stop_and_release"]

_FIRST_LOOK_S = 0.02
_LOOK_S = 0.1
_GPU_STEADY_MIB = 64


async def stop_and_release(ctx: Context, unit: str, port: int, *, within_s: float) -> UnitStatus:
    """Stop a unit and wait until its cgroup is empty, its port closed and its GPU memory back.

    SIGKILL goes to the whole cgroup when the unit's own stop has taken longer than `within_s`. Bounded by the state's
    deadline only. Raises EngineError when another program holds the port; port 0 is not looked at.
    """
    status, processes = await asyncio.gather(ctx.manager.status(unit), ctx.manager.processes(unit))
    held = {process.pid for process in processes}
    if not status.is_down:
        await to_the_end(ctx.manager.stop(unit))
    killed_at: float | None = None
    started = time.monotonic()
    pause_s = _FIRST_LOOK_S
    while True:
        status, processes = await asyncio.gather(ctx.manager.status(unit), ctx.manager.processes(unit))
        if status.is_down and not processes:
            break
        if time.monotonic() - (killed_at or started) > within_s:
            ctx.note("warning", f"{unit} did not end within {within_s:.0f} s of its stop: SIGKILL to its cgroup")
            await ctx.manager.kill(unit)
            killed_at = time.monotonic()
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LOOK_S)
    if port:
        await _port_closed(ctx, port)
    await _gpu_released(ctx, held)
    return status


async def _port_closed(ctx: Context, port: int) -> None:
    for look in range(600):
        owners = await ctx.manager.port_owners(port)
        if not owners:
            return
        if look > 100 and owners[0].pid:
            owner = owners[0]
            raise EngineError(f"port {port} is held by pid {owner.pid} ({owner.command}) of {owner.unit or 'no unit'}")
        await asyncio.sleep(_LOOK_S)
    raise EngineError(f"port {port} stays in use; the host does not tell by whom")


async def _gpu_released(ctx: Context, held: set[int]) -> None:
    """Wait until no GPU memory belongs to the stopped processes and use is steady over two looks; unknown is noted."""
    last: list[int] | None = None
    for _ in range(240):
        try:
            gpus = await gpu_memory(ctx.host)
        except HostError as error:
            ctx.note("warning", f"GPU memory could not be read ({error}); not waited for")
            return
        if gpus is None:
            return
        used = [gpu.used_mib for gpu in gpus]
        ours = any(pid in held for gpu in gpus for pid, *_ in gpu.processes)
        steady = last is not None and all(abs(a - b) <= _GPU_STEADY_MIB for a, b in zip(used, last, strict=False))
        if not ours and steady:
            return
        last = used
        await asyncio.sleep(0.5)
    ctx.note("warning", f"GPU memory is not released two minutes after the stop: {last} MiB in use")
