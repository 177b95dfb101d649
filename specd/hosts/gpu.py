"""Memory of the GPUs, as nvidia-smi tells it; unknown is None, never zero."""

from dataclasses import dataclass

from specd.errors import CommandFailed, CommandTimedOut, HostUnreachable
from specd.hosts.host import Host

__all__ = ["GpuMemory", "gpu_memory"]

# A driver in trouble can hang for minutes.
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """One GPU's memory; `processes` are (pid, used MiB or None where the driver does not say, name)."""

    index: int
    used_mib: int
    total_mib: int
    processes: tuple[tuple[int, int | None, str], ...] = ()


async def gpu_memory(host: Host) -> list[GpuMemory] | None:
    """Return the memory of each GPU, or None when it can't be known: no nvidia-smi, or one that fails or hangs.

    Raises HostUnreachable.
    """
    program = await host.tool("nvidia-smi")
    if program is None:
        return None
    try:
        gpus = await _query(host, program, "--query-gpu=index,uuid,memory.used,memory.total")
        users = await _query(host, program, "--query-compute-apps=gpu_uuid,pid,used_memory,process_name")
    except (CommandFailed, CommandTimedOut):
        return None
    except HostUnreachable:
        if host.link.connected:  # killed by a signal, which says nothing of the link
            return None
        raise
    processes: dict[str, list[tuple[int, int | None, str]]] = {}
    for row in users:
        if len(row) >= 4 and row[1].isdecimal():
            used = int(row[2]) if row[2].isdecimal() else None
            processes.setdefault(row[0], []).append((int(row[1]), used, row[3]))
    found: list[GpuMemory] = []
    for row in gpus:
        if len(row) != 4 or not all(row[place].isdecimal() for place in (0, 2, 3)):
            return None  # "[N/A]" or "[GPU is lost]"
        found.append(GpuMemory(int(row[0]), int(row[2]), int(row[3]), tuple(processes.get(row[1], ()))))
    return found or None


async def _query(host: Host, program: str, what: str) -> list[list[str]]:
    answer = await host.run([program, what, "--format=csv,noheader,nounits"], timeout_s=_TIMEOUT_S)
    # Only the last column, a process's name, may hold a comma.
    columns = what.count(",")
    return [line.split(", ", columns) for line in answer.text.splitlines()]
