"""The processes of a unit and the owners of ports: one constant script per look, read without privileges."""

import re
from collections.abc import Iterable

from specd.errors import PrivilegeRefused
from specd.services.service import PortOwner, Process
from specd.services.systemd.scope import Scope

__all__ = ["PortReader", "parse_processes", "parse_ss", "read_processes", "unit_of_cgroup"]

# Prints "page size, ticks a second, main PID" and a NUL, then the files of each process as NUL-ended records that all
# start with the file's name. grep -z does this for all of them in one process; files one may not read are left out.
_PROCESSES_SCRIPT = """\
unit=$1; shift
shown=$(systemctl "$@" show --property=MainPID,ControlGroup -- "$unit") || exit
main=${shown#*MainPID=}; main=${main%%
*}
group=${shown#*ControlGroup=}; group=${group%%
*}
dir=
for root in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/systemd; do
  [ -e "$root/cgroup.procs" ] || continue
  if [ -n "$group" ]; then
    [ -d "$root$group" ] && dir=$root$group
  else
    dir=$(find "$root" -maxdepth 6 -type d -name "$unit" 2>/dev/null | head -n 1)
  fi
  [ -n "$dir" ] && break
done
printf '%s %s %s\\0' "$(getconf PAGESIZE)" "$(getconf CLK_TCK)" "$main"
[ -n "$dir" ] || exit 0
pids=$(find "$dir" -name cgroup.procs -exec cat {} + 2>/dev/null)
set --
for pid in $pids; do
  [ "$pid" = 0 ] || set -- "$@" "/proc/$pid/stat" "/proc/$pid/statm" "/proc/$pid/cmdline" "/proc/$pid/io"
done
[ $# = 0 ] || LC_ALL=C grep -azsH '' "$@"
:"""
_RECORD = re.compile(rb"/proc/(\d+)/(stat|statm|cmdline|io):(.*)", re.DOTALL)
_READ_BYTES = re.compile(rb"^(?:rchar|read_bytes): (\d+)$", re.MULTILINE)


async def read_processes(scope: Scope, unit: str) -> list[Process]:
    """List a unit's processes, the main one first; empty when it has none."""
    done = await scope.script(_PROCESSES_SCRIPT, unit, *scope.flags)
    return parse_processes(done.stdout)


def parse_processes(printed: bytes) -> list[Process]:
    """Read what the script printed; processes that have ended meanwhile, and zombies, are left out."""
    head, *records = printed.split(b"\0")
    page_size, ticks, main = (int(number) for number in head.split()[:3])
    files: dict[int, dict[bytes, bytes]] = {}
    words: dict[int, list[str]] = {}
    for record in records:
        match = _RECORD.fullmatch(record)
        if match is None:
            continue
        pid, name, body = int(match[1]), match[2], match[3]
        if name == b"cmdline":
            words.setdefault(pid, []).append(body.decode(errors="replace"))
        else:
            files.setdefault(pid, {})[name] = body
    found = []
    for pid, of_pid in files.items():
        # The name in parentheses may hold anything, so fields are counted from its last parenthesis on.
        fields = of_pid.get(b"stat", b"").rpartition(b")")[2].split()
        memory = of_pid.get(b"statm", b"").split()
        if len(fields) < 13 or len(memory) < 2 or fields[0] in {b"Z", b"X"}:
            continue
        found.append(
            Process(
                pid=pid,
                argv=tuple(words.get(pid, ())),
                rss_bytes=int(memory[1]) * page_size,
                cpu_s=(int(fields[11]) + int(fields[12])) / ticks,
                read_bytes=_read_bytes(of_pid.get(b"io", b"")),
            )
        )
    return sorted(found, key=lambda process: (process.pid != main, process.pid))


def _read_bytes(io: bytes) -> int | None:
    """Return the larger of what was asked for and what came from the disk: mapped files show only in the second."""
    counts = [int(number) for number in _READ_BYTES.findall(io)]
    return max(counts) if counts else None


def unit_of_cgroup(path: str) -> str:
    """Return the innermost service or scope unit of a cgroup path; "" when there is none."""
    parts = [part for part in path.split("/") if part.endswith((".service", ".scope"))]
    return parts[-1] if parts else ""


_SS_PROCESS = re.compile(r'\("((?:[^"\\]|\\.)*)",pid=(\d+),')
_SS_CGROUP = re.compile(r"cgroup:(\S+)")
# Prints each PID with its cgroups, of the unified hierarchy and of systemd's own where there are several.
_CGROUPS_SCRIPT = """\
for pid; do
  echo "$pid" $(grep -E '^0::|:name=systemd:' "/proc/$pid/cgroup" 2>/dev/null)
done; :"""
# Sockets that listen, with their inodes, for a host without ss; then who holds them, as far as that is readable.
_PROC_SCRIPT = """\
port=$(printf '%04X' "$1")
inodes=$(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | while read -r _ local _ state _ _ _ _ _ inode _; do
  [ "$state" = 0A ] && [ "${local##*:}" = "$port" ] && echo "$inode"
done)
for inode in $inodes; do
  found=
  for fd in /proc/[0-9]*/fd/*; do
    [ "$(readlink "$fd" 2>/dev/null)" = "socket:[$inode]" ] || continue
    pid=${fd#/proc/}; pid=${pid%%/*}; found=1
    printf '%s %s\\n' "$pid" "$(cat "/proc/$pid/comm" 2>/dev/null)"
    break
  done
  [ -n "$found" ] || echo '0 '
done; :"""


def parse_ss(text: str) -> list[tuple[int, str, str]]:
    """Read `ss -H -ltnp --cgroup`: pid, command and cgroup of each owner; pid 0 where ss may not tell."""
    found: list[tuple[int, str, str]] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        group = _SS_CGROUP.search(line)
        unit = unit_of_cgroup(group[1]) if group else ""
        owners = [(int(pid), command, unit) for command, pid in _SS_PROCESS.findall(line)]
        found.extend(owners or [(0, "", unit)])
    return found


class PortReader:
    """Finds who listens on a port; asks with privileges when it must, and not again once that was refused."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._may_ask = scope.privileged
        self._knows_cgroup = True

    async def owners(self, port: int) -> list[PortOwner]:
        """List the listeners on a TCP port, whatever their address."""
        if await self._scope.host.tool("ss") is None:
            found = await self._from_proc(port)
        else:
            found = await self._from_ss(port)
        return await self._with_units(dict.fromkeys(found))

    async def _from_ss(self, port: int) -> list[tuple[int, str, str]]:
        found = await self._ask_ss(port, privileged=False)
        if self._may_ask and any(not pid for pid, _, _ in found):
            try:
                found = await self._ask_ss(port, privileged=True)
            except PrivilegeRefused:
                self._may_ask = False
        return found

    async def _ask_ss(self, port: int, *, privileged: bool) -> list[tuple[int, str, str]]:
        cgroup = ["--cgroup"] if self._knows_cgroup else []
        argv = ["ss", "-H", "-ltnp", *cgroup, f"sport = :{int(port)}"]
        done = await self._scope.host.run(argv, privileged=privileged, check=not cgroup)
        if done.status != 0:
            self._knows_cgroup = False
            return await self._ask_ss(port, privileged=privileged)
        return parse_ss(done.text)

    async def _from_proc(self, port: int) -> list[tuple[int, str, str]]:
        done = await self._scope.script(_PROC_SCRIPT, str(int(port)))
        pairs = (line.partition(" ") for line in done.text.splitlines())
        return [(int(pid), command, "") for pid, _, command in pairs]

    async def _with_units(self, found: Iterable[tuple[int, str, str]]) -> list[PortOwner]:
        owners = list(found)
        unknown = [str(pid) for pid, _, unit in owners if pid and not unit]
        units: dict[int, str] = {}
        if unknown:
            done = await self._scope.script(_CGROUPS_SCRIPT, *unknown)
            for line in done.text.splitlines():
                pid, *groups = line.split()
                units[int(pid)] = next((unit for group in groups if (unit := unit_of_cgroup(group))), "")
        return [PortOwner(pid=pid, unit=unit or units.get(pid, ""), command=command) for pid, command, unit in owners]
