"""What systemd says of itself over D-Bus, read through busctl's JSON: true lists, not text joined by spaces."""

import json
import re
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

from specd.errors import BadAnswer, CommandFailed, HostUnreachable, UnitError
from specd.hosts.host import Completed, Host

__all__ = ["Bus", "ExecCommand", "Properties", "asked", "check_unit_name", "microseconds"]

SERVICE = "org.freedesktop.systemd1"
ROOT = "/org/freedesktop/systemd1"
_INFINITY = 2**64 - 1
_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:-_.\\@")
_FLAG_PREFIX = {"ignore-failure": "-", "no-env-expand": ":", "privileged": "+", "no-setuid": "!", "ambient": "!!"}


def check_unit_name(name: str) -> str:
    """Return a service's full name; raises UnitError for what is no name of a service unit."""
    if not name or len(name) > 255 or not set(name) <= _NAME_CHARS or name.startswith("-"):
        raise UnitError(f"{name!r} is not the name of a unit", unit=name)
    stem, dot, kind = name.rpartition(".")
    if not dot or kind not in _KINDS:
        return check_unit_name(name + ".service")
    if kind != "service":
        raise UnitError(f"{name} is a {kind} unit, not a service", unit=name, next_step="name the service unit itself")
    if stem.endswith("@") or not stem:
        raise UnitError(f"{name} is a template; name one of its instances", unit=name)
    return name


_KINDS = frozenset(
    {"service", "socket", "target", "timer", "path", "mount", "automount", "swap", "slice", "scope", "device"}
)


def object_path(unit: str) -> str:
    """Return the D-Bus path of a unit."""
    escaped = "".join(
        char if char.isascii() and char.isalnum() and (place or not char.isdigit()) else f"_{ord(char):02x}"
        for place, char in enumerate(unit)
    )
    return f"{ROOT}/unit/{escaped}"


def microseconds(value: int) -> str:
    """Return a time span property as seconds with "s", or "infinity"."""
    return "infinity" if value >= _INFINITY else f"{value / 1e6:g}s"


@dataclass(frozen=True, slots=True)
class ExecCommand:
    """One command of an Exec*= setting before variables are expanded; `flags` as systemd names them."""

    path: str
    argv: tuple[str, ...]
    flags: frozenset[str]

    @property
    def expands(self) -> bool:
        """Whether $VARIABLES in it are expanded."""
        return "no-env-expand" not in self.flags

    @property
    def prefix(self) -> str:
        """Return the prefix characters it was written with; `?` is for those of a newer systemd."""
        own_name = "@" if self.argv and self.argv[0] != self.path else ""
        unknown = "?" if self.flags - _FLAG_PREFIX.keys() else ""
        return own_name + "".join(mark for flag, mark in _FLAG_PREFIX.items() if flag in self.flags) + unknown


class Properties:
    """All properties of one unit at one moment; a property this systemd does not know reads as empty."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def value(self, name: str) -> Any:
        """Return a property as it came, None for one that is not known."""
        return self._values.get(name)

    def text(self, name: str) -> str:
        value = self._values.get(name, "")
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> int:
        value = self._values.get(name, 0)
        return value if isinstance(value, int) else 0

    def flag(self, name: str) -> bool:
        return self._values.get(name) is True

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._values.get(name)
        return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()

    def rows(self, name: str) -> list[list[Any]]:
        value = self._values.get(name)
        return [row for row in value if isinstance(row, list)] if isinstance(value, list) else []

    def commands(self, name: str) -> list[ExecCommand]:
        """Return the commands of ExecStart and its like; flags come from the Ex form where there is one."""
        if f"{name}Ex" in self._values:
            return [ExecCommand(row[0], tuple(row[1]), frozenset(row[2])) for row in self.rows(f"{name}Ex")]
        return [
            ExecCommand(row[0], tuple(row[1]), frozenset({"ignore-failure"} if row[2] else ()))
            for row in self.rows(name)
        ]


# What systemctl and busctl say while systemd executes itself anew: what was asked for may have happened or not.
_AWAY = re.compile(
    r"Connection reset by peer|disconnected from message bus|Remote peer disconnected|did not receive a reply"
    r"|Transport endpoint is not connected|Could not activate remote peer|Connection timed out|Connection terminated"
)


async def asked(host: Host, run: Awaitable[Completed]) -> Completed:
    """Await a command that speaks to systemd; raises HostUnreachable when systemd was away, as when it executes itself
    anew."""
    try:
        done = await run
    except CommandFailed as error:
        if not _AWAY.search(error.stderr):
            raise
        said = error.stderr
    else:
        if done.status == 0 or not _AWAY.search(done.error_text):
            return done
        said = done.error_text
    raise HostUnreachable(f"systemd of {host.name} does not answer just now: {said.strip()[:200]}", host=host.name)


class Bus:
    """The systemd of one scope on one host, asked over D-Bus."""

    def __init__(self, host: Host, scope: str) -> None:
        self._host = host
        self._flags = ["--user"] if scope == "user" else []

    async def unit(self, name: str, *, env: Mapping[str, str] | None) -> Properties:
        """Read all properties of a unit, loading it if need be."""
        arguments = [object_path(name), "org.freedesktop.DBus.Properties", "GetAll", "s", ""]
        call = ["busctl", *self._flags, "--json=short", "call", SERVICE, *arguments]
        done = await asked(self._host, self._host.run(call, env=env))
        answer = _json_line(done, done.text)
        try:
            values = {key: item["data"] for key, item in answer["data"][0].items()}
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise BadAnswer(f"busctl gave no properties for {name}", host=self._host.name) from error
        return Properties(values)

    async def manager(self, *names: str, env: Mapping[str, str] | None) -> Properties:
        """Read properties of the manager itself."""
        arguments = [ROOT, f"{SERVICE}.Manager", *names]
        call = ["busctl", *self._flags, "--json=short", "get-property", SERVICE, *arguments]
        done = await asked(self._host, self._host.run(call, env=env))
        lines = [line for line in done.text.split("\n") if line]
        if len(lines) != len(names):
            raise BadAnswer(f"busctl gave {len(lines)} properties of {len(names)}", host=self._host.name)
        return Properties({name: _json_line(done, line).get("data") for name, line in zip(names, lines, strict=True)})


def _json_line(done: Completed, line: str) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise BadAnswer(f"{done.argv[0]} printed no JSON: {line[:200]!r}") from error
    if not isinstance(answer, dict):
        raise BadAnswer(f"{done.argv[0]} printed no JSON object: {line[:200]!r}")
    return answer
