"""A server's flags as a table: their names, arity and kind, and how a list of words is read with it."""

import difflib
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = ["Flag", "FlagTable", "Kind", "Occurrence", "canonical"]

_NEGATIVE_NUMBER = re.compile(r"-\d+(\.\d*)?|-\.\d+")


class Kind(Enum):
    """How many words a flag takes and what they are."""

    SWITCH = "switch"
    PAIR = "pair"
    VALUE = "value"
    OPTIONAL = "optional"
    LIST = "list"
    JSON = "json"
    TEXT_OR_JSON = "text-or-json"
    UNKNOWN = "unknown"

    @property
    def is_json(self) -> bool:
        """True when the value may be JSON and the flag has a dotted form."""
        return self in {Kind.JSON, Kind.TEXT_OR_JSON}


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: `name` without leading dashes, `aliases` as they are typed; `since`, `until` are engine versions."""

    name: str
    kind: Kind
    aliases: tuple[str, ...] = ()
    since: str = ""
    until: str = ""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One use of a flag in a list of words: words[start:stop].

    `path` is the rest of a dotted spelling (`method` of `--speculative-config.method`), `values` the words it was
    given, `negated` is true for the `--no-` form.
    """

    flag: Flag
    start: int
    stop: int
    spelling: str
    values: tuple[str, ...]
    path: str = ""
    negated: bool = False


@dataclass(frozen=True, slots=True)
class FlagTable:
    """All flags of one kind of server.

    `abbreviates` says that a unique prefix of a long name counts, as argparse has it; `takes_equals` that
    `--flag=value` is understood.
    """

    flags: Mapping[str, Flag]
    abbreviates: bool = True
    takes_equals: bool = True
    _aliases: Mapping[str, Flag] = field(default_factory=dict)
    _sorted: Sequence[str] = ()

    @classmethod
    def of(cls, flags: Iterable[Flag], *, abbreviates: bool = True, takes_equals: bool = True) -> "FlagTable":
        """Build a table; later flags of one name win."""
        by_name = {flag.name: flag for flag in flags}
        aliases = {alias: flag for flag in by_name.values() for alias in flag.aliases}
        return cls(by_name, abbreviates, takes_equals, aliases, sorted(by_name))

    @classmethod
    def from_lines(cls, text: str, *, abbreviates: bool = True) -> "FlagTable":
        """Read a table of one JSON object a line: name, kind, aliases, since, until."""
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        return cls.of(
            (
                Flag(
                    row["name"],
                    Kind(row["kind"]),
                    tuple(row.get("aliases", ())),
                    row.get("since", ""),
                    row.get("until", ""),
                )
                for row in rows
            ),
            abbreviates=abbreviates,
        )

    def find(self, name: str) -> Flag:
        """Return the flag called so in any spelling; one of kind UNKNOWN if the table has none."""
        bare = canonical(name)
        if known := self.flags.get(bare) or self._aliases.get(name) or self._aliases.get(f"--{bare}"):
            return known
        if not name.startswith("-") and (known := self._aliases.get(f"-{name}")):
            return known
        if self.abbreviates and len(bare) > 2:
            place = bisect_left(self._sorted, bare)
            longer = [name for name in self._sorted[place : place + 2] if name.startswith(bare)]
            if len(longer) == 1:
                return self.flags[longer[0]]
        return Flag(bare, Kind.UNKNOWN)

    def nearest(self, name: str) -> str:
        """Return the valid name that looks most like this one, "" if none does."""
        close = difflib.get_close_matches(canonical(name), self.flags, n=1, cutoff=0.6)
        return close[0] if close else ""

    def occurrences(self, words: Sequence[str]) -> Iterator[Occurrence]:
        """Yield each use of a flag, in order; what is between them is positional."""
        at = 0
        while at < len(words) and words[at] != "--":
            if not self.is_flag(words[at]):
                at += 1
                continue
            occurrence = self._occurrence(words, at)
            yield occurrence
            at = occurrence.stop

    def positionals(self, words: Sequence[str]) -> list[int]:
        """Return the places of the words that belong to no flag."""
        taken = {place for use in self.occurrences(words) for place in range(use.start, use.stop)}
        return [place for place, word in enumerate(words) if place not in taken and word != "--"]

    def is_flag(self, word: str) -> bool:
        """True for a word that argparse would take for a flag: it starts with a dash and is no negative number."""
        if word.startswith("--"):
            return len(word) > 2
        return len(word) > 1 and word.startswith("-") and not _NEGATIVE_NUMBER.fullmatch(word)

    def _occurrence(self, words: Sequence[str], at: int) -> Occurrence:
        spelling, has_equals, inline = words[at].partition("=")
        flag, path, negated, glued = self._resolve(spelling)
        if glued:
            return Occurrence(flag, at, at + 1, spelling, (glued + (f"={inline}" if has_equals else ""),))
        if has_equals:
            return Occurrence(flag, at, at + 1, spelling, (inline,), path, negated)
        stop = at + 1 if negated else self._end_of_values(flag, path, words, at + 1)
        return Occurrence(flag, at, stop, spelling, tuple(words[at + 1 : stop]), path, negated)

    def _resolve(self, spelling: str) -> tuple[Flag, str, bool, str]:
        """Return the flag, its dotted path, whether it is the --no- form, and a value glued to a short name (-O3)."""
        head, _, path = spelling.partition(".")
        if not head.startswith("--"):
            if head in self._aliases:
                return self._aliases[head], path, False, ""
            if head[:2] in self._aliases and len(head) > 2 and head[2:].isdigit():
                return self._aliases[head[:2]], "", False, head[2:]
            return Flag(head.lstrip("-"), Kind.UNKNOWN), path, False, ""
        flag = self.find(head)
        if flag.kind is Kind.UNKNOWN and flag.name.startswith("no-"):
            positive = self.find(flag.name[3:])
            if positive.kind in {Kind.PAIR, Kind.SWITCH}:
                return positive, path, True, ""
        return flag, path, False, ""

    def _end_of_values(self, flag: Flag, path: str, words: Sequence[str], first: int) -> int:
        """Return where the flag's own words end; `first` is the place after its name."""
        if flag.kind in {Kind.SWITCH, Kind.PAIR}:
            return first
        if flag.kind is Kind.LIST and not path:
            stop = first
            while stop < len(words) and not self.is_flag(words[stop]) and words[stop] != "--":
                stop += 1
            return stop
        follows = first < len(words) and words[first] != "--"
        if flag.kind in {Kind.UNKNOWN, Kind.OPTIONAL} and not path:
            return first + 1 if follows and not self.is_flag(words[first]) else first
        # A value may look like a flag only where the engine's own parser would refuse it.
        return first + 1 if follows and not words[first].startswith("--") else first


def canonical(name: str) -> str:
    """Return a flag's name without dashes in front, with dashes inside; a dotted path keeps its spelling."""
    head, dot, path = name.lstrip("-").partition(".")
    return head.replace("_", "-") + dot + path


def nested_update(target: dict[str, Any], path: str, text: str) -> None:
    """Set a dotted key of a JSON object from a command line's text, in vLLM's way: JSON where it parses, else text."""
    *parents, last = path.split(".")
    for parent in parents:
        inner = target.get(parent)
        if not isinstance(inner, dict):
            inner = target[parent] = {}
        target = inner
    if last.endswith("+"):
        existing = target.get(last[:-1])
        target[last[:-1]] = [*(existing if isinstance(existing, list) else []), *text.split(",")]
        return
    try:
        target[last] = json.loads(text)
    except json.JSONDecodeError:
        target[last] = text
