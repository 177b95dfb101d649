"""Whether a unit can be driven at all: scope, tools, rights for each command to come. Changes nothing."""

import asyncio
from collections.abc import Sequence

from specd.checks import Check, failures
from specd.errors import HostUnreachable, PrivilegeRefused, SpecdError, UnitError
from specd.services.service import UnitFacts
from specd.services.systemd.bus import Properties, check_unit_name
from specd.services.systemd.dependents import read_dependents
from specd.services.systemd.directives import fates
from specd.services.systemd.facts import command_of, read_facts, require_service
from specd.services.systemd.journal import Journal
from specd.services.systemd.rights import Rights
from specd.services.systemd.scope import Scope

__all__ = ["preflight"]

# busctl prints JSON from this version on.
_OLDEST = 240
_TOOLS = ("systemctl", "busctl", "journalctl", "getent", "grep", "find", "timeout")
_TYPES = frozenset({"simple", "exec", "notify", "notify-reload", "idle"})


async def preflight(scope: Scope, journal: Journal, rights: Rights, unit: str) -> list[Check]:
    """Check what a trial of this unit needs."""
    first = [await _tools(scope), await _scope(scope)]
    if failures(first):
        return first
    version, about_unit, may_call, may_write, readable = await asyncio.gather(
        _version(scope), _unit(scope, unit), _calls(scope, rights, unit), rights.write(), _journal(scope, journal)
    )
    return [*first, version, *about_unit, may_call, may_write, readable]


async def _calls(scope: Scope, rights: Rights, unit: str) -> Check:
    try:
        found = await read_dependents(scope, check_unit_name(unit))
    except UnitError:
        found = ()
    return await rights.systemctl(unit, [each.unit for each in found if each.is_active])


async def _tools(scope: Scope) -> Check:
    found = await asyncio.gather(*(scope.host.tool(name) for name in _TOOLS))
    missing = [name for name, path in zip(_TOOLS, found, strict=True) if path is None]
    if missing:
        return Check.failed("tools", f"the host has no {', '.join(missing)}", "install them")
    wanted = [name for name in ("systemd-analyze", "ss") if await scope.host.tool(name) is None]
    if wanted:
        return Check.warning("tools", f"the host has no {', '.join(wanted)}; some checks say less")
    return Check.passed("tools", ", ".join(_TOOLS))


async def _version(scope: Scope) -> Check:
    version = await scope.version()
    if version < _OLDEST:
        return Check.failed("systemd.version", f"systemd {version}; {_OLDEST} or newer is needed")
    return Check.passed("systemd.version", str(version))


async def _scope(scope: Scope) -> Check:
    name = "systemd.scope"
    if not scope.is_user:
        running = (await scope.systemctl("is-system-running", privileged=False, check=False)).text.strip()
        if running in {"", "offline", "unknown"}:
            return Check.failed(
                name, "systemd does not run as the host's init", "set `manager` to embedded for this host"
            )
        if running == "stopping":
            return Check.failed(name, "the host is shutting down")
        return Check.passed(name, f"system ({running})")
    environment = await scope.environment() or {}
    directory = environment.get("XDG_RUNTIME_DIR", "")
    there = await scope.host.run(["test", "-S", f"{directory}/bus"], check=False)
    if there.status != 0:
        fix = "run loginctl enable-linger for that user, so that its manager runs without a login"
        return Check.failed(name, f"no user manager answers in {directory}", fix)
    user = (await scope.host.run(["id", "-un"])).text.strip()
    lingers = await scope.host.run(["test", "-e", f"/var/lib/systemd/linger/{user}"], check=False)
    if lingers.status != 0:
        words = f"user {user} does not linger: its services end with its last login"
        return Check.warning(name, words, f"run loginctl enable-linger {user}")
    return Check.passed(name, f"user {user}, lingering")


async def _unit(scope: Scope, unit: str) -> list[Check]:
    host = scope.host.name
    try:
        name = check_unit_name(unit)
        properties = await scope.unit(name)
        require_service(properties, name, host)
        command_of(properties, name)
    except UnitError as error:
        return [Check.failed("unit.exists", error.what, error.next_step)]
    exists = Check.passed("unit.exists", properties.text("FragmentPath"))
    return [
        exists,
        *await _readable(scope, name),
        _active(properties, name),
        _type(properties, name),
        await _revived(scope, properties, name),
    ]


async def _readable(scope: Scope, name: str) -> list[Check]:
    """Check that all files the unit is made of can be read: without them its command line is not known."""
    check = "unit.readable"
    try:
        facts = await read_facts(scope, name)
    except HostUnreachable:
        raise
    except SpecdError as error:
        fix = error.next_step or "let the connecting user read the file, or run cat on it by sudo"
        return [Check.failed(check, error.what, fix)]
    carried = _directives(facts)
    if mismatch := facts.extra.get("argv_mismatch"):
        fix = "the unit was changed since it started, or its program replaces itself"
        return [Check.warning(check, mismatch, fix), carried]
    return [Check.passed(check, f"{len(facts.files)} files, {len(facts.argv)} words"), carried]


def _directives(facts: UnitFacts) -> Check:
    """Tell what a candidate does with each directive; verify proves the values of those carried over."""
    sorted_ = fates(facts)
    parts = [f"{len(sorted_.carried)} carried over"]
    if sorted_.replaced:
        parts.append(f"the trial has its own {', '.join(sorted_.replaced)}")
    if sorted_.left_out:
        parts.append(f"a candidate goes without {', '.join(sorted_.left_out)}")
    return Check.passed("unit.directives", "; ".join(parts))


async def _revived(scope: Scope, properties: Properties, name: str) -> Check:
    """Check that systemd leaves the unit stopped once it is."""
    check = "unit.stays-stopped"
    if upholders := await _active_of(scope, properties.texts("UpheldBy")):
        words = f"{upholders[0]} upholds {name}: systemd starts it again as soon as it is stopped"
        return Check.failed(check, words, f"take {name} out of its Upholds=, or stop {upholders[0]} for the trial")
    if triggers := await _active_of(scope, properties.texts("TriggeredBy")):
        words = f"{', '.join(triggers)} may start {name} while a candidate serves"
        return Check.warning(check, words, f"stop {triggers[0]} for the trial")
    return Check.passed(check, "nothing active starts it by itself")


async def _active_of(scope: Scope, units: Sequence[str]) -> list[str]:
    states = await asyncio.gather(*(scope.show(unit, "ActiveState") for unit in units))
    return [unit for unit, shown in zip(units, states, strict=True) if shown.get("ActiveState") == "active"]


def _active(properties: Properties, name: str) -> Check:
    state = f"{properties.text('ActiveState')}/{properties.text('SubState')}"
    if properties.text("ActiveState") != "active":
        return Check.failed("unit.active", f"{name} is {state}", f"start it: systemctl start {name}")
    return Check.passed("unit.active", f"{state}, {properties.number('NRestarts')} automatic restarts")


def _type(properties: Properties, name: str) -> Check:
    check = "unit.type"
    kind = properties.text("Type")
    sockets = [unit for unit in properties.texts("TriggeredBy") if unit.endswith(".socket")]
    if kind not in _TYPES:
        return Check.failed(check, f"{name} has Type={kind}; specd drives simple, exec, idle and notify services")
    if sockets:
        return Check.failed(check, f"{name} gets its socket from {sockets[0]}; a second unit can't have it")
    if properties.flag("Transient"):
        return Check.failed(check, f"{name} is transient: it would be gone once stopped", "give it a unit file")
    if properties.flag("RefuseManualStart") or properties.flag("RefuseManualStop"):
        return Check.failed(check, f"{name} refuses to be started or stopped by hand")
    return Check.passed(check, kind)


async def _journal(scope: Scope, journal: Journal) -> Check:
    name = "journal.readable"
    try:
        privileged = await journal.needs_privilege()
        argv = ["journalctl", "--quiet", "--no-pager", "--lines=1", "--output=json"]
        done = await scope.host.run(argv, privileged=privileged, check=False)
    except PrivilegeRefused as error:
        fix = "add the connecting user to the group systemd-journal, or let it run journalctl by sudo"
        return Check.failed(name, f"the journal can't be read: {error.what}", fix)
    if done.status != 0:
        return Check.failed(name, done.error_text.strip() or f"journalctl ended with status {done.status}")
    if not done.stdout.strip():
        words = "the journal shows no record to this user"
        return Check.warning(name, words, "add the connecting user to the group systemd-journal")
    return Check.passed(name, "with privileges" if privileged else "as the connecting user")
