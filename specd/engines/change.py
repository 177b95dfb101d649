"""Reading a server's flags into values, and setting, replacing or removing them in its list of words."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from specd.engines.engine import FileFlags, FlagValue
from specd.engines.flags import Flag, FlagTable, Kind, Occurrence, canonical, nested_update
from specd.errors import EngineError

__all__ = ["changed_words", "over_file", "read_flags", "rendered"]

_QUOTES = ("'", '"')


def read_flags(table: FlagTable, words: Sequence[str]) -> dict[str, Any]:
    """Return each flag's value as the server would take it: the last use wins, dotted keys are merged.

    JSON is decoded where it parses and is the text itself where it does not; a bare switch is True, its `--no-` form
    False; a list flag is a list of words.
    """
    values: dict[str, Any] = {}
    dotted: dict[tuple[str, str], dict[str, Any]] = {}
    for use in table.occurrences(words):
        if use.path:
            spelled = canonical(use.spelling.partition(".")[0])
            keys = dotted.setdefault((use.flag.name, spelled), {})
            nested_update(keys, use.path, use.values[0] if use.values else "true")
        else:
            values[use.flag.name] = _value(use)
    # vLLM collects dotted keys by the flag's spelling and puts them behind all else: the last spelling wins whole.
    return {**values, **{name: keys for (name, _), keys in dotted.items()}}


def _value(use: Occurrence) -> Any:
    if use.negated:
        return False
    if use.flag.kind is Kind.LIST:
        return list(use.values)
    if not use.values:
        return True
    text = use.values[0]
    if use.flag.kind in {Kind.SWITCH, Kind.PAIR}:
        return text.lower() not in {"false", "0", "no"}
    if use.flag.kind.is_json:
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text
    return text


def changed_words(table: FlagTable, words: Sequence[str], flags: Mapping[str, FlagValue]) -> list[str]:
    """Return the words with each flag set once, in place of all its spellings, or removed.

    A new value stands where the flag stood first, or at the end. Raises EngineError for a value that can't be that
    flag's, and for two names of one flag.
    """
    changed = list(words)
    named: dict[str, str] = {}
    for name, value in flags.items():
        flag, path, wanted = _target(table, name, value)
        spelled = _spelling(flag, name)
        key = f"{flag.name}.{path}"
        if key in named:
            raise EngineError(f"{named[key]} and {name} name the same flag")
        named[key] = name
        changed = _set_key(table, changed, flag, path, wanted) if path else _set(table, changed, flag, wanted, spelled)
    return changed


def over_file(
    table: FlagTable, words: Sequence[str], flags: Mapping[str, FlagValue], file_flags: FileFlags
) -> dict[str, FlagValue]:
    """Return the changes as the command line has to make them, which wins over a file as a whole.

    Raises EngineError for a flag that is to go and stands in the file, where only an editor reaches it.
    """
    made: dict[str, FlagValue] = {}
    given = {use.flag.name for use in table.occurrences(words)}
    for name, value in flags.items():
        flag, path, wanted = _target(table, name, value)
        in_file = file_flags.flags.get(flag.name)
        if flag.name not in file_flags.flags:
            made[name] = value
        elif path and flag.name not in given and isinstance(in_file, dict):
            whole = made.setdefault(flag.name, json.loads(json.dumps(in_file)))
            if isinstance(whole, dict):
                _put(whole, flag, path, wanted)
        elif wanted is None and not path:
            raise EngineError(
                f"--{flag.name} stands in {file_flags.where(flag.name)}, so it can't be removed from the command line",
                next_step=f"give it the value that it has by default, or take it out of {file_flags.path}",
            )
        else:
            made[name] = value
    return made


def _put(whole: dict[str, Any], flag: Flag, path: str, value: FlagValue) -> None:
    """Set or remove a key inside a JSON object."""
    *parents, last = path.split(".")
    target = whole
    for parent in parents:
        inner = target.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise EngineError(f"{parent} inside --{flag.name} is no object")
        target = inner
    if value is None:
        target.pop(last, None)
    else:
        target[last] = value


def _target(table: FlagTable, name: str, value: FlagValue) -> tuple[Flag, str, FlagValue]:
    """Return the flag that a change's name means, its dotted path, and the value; `no-x = true` is `x = false`."""
    if not name.strip("-") or any(character.isspace() or character in "=\0" for character in name):
        raise EngineError(f"{name!r} is no name of a flag")
    head, _, path = name.partition(".")
    flag = table.find(head)
    if flag.kind is Kind.UNKNOWN and canonical(head).startswith("no-"):
        positive = table.find(canonical(head)[3:])
        if positive.kind in {Kind.PAIR, Kind.SWITCH}:
            if not isinstance(value, bool):
                raise EngineError(f"--{flag.name} is a switch: true, false or null, not {value!r}")
            return positive, "", not value
    if path and not (flag.kind.is_json or flag.kind is Kind.UNKNOWN):
        raise EngineError(f"--{flag.name} has no keys inside, so {name} can't be set")
    return flag, path, None if value == "null" else value


def _spelling(flag: Flag, name: str) -> str:
    """Return the long name to write: an alias that was asked for by name stays, since versions differ in names."""
    asked = f"--{canonical(name.partition('.')[0])}"
    return asked if asked in flag.aliases else f"--{flag.name}"


def _set(table: FlagTable, words: list[str], flag: Flag, value: FlagValue, spelled: str) -> list[str]:
    new = [] if value is None else rendered(flag, value, spelled, joins=table.takes_equals)
    uses = [use for use in table.occurrences(words) if use.flag.name == flag.name]
    kept = [word for place, word in enumerate(words) if not any(use.start <= place < use.stop for use in uses)]
    if not new:
        return kept
    place = uses[0].start if uses else len(kept)
    # A flag that takes words until the next flag would swallow a positional word behind it.
    if place < len(kept) and not table.is_flag(kept[place]):
        place = len(kept)
    if "--" in kept:
        place = min(place, kept.index("--"))
    return [*kept[:place], *new, *kept[place:]]


def _set_key(table: FlagTable, words: list[str], flag: Flag, path: str, value: FlagValue) -> list[str]:
    """Set or remove one key inside a JSON flag; the flag ends up in its plain form, once."""
    present = read_flags(table, words).get(flag.name, {})
    if not isinstance(present, dict):
        raise EngineError(f"--{flag.name} is not a JSON object on this command line, so no key of it can be set")
    whole: dict[str, Any] = json.loads(json.dumps(present))
    _put(whole, flag, path, value)
    return _set(table, words, flag, whole or None, f"--{flag.name}")


def rendered(flag: Flag, value: FlagValue, name: str = "", *, joins: bool = True) -> list[str]:
    """Return the words that give a flag this value, [] where its absence says it; raises EngineError.

    `name` is how to spell it (its own name by default); `joins` says that the server understands `--flag=value`.
    """
    name = name or f"--{flag.name}"
    if isinstance(value, bool):
        return _switch(flag, value)
    if flag.kind in {Kind.SWITCH, Kind.PAIR}:
        raise EngineError(f"{name} is a switch: true, false or null, not {value!r}")
    if isinstance(value, list) and not _is_json_list(flag, value):
        return [name, *(_scalar(flag, item) for item in value)] if value else []
    text = _json(flag, value) if isinstance(value, dict | list) else _scalar(flag, value)
    # The server's parser takes a word that starts with a dash for the next flag.
    return [f"{name}={text}"] if joins and text.startswith("-") else [name, text]


def _switch(flag: Flag, value: bool) -> list[str]:
    match flag.kind:
        case Kind.PAIR | Kind.UNKNOWN:
            return [f"--{flag.name}" if value else f"--no-{flag.name}"]
        case Kind.SWITCH | Kind.OPTIONAL:
            return [f"--{flag.name}"] if value else []
        case _:
            raise EngineError(f"--{flag.name} takes a value, not {str(value).lower()}")


def _is_json_list(flag: Flag, value: list[Any]) -> bool:
    if flag.kind is Kind.LIST:
        return False
    return flag.kind is not Kind.UNKNOWN or any(isinstance(item, dict | list) for item in value)


def _json(flag: Flag, value: dict[str, Any] | list[Any]) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise EngineError(f"the value of --{flag.name} can't be written as JSON: {error}") from None


def _scalar(flag: Flag, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        if not math.isfinite(value):
            raise EngineError(f"--{flag.name} can't be {value}")
        return repr(value)
    if not isinstance(value, int | str):
        raise EngineError(f"--{flag.name} can't be {value!r}")
    text = str(value)
    if "\0" in text:
        raise EngineError(f"the value of --{flag.name} holds a NUL character")
    if flag.kind.is_json and text.lstrip().startswith(_QUOTES):
        raise EngineError(
            f"the value of --{flag.name} begins with a quote character: {text[:40]!r}",
            next_step="write it as a table, or as JSON without quotes around it",
        )
    return text
