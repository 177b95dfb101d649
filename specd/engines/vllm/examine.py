"""What can be said of a vLLM command line before anything is started: by reading it, by looking at files, by asking."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from specd.checks import Check, CheckStatus
from specd.engines import masking
from specd.engines.asking import Question
from specd.engines.change import read_flags
from specd.engines.flags import Kind
from specd.engines.model_files import check_model
from specd.engines.vllm.command import FLAGS, parse, speculation_asked
from specd.engines.vllm.speculation import KNOWN_KEYS, REMOVED_KEYS, nearest_key
from specd.hosts.host import Host

__all__ = ["examine", "json_check"]

Ask = Callable[[Host, Question], Coroutine[Any, Any, list[Check]]]


_ACCEPTED = frozenset({CheckStatus.PASSED, CheckStatus.WARNING})


async def examine(host: Host, engine: str, question: Question, ask_engine: Ask) -> list[Check]:
    """Return all checks of one command line, the engine's own opinion last; raises HostUnreachable."""
    words = question.server_words
    command = parse(engine, question.argv, question.found)
    asked = speculation_asked(command)
    looks = [_model(host, "engine.model", command.model, question, command.flags.get("load-format") != "dummy")]
    draft = asked.get("model")
    if isinstance(draft, str) and draft not in {"ngram", "[ngram]"}:
        looks.append(_model(host, "engine.draft", draft, question, needs_weights=True))
    (opinion, *besides), files = await _side_by_side(ask_engine(host, question), looks)
    checks = [json_check(words), *files]
    if asked:
        checks.append(_keys_check(asked, opinion.status))
    checks.append(_flags_check(words, opinion.status))
    if any(word.startswith("--config=") for word in words):
        fix = "write --config FILE, in two words"
        checks.append(Check.warning("engine.config-file", "vLLM reads no file that is given as --config=FILE", fix))
    return [*checks, opinion, *besides]


async def _model(host: Host, name: str, model: str, question: Question, needs_weights: bool) -> Check:
    """Check a model's files, inside a container those that the host has bound into it."""
    if question.container is None:
        return await check_model(host, name, model, question.cwd, needs_weights=needs_weights)
    if (path := question.container.host_path(model)) is None:
        return Check.unchecked(name, f"{model} is inside the container {question.container.image}")
    return await check_model(host, name, path, "", needs_weights=needs_weights)


async def _side_by_side(
    asked: Coroutine[Any, Any, list[Check]], looks: Sequence[Coroutine[Any, Any, Check]]
) -> tuple[list[Check], list[Check]]:
    """Ask and look at the same time; when one raises, the others end before it is told."""
    opinion, tasks = asyncio.create_task(asked), [asyncio.create_task(look) for look in looks]
    try:
        return await opinion, await asyncio.gather(*tasks)
    finally:
        for task in (opinion, *tasks):
            task.cancel()
        await asyncio.gather(opinion, *tasks, return_exceptions=True)


def json_check(words: Sequence[str]) -> Check:
    """Check that each JSON flag's value is JSON."""
    broken: list[str] = []
    doubtful: list[str] = []
    count = 0
    secrets = masking.secrets_in(words)
    for use in FLAGS.occurrences(words):
        if not use.flag.kind.is_json or use.path or not use.values:
            continue
        count += 1
        text = use.values[0]
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            told = masking.mask(f"--{use.flag.name} {text[:80]!r}: {error.msg} at {error.pos}", secrets)
            looks_meant = text.lstrip()[:1] in {"{", "[", "'", '"'}
            if looks_meant:
                broken.append(told)
            elif use.flag.kind is Kind.JSON:
                doubtful.append(told)
    if broken:
        return Check.failed("engine.json", "; ".join(broken), "write the value as JSON, without quotes around it")
    if doubtful:
        return Check.warning("engine.json", "; ".join(doubtful), "only old versions take anything but JSON here")
    return Check.passed("engine.json", f"{count} JSON value{'s' if count != 1 else ''} can be read")


def _keys_check(asked: Mapping[str, Any], opinion: CheckStatus) -> Check:
    """Check the keys of the speculative configuration; the engine's own opinion outranks the table."""
    name = "engine.speculative-keys"
    if "unreadable" in asked:
        return Check.failed(name, "the speculative configuration can't be read", "write it as a table")
    unknown = [key for key in asked if key not in KNOWN_KEYS]
    if not unknown or opinion in _ACCEPTED:
        return Check.passed(name, ", ".join(asked))
    told: list[str] = []
    fixes: list[str] = []
    for key in unknown:
        if key in REMOVED_KEYS:
            told.append(f"{key} is gone since {REMOVED_KEYS[key]}")
            continue
        told.append(f"{key} is no key of --speculative-config")
        if near := nearest_key(key):
            fixes.append(f"did you mean {near}?")
    make = Check.failed if opinion is CheckStatus.FAILED else Check.warning
    return make(name, "; ".join(told), " ".join(fixes))


def _flags_check(words: Sequence[str], opinion: CheckStatus) -> Check:
    """Check the flags' names against the table of known ones, and for flags that stand twice."""
    unknown: list[str] = []
    seen: set[str] = set()
    twice: list[str] = []
    for use in FLAGS.occurrences(words):
        if use.flag.kind is Kind.UNKNOWN:
            unknown.append(use.spelling)
        if use.flag.name in seen and not use.path:
            twice.append(use.flag.name)
        seen.add(use.flag.name)
    if unknown and opinion not in _ACCEPTED:
        near = [f"{name}: did you mean --{close}?" for name in unknown if (close := FLAGS.nearest(name))]
        return Check.warning("engine.flags", f"not known here: {', '.join(unknown)}", " ".join(near))
    if twice:
        value = read_flags(FLAGS, words)
        shown = ", ".join(f"--{name} (the last one, {value[name]!r}, counts)" for name in dict.fromkeys(twice))
        return Check.warning("engine.flags", masking.mask(f"given twice: {shown}", masking.secrets_in(words)))
    return Check.passed("engine.flags", f"{len(seen)} flags")
