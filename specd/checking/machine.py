"""The host itself: its clock, its memory and the disks that a start writes to; all read by one command."""

import time
from collections.abc import Mapping

from specd.checking.trial import Plan
from specd.checks import Check
from specd.engines.model_files import resolve_path, weight_bytes
from specd.errors import CommandFailed, CommandTimedOut

__all__ = ["machine_checks"]

_GIB = 2**30
_FAR_S = 5.0
_LEAST_CACHE = 2 * _GIB
_LEAST_SHM = 1 * _GIB
# Prints lines of a name and numbers; $1 is the service's user, $2 the compile cache ("" for the user's own).
_SCRIPT = """\
echo "clock $(date +%s.%N)"
echo "synchronised $(timedatectl show --property=NTPSynchronized --value 2>/dev/null)"
sed -n 's/^\\(MemTotal\\|MemAvailable\\): *\\([0-9]*\\) kB$/\\1 \\2/p' /proc/meminfo
home=$(getent passwd -- "${1:-$(id -u)}" | cut -d: -f6)
cache=${2:-$home/.cache/vllm}
while [ -n "$cache" ] && [ ! -e "$cache" ]; do cache=${cache%/*}; done
stat -f -c 'shm %S %a' /dev/shm 2>/dev/null
stat -f -c 'cache %S %a' -- "${cache:-/}" 2>/dev/null
stat -f -c 'tmp %S %a' "${TMPDIR:-/tmp}" 2>/dev/null
:"""
_CACHES = {"vllm", "rehearsal"}


async def machine_checks(plan: Plan) -> list[Check]:
    """Check clock, memory, shared memory and the compile cache's disk."""
    root = plan.environment.get("VLLM_CACHE_ROOT") or _under(plan.environment.get("XDG_CACHE_HOME"))
    before = time.time()
    try:
        done = await plan.host.run(["sh", "-c", _SCRIPT, "sh", plan.facts.user, root], timeout_s=20.0)
    except (CommandFailed, CommandTimedOut) as error:
        return [Check.unchecked("host.state", f"clock, memory and disks could not be read: {error}")]
    after = time.time()
    read = {name: rest.split() for name, _, rest in (line.partition(" ") for line in done.text.splitlines())}
    weights = 0
    path = resolve_path(plan.command.model, plan.facts.working_directory)
    if path is not None and not plan.command.in_container:
        weights = await weight_bytes(plan.host, path)
    return [
        _clock(read, before, after),
        _memory(read, weights),
        *_shared(read, plan),
        *([_cache(read, root)] if plan.server.engine.name in _CACHES and not plan.command.in_container else []),
    ]


def _under(directory: str | None) -> str:
    return f"{directory}/vllm" if directory else ""


def _clock(read: Mapping[str, list[str]], before: float, after: float) -> Check:
    name = "host.clock"
    try:
        there = float(read["clock"][0])
    except (KeyError, IndexError, ValueError):
        return Check.unchecked(name, "the host does not tell its time")
    # What lies between the question and the answer is nobody's fault.
    off_s = max(before - there, there - after, 0.0)
    synchronised = read.get("synchronised") == ["yes"]
    if off_s > _FAR_S:
        words = f"the host's clock is {off_s:.0f} s away from this machine's: times of log lines will not fit"
        return Check.warning(name, words, "synchronise both (timedatectl set-ntp true)")
    return Check.passed(
        name, f"within {max(off_s, after - before):.1f} s of this machine's" + (", by NTP" if synchronised else "")
    )


def _memory(read: Mapping[str, list[str]], weights: int) -> Check:
    name = "host.memory"
    try:
        total, available = (int(read[key][0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    except (KeyError, IndexError, ValueError):
        return Check.unchecked(name, "the host does not tell its memory")
    words = f"{_size(available)} of {_size(total)} available"
    if weights:
        words += f", the weights are {_size(weights)}"
    if weights > total:
        return Check.warning(
            name, f"{words}: the page cache can't hold them, so each start reads the disk", "expect the longer load"
        )
    return Check.passed(name, words)


def _shared(read: Mapping[str, list[str]], plan: Plan) -> list[Check]:
    ranks = int(plan.flag("tensor-parallel-size", 1) * plan.flag("pipeline-parallel-size", 1))
    free = _free(read.get("shm"))
    if ranks < 2 or free is None or plan.command.in_container:
        return []
    if free < _LEAST_SHM:
        words = f"/dev/shm has {_size(free)} free, and {ranks} ranks talk through it"
        return [Check.warning("host.shm", words, "raise its size (mount -o remount,size=16G /dev/shm)")]
    return [Check.passed("host.shm", f"{_size(free)} free for {ranks} ranks")]


def _cache(read: Mapping[str, list[str]], root: str) -> Check:
    name = "host.compile-cache"
    free = _free(read.get("cache"))
    where = root or "the service user's ~/.cache/vllm"
    if free is None:
        return Check.unchecked(name, f"the disk of {where} could not be looked at")
    if free < _LEAST_CACHE:
        words = f"{where} has {_size(free)} free; compiled graphs and kernels go there"
        return Check.warning(name, words, "make room, or point VLLM_CACHE_ROOT elsewhere in the trial")
    return Check.passed(
        name, f"{where}, {_size(free)} free, shared with the baseline unless the trial sets VLLM_CACHE_ROOT"
    )


def _free(numbers: list[str] | None) -> int | None:
    return int(numbers[0]) * int(numbers[1]) if numbers and len(numbers) == 2 else None


def _size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"
