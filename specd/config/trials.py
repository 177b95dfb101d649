"""Reads a trial file: [[trial]] tables with flags and environment changes, where null removes."""

import re
from pathlib import Path
from typing import Any

from specd.config.document import Document, Null, parse
from specd.config.load import missing
from specd.config.record import kind_of, read_record
from specd.config.scan import KeyPath
from specd.settings import Config, FlagValue, TrialSpec

__all__ = ["parse_trials"]

_FLAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_trials(text: str, file: str, config: Config) -> list[TrialSpec]:
    """Read the trials of a trial file's text; raises ConfigError with every problem in it.

    Flags are written with or without leading dashes and with dashes or underscores; they come out as the engine seam
    wants them. null removes a flag or a variable, bare or as the string "null".
    """
    document = parse(text, file, with_null=True)
    for key in [key for key in document.table if key != "trial"]:
        document.complain((key,), "unknown key; a trial file holds [[trial]] tables only")
    tables = document.table.get("trial", [])
    if isinstance(tables, dict):
        document.complain(("trial",), "write [[trial]], with two brackets: a file holds a list of trials")
        tables = []
    elif not isinstance(tables, list) or not tables:
        document.complain(("trial",) if "trial" in document.table else (), "holds no [[trial]] table")
        tables = []
    specs = [_read_trial(table, ("trial", number), document, config) for number, table in enumerate(tables)]
    _check_names(specs, document)
    document.finish()
    return specs


def _read_trial(table: Any, path: KeyPath, document: Document, config: Config) -> TrialSpec:
    prepared = _prepared(table, path, document) if isinstance(table, dict) else table
    spec = read_record(TrialSpec, prepared, path, document, Path.cwd(), {"rehearsal": False})
    _check_references(spec, path, document, config)
    return spec


def _prepared(table: dict[str, Any], path: KeyPath, document: Document) -> dict[str, Any]:
    """Return the trial's table with its flags and variables in their final form."""
    prepared = dict(table)
    if isinstance(table.get("flags"), dict):
        prepared["flags"] = _read_flags(table["flags"], (*path, "flags"), document)
    if isinstance(table.get("env"), dict):
        prepared["env"] = _read_env(table["env"], (*path, "env"), document)
    return prepared


def _read_flags(table: dict[str, Any], path: KeyPath, document: Document) -> dict[str, FlagValue]:
    flags: dict[str, FlagValue] = {}
    written: dict[str, str] = {}
    for key, value in table.items():
        head, dot, rest = key.lstrip("-").partition(".")
        flag = head.replace("_", "-") + dot + rest
        if not _FLAG.fullmatch(flag):
            document.complain((*path, key), "is not a flag's name")
        elif flag in written:
            document.complain((*path, key), f"is the same flag as {written[flag]}")
        else:
            written[flag] = key
            flags[flag] = None if value == "null" else value
            if flag != key:
                _share_lines((*path, key), (*path, flag), document)
    return flags


def _share_lines(written: KeyPath, meant: KeyPath, document: Document) -> None:
    """Let problems inside a flag's value be found under the flag's final name too."""
    lines = document.scan.lines
    for path, line in list(lines.items()):
        if path[: len(written)] == written:
            lines.setdefault((*meant, *path[len(written) :]), line)


def _read_env(table: dict[str, Any], path: KeyPath, document: Document) -> dict[str, str | None]:
    variables: dict[str, str | None] = {}
    for name, value in table.items():
        if not _ENV.fullmatch(name):
            document.complain((*path, name), "is not the name of an environment variable")
        elif isinstance(value, Null) or value == "null":
            variables[name] = None
        elif not isinstance(value, str):
            document.complain((*path, name), f"must be a string, not {kind_of(value)}: put it in quotes")
        elif "\0" in value:
            document.complain((*path, name), "must not hold a NUL character: no variable can")
        else:
            variables[name] = value
    return variables


def _check_references(spec: TrialSpec, path: KeyPath, document: Document, config: Config) -> None:
    if spec.service not in config.services and document.is_sound((*path, "service")):
        document.complain((*path, "service"), missing("service", spec.service, config.services))
    if spec.benchmark and spec.benchmark not in config.benchmarks:
        document.complain((*path, "benchmark"), missing("benchmark plan", spec.benchmark, config.benchmarks))


def _check_names(specs: list[TrialSpec], document: Document) -> None:
    seen: dict[str, int] = {}
    for number, spec in enumerate(specs):
        if spec.name and seen.setdefault(spec.name, number) != number:
            line = document.scan.line(("trial", seen[spec.name]))
            document.complain(("trial", number, "name"), f"the trial at line {line} is called {spec.name} too")
