"""What can be proven of a unit of the embedded supervisor, before anything is started."""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specd.checks import Check
from specd.services.service import Candidate, UnitStatus

__all__ = ["examine_candidate", "preflight_unit"]

SECRET = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)
MASK = "********"
ENOUGH_BYTES = 16 * 2**20


def examine_candidate(candidate: Candidate, status: UnitStatus, effective: Mapping[str, Any]) -> list[Check]:
    """Compare what the supervisor has read of the candidate with what was meant; blocking."""
    try:
        on_disk = Path(candidate.path).read_bytes()
    except OSError as error:
        return [Check.failed("unit.bytes", f"{candidate.path}: {error.strerror}")]
    is_equal = on_disk == candidate.content
    fix = "find out who else writes there"
    checks = [
        Check.passed("unit.bytes", f"{candidate.path}: {len(on_disk)} bytes as written")
        if is_equal
        else Check.failed("unit.bytes", f"{candidate.path} is not what was written", fix),
        Check.failed("unit.reload", "the supervisor has read another version of the file")
        if status.needs_reload
        else Check.passed("unit.reload", "the supervisor has read this version"),
        _arguments(candidate.argv, effective["argv"]),
        _environment(candidate.environment, effective["environment"]),
        _executable(effective),
        Check.failed("unit.enabled", "the candidate would start at boot")
        if effective["enabled"]
        else Check.passed("unit.enabled", "disabled"),
        Check.passed("unit.restart", "no")
        if effective["restart"] == "no"
        else Check.failed("unit.restart", f"restart is {effective['restart']}"),
    ]
    return checks


def preflight_unit(directory: Path, pid: int, unit: str, raw: Mapping[str, Any] | None, why: str) -> list[Check]:
    """Check a baseline and the directory it lives in; `raw` is what the supervisor has read, or `why` it has not."""
    units = directory / "units"
    is_writable = os.access(units, os.W_OK | os.X_OK)
    disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    mode = directory.stat().st_mode & 0o777
    checks = [
        Check.passed("manager.supervisor", f"pid {pid}, {directory}"),
        Check.passed("manager.directory", f"{units} can be written")
        if is_writable
        else Check.failed("manager.directory", f"{units} can't be written", f"chmod u+rwx {units}"),
        Check.passed("manager.private", "for its owner only")
        if mode & 0o077 == 0
        else Check.warning(
            "manager.private", f"{directory} is open to others (mode {mode:o})", f"chmod 700 {directory}"
        ),
        Check.passed("manager.space", f"{free // 2**20} MiB free")
        if free >= ENOUGH_BYTES
        else Check.failed("manager.space", f"{directory}: only {free // 2**10} KiB free", "make room"),
    ]
    if raw is None:
        return [*checks, Check.failed("unit.exists", why, f"put the unit's file into {units}")]
    checks.append(Check.passed("unit.exists", raw["path"]))
    checks.append(_executable(raw))
    if raw["enabled"]:
        checks.append(Check.passed("unit.enabled", "starts with the supervisor"))
    else:
        fix = 'set "enabled": true, so that it comes back after a reboot'
        checks.append(Check.warning("unit.enabled", f"{unit} is not enabled", fix))
    return checks


def _arguments(intended: Sequence[str], effective: Sequence[str]) -> Check:
    for index, (wanted, got) in enumerate(zip(intended, effective, strict=False)):
        if wanted != got:
            hidden = _is_secret(intended, index)
            wanted, got = (MASK, MASK) if hidden else (wanted, got)
            return Check.failed("unit.argv", f"{_flag(intended, index)}: intended {wanted!r}, effective {got!r}")
    if len(intended) != len(effective):
        return Check.failed("unit.argv", f"{len(intended)} arguments intended, {len(effective)} effective")
    documents = [
        (wanted, got) for wanted, got in zip(intended, effective, strict=True) if _document(wanted) is not None
    ]
    for wanted, got in documents:
        if _document(wanted) != _document(got):
            return Check.failed("unit.argv", f"JSON differs: intended {wanted!r}, effective {got!r}")
    return Check.passed("unit.argv", f"{len(intended)} arguments equal, {len(documents)} of them JSON")


def _document(text: str) -> Any:
    """Return an argument's value when it is a JSON object or list, else None."""
    if not text.startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def _flag(argv: Sequence[str], index: int) -> str:
    """Name the flag that an argument is or belongs to."""
    for at in range(index, max(index - 2, -1), -1):
        if argv[at].startswith("--"):
            return argv[at].partition("=")[0]
    return f"argument {index}"


def _is_secret(argv: Sequence[str], index: int) -> bool:
    return SECRET.search(_flag(argv, index)) is not None


def _environment(intended: Mapping[str, str], effective: Mapping[str, str]) -> Check:
    for name in sorted({*intended, *effective}):
        wanted, got = intended.get(name), effective.get(name)
        if wanted == got:
            continue
        if SECRET.search(name):
            wanted, got = (value and MASK for value in (wanted, got))
        return Check.failed("unit.environment", f"{name}: intended {wanted!r}, effective {got!r}")
    return Check.passed("unit.environment", f"{len(intended)} variables equal")


def _executable(raw: Mapping[str, Any]) -> Check:
    """Find the program as the supervisor would: by its path, or in the unit's own PATH."""
    program = raw["argv"][0]
    directory = Path(raw["working_directory"])
    if not directory.is_dir():
        return Check.failed("unit.executable", f"working directory {directory} does not exist")
    path = {**raw["base_environment"], **raw["environment"]}["PATH"]
    # A relative path with a slash is looked up in the unit's working directory.
    found = shutil.which(str(directory / program) if "/" in program else program, path=path)
    if found is None:
        return Check.failed("unit.executable", f"{program} is no program that can be executed")
    return Check.passed("unit.executable", found)
