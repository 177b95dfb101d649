"""The GPUs: who holds their memory, and whether there is enough for the candidate once the baseline is gone."""

from specd.checking.trial import Plan
from specd.checks import Check
from specd.errors import SpecdError
from specd.hosts.gpu import GpuMemory, gpu_memory

__all__ = ["gpu_check"]

_UTILIZATION = "gpu-memory-utilization"
_DEFAULT_SHARE = 0.9
# A driver's own, and what a display or a monitor takes.
_NEGLIGIBLE_MIB = 600


async def gpu_check(plan: Plan) -> list[Check]:
    """Check each GPU that the service sees; nothing on a host without any."""
    name = "gpu.memory"
    gpus = await gpu_memory(plan.host)
    if gpus is None:
        return []
    try:
        members = {process.pid for process in await plan.manager.processes(plan.service.unit)}
    except SpecdError as error:
        return [Check.unchecked(name, f"the service's own processes could not be read: {error}")]
    used = _visible(gpus, plan.environment.get("CUDA_VISIBLE_DEVICES"))
    if plan.command.in_container:
        return [Check.unchecked(name, f"{len(used)} GPUs; what a container holds on them can't be told from others'")]
    share = plan.flag(_UTILIZATION, _DEFAULT_SHARE)
    told: list[str] = []
    short: list[str] = []
    for gpu in used:
        others = [(pid, mib, what) for pid, mib, what in gpu.processes if pid not in members]
        foreign = sum(mib or 0 for _, mib, _ in others)
        for pid, mib, what in others:
            told.append(f"GPU {gpu.index}: pid {pid} ({what}) holds {mib if mib is not None else 'some'} MiB")
        if share * gpu.total_mib > gpu.total_mib - foreign and foreign > _NEGLIGIBLE_MIB:
            short.append(f"GPU {gpu.index}: {gpu.total_mib - foreign} of {gpu.total_mib} MiB would be free")
    if short:
        words = "; ".join(short + told)
        return [
            Check.failed(name, f"{words}; --{_UTILIZATION} {share:g} needs more", "end those programs, or lower it")
        ]
    if told:
        return [Check.warning(name, "; ".join(told), "other programs on these GPUs disturb load and measurement")]
    total = sum(gpu.total_mib for gpu in used)
    return [Check.passed(name, f"{len(used)} GPUs, {total} MiB, held by {plan.service.unit} alone")]


def _visible(gpus: list[GpuMemory], named: str | None) -> list[GpuMemory]:
    """Return those that the service sees, by their numbers; all where they are named otherwise."""
    numbers = [word.strip() for word in named.split(",")] if named else []
    if not numbers or not all(word.isdigit() for word in numbers):
        return gpus
    return [gpu for gpu in gpus if str(gpu.index) in numbers]
