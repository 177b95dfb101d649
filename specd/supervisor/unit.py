"""The unit file of the embedded supervisor: its form, its checks, and the environment it makes."""

import hashlib
import json
import os
import pwd
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "DEFAULT_STOP_TIMEOUT_S",
    "BadUnit",
    "UnitFile",
    "base_environment",
    "normal_name",
    "parse_environment_file",
    "parse_unit",
    "read_environment",
    "render_unit",
    "stem",
]

DEFAULT_STOP_TIMEOUT_S = 90.0
SUFFIX = ".service"
KEYS = {
    "argv",
    "description",
    "enabled",
    "environment",
    "environment_files",
    "restart",
    "stop_timeout_s",
    "working_directory",
    "x_specd",
}
NAME = re.compile(r"[A-Za-z0-9_:@][A-Za-z0-9_:@.\\-]{0,200}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ESCAPED_IN_QUOTES = '"\\`$'
PATH_DEFAULT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class BadUnit(Exception):
    """A unit file, a unit's name or one of its environment files is not as it must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFile:
    """A unit as its file says it; `digest` is the file's sha256, `trial` and `installation` are specd's mark or ""."""

    name: str
    path: str
    digest: str
    argv: tuple[str, ...]
    description: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    environment_files: tuple[str, ...] = ()
    working_directory: str = ""
    stop_timeout_s: float = DEFAULT_STOP_TIMEOUT_S
    restart: str = "no"
    enabled: bool = False
    trial: str = ""
    installation: str = ""


def normal_name(name: str) -> str:
    """Return a unit's full name, ending in .service; raises BadUnit for one that could leave its directory."""
    full = name if name.endswith(SUFFIX) else name + SUFFIX
    if not NAME.fullmatch(full):
        raise BadUnit(f"{name!r} is no name for a unit")
    return full


def stem(name: str) -> str:
    """Return a unit's name without .service."""
    return name.removesuffix(SUFFIX)


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise BadUnit(f"{key} must be text without NUL bytes")
    return value


def _texts(value: Any, key: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise BadUnit(f"{key} must be a list of texts")
    return tuple(_text(item, f"{key}[{index}]") for index, item in enumerate(value))


def _variables(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise BadUnit("environment must be an object of texts")
    for name in value:
        if not VARIABLE.fullmatch(name):
            raise BadUnit(f"environment: {name!r} is no name for a variable")
    return {name: _text(item, f"environment.{name}") for name, item in value.items()}


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 86400:
        raise BadUnit("stop_timeout_s must be a number of seconds above 0 and below a day")
    return float(value)


def _mark(value: Any) -> tuple[str, str]:
    if not isinstance(value, dict) or set(value) != {"trial", "installation"}:
        raise BadUnit("x_specd must hold trial and installation, and nothing else")
    return _text(value["trial"], "x_specd.trial"), _text(value["installation"], "x_specd.installation")


def parse_unit(name: str, content: bytes, path: str) -> UnitFile:
    """Read a unit file; raises BadUnit naming the key at fault, unknown keys included."""
    try:
        raw = json.loads(content)
    except ValueError as error:
        raise BadUnit(f"not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise BadUnit("not a JSON object")
    if unknown := sorted(set(raw) - KEYS):
        raise BadUnit(f"unknown key {unknown[0]!r}; known are {', '.join(sorted(KEYS))}")
    argv = _texts(raw.get("argv"), "argv")
    if not argv or not argv[0]:
        raise BadUnit("argv must name a program")
    if raw.get("restart", "no") not in {"no", "on-failure"}:
        raise BadUnit("restart must be no or on-failure")
    if not isinstance(raw.get("enabled", False), bool):
        raise BadUnit("enabled must be true or false")
    directory = _text(raw.get("working_directory", ""), "working_directory")
    if directory and not directory.startswith("/"):
        raise BadUnit("working_directory must be an absolute path")
    files = _texts(raw.get("environment_files", []), "environment_files")
    if not all(item.removeprefix("-").startswith("/") for item in files):
        raise BadUnit("environment_files must be absolute paths, with a - in front where one may be missing")
    trial, installation = _mark(raw["x_specd"]) if "x_specd" in raw else ("", "")
    return UnitFile(
        name=name,
        path=path,
        digest=hashlib.sha256(content).hexdigest(),
        argv=argv,
        description=_text(raw.get("description", ""), "description"),
        environment=_variables(raw.get("environment", {})),
        environment_files=files,
        working_directory=directory,
        stop_timeout_s=_seconds(raw.get("stop_timeout_s", DEFAULT_STOP_TIMEOUT_S)),
        restart=raw.get("restart", "no"),
        enabled=raw.get("enabled", False),
        trial=trial,
        installation=installation,
    )


def render_unit(unit: UnitFile) -> bytes:
    """Return the bytes of a unit's file, such that parse_unit gives the same unit again."""
    raw: dict[str, Any] = {
        "description": unit.description,
        "argv": list(unit.argv),
        "environment": dict(unit.environment),
        "working_directory": unit.working_directory,
        "stop_timeout_s": unit.stop_timeout_s,
        "restart": unit.restart,
        "enabled": unit.enabled,
    }
    if unit.environment_files:
        raw["environment_files"] = list(unit.environment_files)
    if unit.trial:
        raw["x_specd"] = {"trial": unit.trial, "installation": unit.installation}
    return json.dumps(raw, indent=2, ensure_ascii=False).encode() + b"\n"


def base_environment() -> dict[str, str]:
    """Return what every unit gets before its own settings: a clean, small environment, not the supervisor's own."""
    user = pwd.getpwuid(os.getuid())
    base = {
        "PATH": PATH_DEFAULT,
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": user.pw_shell or "/bin/sh",
    }
    for name in ("LANG", "XDG_RUNTIME_DIR"):
        if value := os.environ.get(name):
            base[name] = value
    return base


def read_environment(unit: UnitFile) -> tuple[dict[str, str], dict[str, str]]:
    """Return the unit's own environment, files after settings, and each file's sha256; raises BadUnit."""
    environment = dict(unit.environment)
    digests: dict[str, str] = {}
    for item in unit.environment_files:
        path = item.removeprefix("-")
        try:
            content = Path(path).read_bytes()
        except FileNotFoundError:
            if item.startswith("-"):
                continue
            raise BadUnit(f"environment file {path} is missing") from None
        except OSError as error:
            raise BadUnit(f"environment file {path}: {error.strerror}") from None
        digests[path] = hashlib.sha256(content).hexdigest()
        environment |= parse_environment_file(content.decode(errors="replace"))
    return environment, digests


def parse_environment_file(text: str) -> dict[str, str]:
    """Read KEY=VALUE lines by systemd's rules: quotes and backslashes, comments at line start only, no expansion."""
    variables: dict[str, str] = {}
    at = 0
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        line = text[at:end].lstrip()
        equals = text.find("=", at, end)
        if not line or line[0] in "#;" or equals < 0:
            at = end + 1
            continue
        name = text[at:equals].strip()
        value, at = _read_value(text, equals + 1)
        if VARIABLE.fullmatch(name) and "\0" not in value:
            variables[name] = value
    return variables


def _read_value(text: str, at: int) -> tuple[str, int]:
    """Read one value up to its unquoted newline; return it and where the next line starts."""
    out: list[str] = []
    kept = 0  # how much of `out` trailing blanks can't be stripped from
    quote = ""
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\n" and not quote:
            break
        if char == "\\" and quote != "'" and at < len(text):
            following = text[at]
            at += 1
            if following == "\n":
                continue
            if quote and following not in ESCAPED_IN_QUOTES:
                out.append("\\")
            out.append(following)
            kept = len(out)
        elif quote:
            if char == quote:
                quote = ""
            else:
                out.append(char)
            kept = len(out)
        elif char in "\"'" and kept == len(out):
            quote = char
        elif char in " \t\r" and not out:
            continue
        else:
            out.append(char)
            if char not in " \t\r":
                kept = len(out)
    return "".join(out[:kept]), at
