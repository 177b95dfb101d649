"""What a log line can mean, as data: stages and facts by pattern, terminal and harmless lines, failure classes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specd.engines.engine import Failure, Observation
from specd.engines.log_text import LineParser

__all__ = ["FailureRule", "LogRules", "StageRule", "classify", "facts_of"]


# argparse names a converter by its place in memory.
_FUNCTION = re.compile(r"<function ([\w.<>]+) at 0x[0-9a-f]+>")
_EXCEPTION_NAME = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception): ")


@dataclass(frozen=True, slots=True)
class StageRule:
    """A pattern matched at the start of a message, and what it says.

    Named groups become facts: `x_i` an integer with thousands separators, `x_f` a float, `x_gib` a size in GiB that
    becomes the fact `x_bytes`; `done` and `total` are progress. `finishes` says that the stage (or, with stage "",
    whatever stage has been reached) is over. `bar` marks one of several bars that add up.
    """

    pattern: re.Pattern[str]
    stage: str = ""
    finishes: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    bar: bool = False


@dataclass(frozen=True, slots=True)
class FailureRule:
    """A pattern searched in an error's text, and the class, sentence and hint it stands for.

    `sentence` may use the pattern's named groups and {line}, the error's own first line.
    """

    pattern: re.Pattern[str]
    kind: str
    sentence: str = "{line}"
    hint: str = ""
    transient: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRules:
    """All that a reader needs to know of one engine's log.

    `by_head` finds rules by a message's first word; `anywhere` are (substring, rule) pairs for messages that start
    with something variable. `terminal` matches messages after which no server will come or stay; `stop` those that
    announce a stop that was asked for; `harmless` the headers of errors that concern one request only; `generic` the
    errors that only point at another one; `died` those that tell of another process's end; `native` the fatal lines of
    libraries; `fatal` the exceptions after which an engine or worker is of no use even if its process stays;
    `entry_frame` the first frame of a program, which shows that nobody caught an exception. Where
    `repeats_prefix` is false, only the first line of a multi-line record has the prefix. `refusing_frame` is a frame of
    the code that judges settings: an exception raised there refuses one.
    """

    parse: LineParser
    by_head: Mapping[str, Sequence[StageRule]]
    anywhere: Sequence[tuple[str, StageRule]]
    terminal: re.Pattern[str]
    stop: re.Pattern[str]
    harmless: re.Pattern[str]
    generic: re.Pattern[str]
    died: re.Pattern[str]
    native: re.Pattern[str]
    fatal: re.Pattern[str]
    entry_frame: re.Pattern[str]
    failures: Sequence[FailureRule]
    repeats_prefix: bool = True
    refusing_frame: re.Pattern[str] | None = None


def facts_of(rule: StageRule, found: re.Match[str]) -> dict[str, Any]:
    """Return the facts in a match, by the names of its groups."""
    facts: dict[str, Any] = dict(rule.facts)
    for name, text in found.groupdict().items():
        if text is None or name in {"done", "total"}:
            continue
        if name.endswith("_i"):
            facts[name[:-2]] = int(text.replace(",", ""))
        elif name.endswith("_f"):
            facts[name[:-2]] = float(text.replace(",", ""))
        elif name.endswith("_gib"):
            facts[f"{name[:-4]}_bytes"] = int(float(text) * 2**30)
        else:
            facts[name] = text
    return facts


def observation(rule: StageRule, found: re.Match[str]) -> Observation:
    """Return what a matched line shows."""
    groups = found.groupdict()
    total = groups.get("total")
    return Observation(
        stage=rule.stage,
        done=float(groups["done"]) if total is not None else None,
        total=float(total) if total is not None else None,
        finished=rule.finishes,
        facts=facts_of(rule, found),
    )


def classify(rules: Sequence[FailureRule], text: str, lines: Sequence[str]) -> Failure | None:
    """Return the failure that an error's text stands for, None when no rule knows it."""
    first = text.split("\n", 1)[0].strip()
    for rule in rules:
        found = rule.pattern.search(text)
        if found is None:
            continue
        groups = {name: (value or "").strip() for name, value in found.groupdict().items()}
        # Behind words of ours the exception's name tells nothing more.
        line = first if rule.sentence.startswith("{line}") else _EXCEPTION_NAME.sub("", first)
        sentence = rule.sentence.format_map({"line": _shortened(line), **groups})
        return Failure(
            kind=rule.kind,
            sentence=_shortened(sentence),
            lines=tuple(lines),
            hint=rule.hint.format_map(groups),
            transient=rule.transient,
        )
    return None


def _shortened(text: str, longest: int = 300) -> str:
    text = _FUNCTION.sub(r"\1", text)
    return text if len(text) <= longest else text[: longest - 3] + "..."
