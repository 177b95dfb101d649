"""The environment systemd gives a unit's process, worked out before it runs: what $VARIABLES in its command see."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from specd.errors import FileProblem, UnitError
from specd.services.systemd.bus import ExecCommand, Properties
from specd.services.systemd.envfile import parse_environment
from specd.services.systemd.scope import Scope
from specd.services.systemd.surroundings import assignments, brought
from specd.services.systemd.words import expand_variables

__all__ = ["UnitEnvironment", "read_environment"]

_GLOB_CHARS = frozenset("*?[")
# With IFS empty, an unquoted parameter is a pattern and never split.
_EXPAND_SCRIPT = 'LC_ALL=C; IFS=; for path in $1; do [ -e "$path" ] && printf "%s\\0" "$path"; done; :'


@dataclass(frozen=True, slots=True)
class UnitEnvironment:
    """`own` is what the unit itself sets; `whole` adds what the manager and the unit's user bring.

    `files` holds the content of each environment file that was read; `missing` names optional ones that are not there.
    `untold` are the names that a process may have in its environment with a value that can't be known before it starts.
    """

    own: Mapping[str, str]
    whole: Mapping[str, str]
    files: Mapping[str, bytes]
    missing: tuple[str, ...]
    untold: frozenset[str]

    def words(self, command: ExecCommand) -> tuple[str, ...]:
        """Return a command's words as its process gets them; raises UnitError for one that only a start can tell."""
        return tuple(expand_variables(command.argv, self._value) if command.expands else command.argv)

    def _value(self, name: str) -> str:
        if name in self.untold:
            raise UnitError(
                f"the command uses ${name}, whose value can't be known before a start",
                next_step="write what is meant into the unit in its place",
            )
        return self.whole.get(name, "")


async def read_environment(scope: Scope, unit: str, properties: Properties) -> UnitEnvironment:
    """Work out a unit's environment from its settings and environment files as they are now.

    Raises UnitError for an environment file that would keep the unit from starting.
    """
    version, manager = await asyncio.gather(scope.version(), scope.manager("Environment"))
    whole, untold = await brought(scope, unit, properties, assignments(manager.texts("Environment")), version)
    own = assignments(properties.texts("Environment"))
    files: dict[str, bytes] = {}
    missing: list[str] = []
    for row in properties.rows("EnvironmentFiles"):
        pattern, optional = str(row[0]), bool(row[1])
        found = await _read_files(scope, unit, pattern, optional)
        if not found:
            missing.append(pattern)
        files |= found
        for path, content in found.items():
            own |= _parsed(unit, path, content, version, optional)
    for entry in properties.texts("UnsetEnvironment"):
        name, separator, value = entry.partition("=")
        for variables in (own, whole):
            if not separator or variables.get(name) == value:
                variables.pop(name, None)
    return UnitEnvironment(own, {**whole, **own}, files, tuple(missing), frozenset(untold - own.keys()))


def _parsed(unit: str, path: str, content: bytes, version: int, optional: bool) -> dict[str, str]:
    try:
        return parse_environment(content, version=version)
    except ValueError as error:
        if optional:
            return {}
        raise UnitError(f"environment file {path}: {error}; systemd would not start the unit", unit=unit) from error


async def _is_directory(scope: Scope, path: str) -> bool:
    return (await scope.host.run(["test", "-d", path], check=False)).status == 0


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
            if optional and (error.reason == "missing" or await _is_directory(scope, path)):
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
