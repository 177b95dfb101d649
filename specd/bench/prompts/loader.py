"""Reads a prompt file: JSONL, one object a line, or a JSON list of such objects.

An object is `{"messages": [...]}` as in OpenAI's chat API, `{"prompt": "..."}`, or `{"conversations": [...]}` as in the
ShareGPT data sets (then without the last answer). Optional: "id" (unique; otherwise the number of the line or item),
"kind" (a label such as code; sets are mixed evenly by it) and "tools". ShareGPT objects may have other keys too.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specd.bench.prompts.prompt import Prompt
from specd.errors import BenchError

__all__ = ["read_file"]

_ROLES = ("system", "developer", "user", "assistant", "tool")
_KEYS = ("id", "kind", "messages", "prompt", "tools")
_SHAREGPT_ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant",
    "bard": "assistant", "assistant": "assistant", "system": "system",
}  # fmt: skip
_MAX_PROBLEMS = 8


def read_file(path: Path) -> tuple[Prompt, ...]:
    """Return a file's prompts; raises BenchError that names file, line and problem."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BenchError(f"can't read the prompt set {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BenchError(f"the prompt set {path} is not UTF-8 (byte {error.start})") from error
    if path.suffix == ".json" and text.lstrip().startswith("["):
        try:
            return _read(enumerate(json.loads(text), 1), f"{path}: item ")
        except ValueError as error:
            raise BenchError(f"the prompt set {path} is not JSON: {error}") from error
    # Not splitlines(): a prompt may hold U+2028 and other line ends that JSON leaves as they are.
    lines = ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())
    return _read(lines, f"{path}:")


def _read(items: Iterable[tuple[int, Any]], place: str) -> tuple[Prompt, ...]:
    """Read prompts from lines of JSON, or from objects."""
    prompts: dict[str, Prompt] = {}
    problems: list[str] = []
    for number, item in items:
        try:
            prompt = _prompt(json.loads(item) if isinstance(item, str) else item, number)
            if prompt is None:
                continue
            if prompt.id in prompts:
                raise ValueError(f"id {prompt.id!r} is there already")
            prompts[prompt.id] = prompt
        except ValueError as error:
            problems.append(f"{place}{number}: {error}")
    if problems:
        left = len(problems) - _MAX_PROBLEMS
        raise BenchError("\n".join(problems[:_MAX_PROBLEMS] + ([f"... and {left} more"] if left > 0 else [])))
    if not prompts:
        raise BenchError(f"the prompt set {place.rstrip(': item')} is empty")
    return tuple(prompts.values())


def _prompt(body: Any, number: int) -> Prompt | None:
    """Return a prompt; None for a ShareGPT conversation in which nobody asks anything."""
    if not isinstance(body, dict):
        raise ValueError("expected a JSON object")
    if "conversations" in body:
        turns = _turns(body["conversations"])
        # Ids of these data sets are not unique when conversations were cut in pieces.
        return Prompt(f"line-{number}", "", turns) if turns else None
    unknown = [key for key in body if key not in _KEYS]
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r} (known: {', '.join(_KEYS)})")
    if ("messages" in body) == ("prompt" in body):
        raise ValueError('needs either "messages" or "prompt"')
    name = body.get("id", f"line-{number}")
    if not isinstance(name, str) or not name or not name.isprintable() or "#" in name:
        raise ValueError('"id" must be a printable text without "#"')
    kind = body.get("kind", "")
    if not isinstance(kind, str):
        raise ValueError('"kind" must be a text')
    tools = _tools(body.get("tools", []))
    if "prompt" in body:
        if not isinstance(body["prompt"], str) or not body["prompt"].strip():
            raise ValueError('"prompt" must be a text that is not empty')
        return Prompt(name, kind, ({"role": "user", "content": body["prompt"]},), tools)
    return Prompt(name, kind, _messages(body["messages"]), tools)


def _tools(value: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise ValueError('"tools" must be a list of tool definitions')
    return tuple(value)


def _turns(value: Any) -> tuple[Mapping[str, Any], ...]:
    """Return a ShareGPT conversation up to the last question, as chat messages; () if there is none."""
    if not isinstance(value, list):
        raise ValueError('"conversations" must be a list')
    turns: list[Mapping[str, Any]] = []
    for number, turn in enumerate(value, 1):
        role = _SHAREGPT_ROLES.get(str(turn.get("from", turn.get("role")))) if isinstance(turn, dict) else None
        text = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
        if role is None or not isinstance(text, str):
            raise ValueError(f'turn {number} needs "from" (one of {", ".join(_SHAREGPT_ROLES)}) and "value"')
        # Pieces of a conversation may begin with an answer; chat templates want a question first.
        if turns or role != "assistant":
            turns.append({"role": role, "content": text})
    while turns and turns[-1]["role"] != "user":
        turns.pop()
    return tuple(turns)


def _messages(value: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise ValueError('"messages" must be a list that is not empty')
    for number, message in enumerate(value, 1):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise ValueError(f'message {number} needs a "role" out of {", ".join(_ROLES)}')
        content = message.get("content")
        is_parts = isinstance(content, list) and all(isinstance(part, dict) and "type" in part for part in content)
        is_call = content is None and isinstance(message.get("tool_calls"), list) and number > 1
        if not (isinstance(content, str) or is_parts or is_call):
            raise ValueError(f'message {number} needs a "content": a text or a list of parts')
    if value[-1]["role"] == "assistant":
        raise ValueError("the last message is the assistant's: there is nothing to answer")
    return tuple(value)
