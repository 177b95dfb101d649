"""Putting candidate units on a host and taking them away: only files that carry specd's mark are ever touched."""

import asyncio
import re

from specd.errors import FileProblem, HostError, UnitError
from specd.services.service import Candidate, OwnUnit
from specd.services.systemd.bus import check_unit_name
from specd.services.systemd.scope import Scope
from specd.services.systemd.status import read_status
from specd.services.systemd.unitfile import marks_of

__all__ = ["install", "own_units", "side_paths", "uninstall"]

# Prints path, NUL, the lines with marks, NUL for each marked unit in the directories given; unreadable files come
# with no lines.
_LIST_SCRIPT = """\
for dir; do
  for file in "$dir"/*.service; do
    [ -f "$file" ] || continue
    if [ -r "$file" ]; then marks=$(grep -a '^X-Specd-' "$file") || continue; else marks=; fi
    printf '%s\\0%s\\0' "$file" "$marks"
  done
done; :"""
_GUARD_PREFIX = "specd-guard-"
_SPECD_FILE = re.compile(r"/specd-[^/]+\.service")


def side_paths(unit_path: str) -> tuple[str, ...]:
    """Return the paths that may lie beside a candidate unit: its environment file, a rehearsal's program."""
    stem = unit_path.removesuffix(".service")
    return f"{stem}.env", f"{stem}.pyz"


async def install(scope: Scope, candidate: Candidate) -> None:
    """Write a candidate and its side files and make systemd read them; after a failure nothing is left."""
    await _refuse_strangers(scope, candidate)
    if scope.is_user and candidate.path.startswith(await scope.runtime_unit_dir() + "/"):
        await scope.make_runtime_unit_dir()
    mode = int(marks_of(candidate.content.decode()).get("Mode", "644"), 8)
    files = [(path, content, 0o600) for path, content in candidate.side_files.items()]
    files.append((candidate.path, candidate.content, mode))
    try:
        for path, content, file_mode in files:
            await scope.write(path, content, mode=file_mode)
        await scope.reload()
    except HostError:
        await _take_back(scope, [path for path, _, _ in files])
        raise


async def _refuse_strangers(scope: Scope, candidate: Candidate) -> None:
    for path in (candidate.path, *candidate.side_files):
        try:
            there = await scope.read(path)
        except FileProblem as error:
            if error.reason == "missing":
                continue
            raise
        is_unit = path == candidate.path
        if is_unit and marks_of(there.decode(errors="replace")).get("Trial") != candidate.trial:
            raise UnitError(
                f"{path} is there already and is not this trial's", host=scope.host.name, unit=candidate.name
            )
    shown = await scope.show(candidate.name, "FragmentPath", "LoadState")
    other = shown.get("FragmentPath", "")
    if other and other != candidate.path:
        raise UnitError(f"there is a unit of this name in {other}", host=scope.host.name, unit=candidate.name)


async def _take_back(scope: Scope, paths: list[str]) -> None:
    """Remove what a failed installation wrote; where the host no longer answers, the first error counts."""
    try:
        for path in paths:
            await scope.remove(path)
    except HostError:
        return


async def uninstall(scope: Scope, unit: str) -> None:
    """Remove a unit with specd's mark, its side files and its failed state; one that is not there is fine."""
    unit = check_unit_name(unit)
    found = [path for directory in await scope.own_dirs() if await scope.is_there(path := f"{directory}/{unit}")]
    for path in found:
        if not marks_of((await scope.read(path)).decode(errors="replace")).get("Trial"):
            raise UnitError(f"{path} does not carry specd's mark; it stays", host=scope.host.name, unit=unit)
    status = await read_status(scope, unit)
    if found and not status.is_down:
        raise UnitError(
            f"{unit} is {status.active}; its file stays until it has stopped", host=scope.host.name, unit=unit
        )
    directories = [path.rpartition("/")[0] for path in found] or await scope.own_dirs()
    sides = [side for directory in directories for side in side_paths(f"{directory}/{unit}")]
    leftovers = [side for side in sides if await scope.is_there(side)]
    if unit.startswith("specd-"):
        for path in [*found, *leftovers]:
            await scope.remove(path)
    if found:
        await scope.reload()
    if status.active == "failed":
        # A unit that systemd has forgotten meanwhile has no failed state to clear.
        await scope.systemctl("reset-failed", "--", unit, check=False)


async def own_units(scope: Scope) -> list[OwnUnit]:
    """List candidate units on the host, whoever's; guards are not among them."""
    done = await scope.script(_LIST_SCRIPT, *await scope.own_dirs())
    fields = done.text.split("\0")
    found = await asyncio.gather(
        *(_own_unit(scope, path, marks) for path, marks in zip(fields[::2], fields[1::2], strict=False))
    )
    return [unit for unit in found if unit is not None]


async def _own_unit(scope: Scope, path: str, lines: str) -> OwnUnit | None:
    name = path.rpartition("/")[2]
    if name.startswith(_GUARD_PREFIX):
        return None
    if not lines:
        if not _SPECD_FILE.search(path):
            return None
        lines = (await scope.read(path)).decode(errors="replace")
    marks = marks_of(lines if "[" in lines else f"[X-Specd]\n{lines}")
    if not marks.get("Trial"):
        return None
    return OwnUnit(name, marks["Trial"], marks.get("Installation", ""), path)
