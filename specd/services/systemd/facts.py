"""Reading a unit: what systemd would execute, with which environment, made of which files."""

import asyncio
import hashlib
import itertools
from collections.abc import Mapping, Sequence

from specd.errors import FileProblem, UnitError
from specd.services.service import UnitFacts
from specd.services.systemd.bus import ExecCommand, Properties, check_unit_name, microseconds
from specd.services.systemd.scope import Scope
from specd.services.systemd.specifier import UnitName
from specd.services.systemd.unitfile import join_text, parse_unit
from specd.services.systemd.variables import UnitEnvironment, read_environment

__all__ = ["command_of", "read_facts", "require_service"]

_TEXTS = (
    "Type", "ExitType", "Restart", "KillMode", "User", "Group", "WorkingDirectory", "RootDirectory",
    "RootImage", "Slice", "UnitFileState", "StandardOutput", "StandardError", "LogNamespace", "NotifyAccess",
)  # fmt: skip
_TIMES = ("TimeoutStartUSec", "TimeoutStopUSec", "WatchdogUSec", "RuntimeMaxUSec")
_FLAGS = ("DynamicUser", "Transient", "RefuseManualStart", "RefuseManualStop", "RemainAfterExit", "SendSIGKILL")
_LISTS = (
    "RequiredBy", "BoundBy", "ConsistsOf", "RequisiteOf", "TriggeredBy", "Requires", "Wants", "BindsTo",
    "Requisite",
)  # fmt: skip
_LOGGED = frozenset({"", "journal", "journal+console", "syslog", "syslog+console", "kmsg", "kmsg+console", "inherit"})

# Prints every drop-in that lies on systemd's search path for the names given, in the search path's order.
_DROP_INS_SCRIPT = """\
names=$1; shift
IFS=/
for dir; do
  for name in $names; do
    for file in "$dir/$name.d"/*.conf; do [ -e "$file" ] && printf '%s\\0' "$file"; done
  done
done; :"""
_PROCESS_SCRIPT = 'cat "/proc/$1/cmdline" 2>/dev/null; :'
_REAL_PATH_SCRIPT = 'readlink -f -- "$1"'
_MODES_SCRIPT = 'stat -L -c %a -- "$@" 2>/dev/null; :'


async def read_facts(scope: Scope, name: str, *, as_loaded: bool = False) -> UnitFacts:
    """Read a unit; raises UnitError for one that can't be the subject of a trial.

    With `as_loaded` it may have files that were changed, added or removed since systemd read them.
    """
    name = check_unit_name(name)
    properties = await scope.unit(name)
    name = properties.text("Id") or name
    require_service(properties, name, scope.host.name, as_loaded=as_loaded)
    command = command_of(properties, name)
    fragment, drop_ins = properties.text("FragmentPath"), properties.texts("DropInPaths")
    environment, texts, unread = await asyncio.gather(
        read_environment(scope, name, properties),
        asyncio.gather(*(_content(scope, path, may_lack=as_loaded) for path in (fragment, *drop_ins))),
        _unread_drop_ins(scope, name, drop_ins),
    )
    if unread and not as_loaded:
        raise UnitError(
            f"{unread[0]} is a drop-in that systemd has not read",
            host=scope.host.name,
            unit=name,
            next_step="run systemctl daemon-reload if it is meant to count, or remove it",
        )
    bodies = dict(zip((fragment, *drop_ins), texts, strict=True))
    contents = {path: body.decode(errors="replace") for path, body in bodies.items()}
    argv = environment.words(command)
    return UnitFacts(
        name=name,
        argv=argv,
        environment=dict(environment.own),
        user=properties.text("User"),
        working_directory=properties.text("WorkingDirectory").removeprefix("!"),
        enabled=properties.text("UnitFileState"),
        files={path: hashlib.sha256(body).hexdigest() for path, body in (bodies | dict(environment.files)).items()},
        text=join_text(contents),
        fragment_path=fragment,
        drop_in_paths=drop_ins,
        extra=await _extra(scope, properties, command, argv, environment, contents),
    )


async def _content(scope: Scope, path: str, *, may_lack: bool) -> bytes:
    try:
        return await scope.read(path)
    except FileProblem as error:
        if may_lack and error.reason == "missing":
            return b""
        raise


def require_service(properties: Properties, name: str, host: str, *, as_loaded: bool = False) -> None:
    """Raise UnitError unless the unit is there, loaded without fault, and (or `as_loaded`) on disk as systemd has
    read it."""
    state = properties.text("LoadState")
    reasons = {
        "not-found": ("there is no such unit", "check the name with systemctl list-units --type=service --all"),
        "masked": ("the unit is masked", "unmask it"),
        "bad-setting": ("systemd refuses its file", "see systemctl status for the line"),
        "error": ("systemd can't read its file", "see systemctl status for the line"),
    }
    if state != "loaded":
        words, next_step = reasons.get(state, (f"its load state is {state!r}", ""))
        if state == "bad-setting" and len(properties.commands("ExecStart")) > 1:
            words = "it has more than one ExecStart=, which systemd refuses"
            if drop_ins := properties.texts("DropInPaths"):
                next_step = f"put a line ExecStart= before the new one, in {' or '.join(drop_ins)}"
        raise UnitError(f"{name}: {words}", host=host, unit=name, next_step=next_step)
    if properties.flag("NeedDaemonReload") and not as_loaded:
        raise UnitError(
            f"{name}: its files have changed since systemd read them, so what would run is not what is written",
            host=host,
            unit=name,
            next_step="run systemctl daemon-reload when the change is meant; if systemd says so even then, a drop-in of"
            " it is a dangling link or a directory",
        )


def command_of(properties: Properties, name: str) -> ExecCommand:
    """Return the unit's one command; raises UnitError when it has none or several."""
    commands = properties.commands("ExecStart")
    if len(commands) != 1:
        words = "no command" if not commands else f"{len(commands)} commands"
        raise UnitError(f"{name} has {words} in ExecStart=; one server command is needed", unit=name)
    if not properties.text("FragmentPath"):
        raise UnitError(f"{name} has no unit file", unit=name)
    return commands[0]


async def _unread_drop_ins(scope: Scope, name: str, known: Sequence[str]) -> list[str]:
    """Return drop-ins on disk that systemd does not use; NeedDaemonReload is no for a unit's very first one."""
    directories = (await scope.manager("UnitPath")).texts("UnitPath")
    done = await scope.script(_DROP_INS_SCRIPT, "/".join(_drop_in_names(name)), *directories)
    used = {path.rpartition("/")[2] for path in known}
    # A file of the same name in a directory of higher priority hides the others, so names are compared, not paths.
    return [
        path
        for path in done.text.split("\0")
        if path and path.rpartition("/")[2] not in used and "/service.d/" not in path
    ]


def _drop_in_names(name: str) -> list[str]:
    """Return the unit names whose .d directories apply: its own, its template's, and the dash prefixes of both."""
    parts = UnitName(name)
    names = [name] + ([f"{parts.prefix}@.service"] if parts.instance else [])
    pieces = parts.prefix.split("-")
    prefixes = itertools.accumulate(pieces[:-1], lambda left, right: f"{left}-{right}")
    return names + [f"{prefix}-.service" for prefix in prefixes]


async def _extra(
    scope: Scope,
    properties: Properties,
    command: ExecCommand,
    argv: tuple[str, ...],
    environment: UnitEnvironment,
    contents: Mapping[str, str],
) -> dict[str, str]:
    extra = {key: properties.text(key) for key in _TEXTS}
    for key in _TIMES:
        if key in properties:
            span = properties.number(key)
            extra[key] = "infinity" if microseconds(span) == "infinity" else str(span)
    extra |= {key: "yes" if properties.flag(key) else "no" for key in _FLAGS}
    extra |= {key: " ".join(properties.texts(key)) for key in _LISTS}
    extra["required_by"] = " ".join(properties.texts("RequiredBy") + properties.texts("RequisiteOf"))
    extra["bound_by"] = " ".join(properties.texts("BoundBy") + properties.texts("ConsistsOf"))
    extra["UnsetEnvironment"] = "\n".join(properties.texts("UnsetEnvironment"))
    extra["exec_path"] = command.path
    extra["exec_prefix"] = command.prefix
    extra["main_pid"] = str(properties.number("MainPID"))
    extra["missing_environment_files"] = "\n".join(environment.missing)
    extra["unit_dir"] = scope.candidate_dir()
    extra["log_target"] = _log_target(properties, contents)
    modes, mismatch = await asyncio.gather(
        scope.script(_MODES_SCRIPT, *contents, *(environment.files if argv != command.argv else ())),
        _mismatch(scope, properties, argv, command.path),
    )
    extra["file_mode"] = _tightest(modes.text.split())
    if any("%y" in text.lower() for text in contents.values()):
        # Links followed, as systemd does for this specifier alone.
        extra["real_path"] = (await scope.script(_REAL_PATH_SCRIPT, next(iter(contents)))).text.removesuffix("\n")
    if mismatch:
        extra["argv_mismatch"] = mismatch
    return extra


def _log_target(properties: Properties, contents: Mapping[str, str]) -> str:
    """Return "journal", or where else output goes: as written, since D-Bus does not tell a file's path."""
    written = {item.key: item.value for text in contents.values() for item in parse_unit(text)}
    elsewhere = [
        written.get(key) or properties.text(key)
        for key in ("StandardOutput", "StandardError")
        if properties.text(key) not in _LOGGED
    ]
    return " ".join(dict.fromkeys(elsewhere)) or "journal"


def _tightest(modes: Sequence[str]) -> str:
    """Return the read and write bits that all files grant, as octal digits, 644 at most."""
    granted = 0o644
    for mode in modes:
        granted &= int(mode, 8)
    return f"{granted | 0o600:o}"


async def _mismatch(scope: Scope, properties: Properties, argv: tuple[str, ...], path: str) -> str:
    """Say how the running main process differs from what a start would run; "" when it does not or can't be seen."""
    pid = properties.number("MainPID")
    if not pid:
        return ""
    done = await scope.script(_PROCESS_SCRIPT, str(pid))
    live = done.text.split("\0")[:-1]
    if not live or argv_matches(live, argv, path):
        return ""
    own = live[max(0, len(live) - len(argv)) :]
    place = next((i for i, (a, b) in enumerate(itertools.zip_longest(own, argv)) if a != b and i), 0)
    return f"process {pid} was not started from these words: the first that differs is word {place} of {len(argv)}"


def argv_matches(live: Sequence[str], argv: Sequence[str], path: str) -> bool:
    """True when a process runs this command, be it behind the interpreter that a `#!` line put in front."""
    if not argv or len(live) < len(argv):
        return False
    if list(live[len(live) - len(argv) + 1 :]) != list(argv[1:]):
        return False
    # An interpreter takes the script's full path in place of argv[0].
    own = live[len(live) - len(argv)]
    return own.rpartition("/")[2] in {word.rpartition("/")[2] for word in (argv[0], path)}
