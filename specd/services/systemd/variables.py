"""The environment systemd gives a unit's process, worked out before it runs: what $VARIABLES in its command see."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from specd.errors import BadAnswer, FileProblem, UnitError
from specd.services.systemd.bus import Properties
from specd.services.systemd.envfile import is_variable_name, parse_environment
from specd.services.systemd.scope import Scope

__all__ = ["UnitEnvironment", "read_environment"]

_GLOB_CHARS = frozenset("*?[")
# With IFS empty, an unquoted parameter is a pattern and never split.
_EXPAND_SCRIPT = 'IFS=; for path in $1; do [ -e "$path" ] && printf "%s\\0" "$path"; done; :'
_DIRECTORIES = {
    "RuntimeDirectory": "RUNTIME_DIRECTORY",
    "StateDirectory": "STATE_DIRECTORY",
    "CacheDirectory": "CACHE_DIRECTORY",
    "LogsDirectory": "LOGS_DIRECTORY",
    "ConfigurationDirectory": "CONFIGURATION_DIRECTORY",
}
_SYSTEM_ROOTS = {
    "RUNTIME_DIRECTORY": "/run",
    "STATE_DIRECTORY": "/var/lib",
    "CACHE_DIRECTORY": "/var/cache",
    "LOGS_DIRECTORY": "/var/log",
    "CONFIGURATION_DIRECTORY": "/etc",
}
# systemd makes this user up itself, without a home.
_SYNTHETIC = frozenset({"nobody", "65534"})
_NO_SHELLS = frozenset({"", "/", "/bin/false", "/usr/bin/false", "/sbin/nologin", "/usr/sbin/nologin", "/bin/nologin"})


@dataclass(frozen=True, slots=True)
class UnitEnvironment:
    """`own` is what the unit itself sets; `whole` adds what the manager and the unit's user bring.

    `files` holds the content of each environment file that was read; `missing` names optional ones that are not there.
    """

    own: Mapping[str, str]
    whole: Mapping[str, str]
    files: Mapping[str, bytes]
    missing: tuple[str, ...]


async def read_environment(scope: Scope, unit: str, properties: Properties) -> UnitEnvironment:
    """Work out a unit's environment from its settings and environment files as they are now.

    Raises UnitError for an environment file that would keep the unit from starting.
    """
    version, manager = await asyncio.gather(scope.version(), scope.manager("Environment"))
    given = _assignments(manager.texts("Environment"))
    whole = dict(given) | await _of_user(scope, properties) | _of_directories(scope, properties)
    whole |= {name: given[name] for name in properties.texts("PassEnvironment") if name in given}
    own = _assignments(properties.texts("Environment"))
    files: dict[str, bytes] = {}
    missing: list[str] = []
    for row in properties.rows("EnvironmentFiles"):
        pattern, optional = str(row[0]), bool(row[1])
        found = await _read_files(scope, unit, pattern, optional)
        if not found:
            missing.append(pattern)
        files |= found
        for path, content in found.items():
            own |= _parsed(unit, path, content, version)
    for entry in properties.texts("UnsetEnvironment"):
        name, separator, value = entry.partition("=")
        for variables in (own, whole):
            if not separator or variables.get(name) == value:
                variables.pop(name, None)
    return UnitEnvironment(own, whole | own, files, tuple(missing))


def _assignments(entries: tuple[str, ...]) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in entries)
    return {name: value for name, separator, value in pairs if separator and is_variable_name(name)}


def _parsed(unit: str, path: str, content: bytes, version: int) -> dict[str, str]:
    try:
        return parse_environment(content, version=version)
    except ValueError as error:
        raise UnitError(f"environment file {path} is not UTF-8; systemd refuses it", unit=unit) from error


async def _read_files(scope: Scope, unit: str, pattern: str, optional: bool) -> dict[str, bytes]:
    paths = [pattern]
    if _GLOB_CHARS & set(pattern):
        done = await scope.script(_EXPAND_SCRIPT, pattern)
        paths = [path for path in done.text.split("\0") if path]
    found: dict[str, bytes] = {}
    for path in paths:
        try:
            found[path] = await scope.read(path)
        except FileProblem as error:
            if error.reason == "missing" and optional:
                continue
            if error.reason == "missing":
                break
            raise
    if not found and not optional:
        raise UnitError(
            f"environment file {pattern} is missing; systemd would not start the unit",
            host=scope.host.name,
            unit=unit,
            next_step="put the file back, or prefix it with - in the unit if it is optional",
        )
    return found


async def _of_user(scope: Scope, properties: Properties) -> dict[str, str]:
    """Return what User= brings: systemd sets HOME, USER, LOGNAME and SHELL from the user database."""
    user = properties.text("User")
    if not user or scope.is_user:
        return {}
    if user in _SYNTHETIC:
        return {"USER": "nobody", "LOGNAME": "nobody"}
    done = await scope.host.run(["getent", "passwd", "--", user], check=False)
    if done.status != 0:
        return {"USER": user, "LOGNAME": user}
    fields = done.text.rstrip("\n").split(":")
    if len(fields) < 7:
        raise BadAnswer(f"getent passwd {user} printed {done.text!r}", host=scope.host.name)
    found = {"USER": fields[0], "LOGNAME": fields[0]}
    if fields[5] not in {"", "/"}:
        found["HOME"] = fields[5]
    if fields[6] not in _NO_SHELLS:
        found["SHELL"] = fields[6]
    return found


def _of_directories(scope: Scope, properties: Properties) -> dict[str, str]:
    """Return RUNTIME_DIRECTORY and its like; in user scope their roots are the user's own and left unknown."""
    if scope.is_user:
        return {}
    found: dict[str, str] = {}
    for setting, variable in _DIRECTORIES.items():
        names = properties.texts(setting)
        if names:
            found[variable] = ":".join(f"{_SYSTEM_ROOTS[variable]}/{name}" for name in names)
    return found
