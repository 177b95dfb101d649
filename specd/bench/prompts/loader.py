"""Reads a prompt set. One JSON object a line: `{"messages": [...]}` as in OpenAI's chat API, or `{"prompt": "..."}`.

Optional: "id" (unique; otherwise the line number) and "kind" (a label such as code; sets are mixed evenly by it).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specd.errors import BenchError

__all__ = ["SHIPPED", "Prompt", "load_prompts"]

SHIPPED = ("diverse", "quick")
_ROLES = ("system", "developer", "user", "assistant", "tool")
_KEYS = ("id", "kind", "messages", "prompt")
_HERE = Path(__file__).parent
_MAX_PROBLEMS = 8


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: chat messages as they will be sent. `kind` is "" when the set gives none."""

    id: str
    kind: str
    messages: tuple[Mapping[str, Any], ...]

    def with_prefix(self, prefix: str) -> tuple[Mapping[str, Any], ...]:
        """Return the messages with a text before everything else in the first one that has text."""
        first, *others = self.messages
        content = first["content"]
        if isinstance(content, str):
            return ({**first, "content": prefix + content}, *others)
        return ({**first, "content": [{"type": "text", "text": prefix}, *content]}, *others)

    def flat(self, prefix: str) -> str:
        """Return the prompt as plain text for servers that have no chat template."""
        texts = [(str(m["role"]), _text_of(m)) for m in self.messages]
        if len(texts) == 1:
            return prefix + texts[0][1]
        lines = [f"{role.capitalize()}: {text}" for role, text in texts if text]
        return prefix + "\n\n".join([*lines, "Assistant:"])


def load_prompts(name: str) -> tuple[Prompt, ...]:
    """Return the prompts of a shipped set or of a JSONL file; raises BenchError that names file, line and problem."""
    is_path = "/" in name or name.endswith((".jsonl", ".json"))
    if not is_path and name not in SHIPPED:
        known = ", ".join(SHIPPED)
        raise BenchError(
            f"no prompt set {name!r}: the shipped ones are {known}; anything else is a path to a .jsonl file"
        )
    path = Path(name).expanduser() if is_path else _HERE / f"{name}.jsonl"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BenchError(f"can't read the prompt set {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BenchError(f"the prompt set {path} is not UTF-8 (byte {error.start})") from error
    # Not splitlines(): a prompt may hold U+2028 and other line ends that JSON leaves as they are.
    return _read(text.split("\n"), str(path))


def _read(lines: Iterable[str], path: str) -> tuple[Prompt, ...]:
    prompts: dict[str, Prompt] = {}
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompt = _prompt(json.loads(line), number)
            if prompt.id in prompts:
                raise ValueError(f"id {prompt.id!r} is there already")
            prompts[prompt.id] = prompt
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
    if problems:
        left = len(problems) - _MAX_PROBLEMS
        raise BenchError("\n".join(problems[:_MAX_PROBLEMS] + ([f"... and {left} more"] if left > 0 else [])))
    if not prompts:
        raise BenchError(f"the prompt set {path} is empty")
    return tuple(prompts.values())


def _prompt(body: Any, number: int) -> Prompt:
    if not isinstance(body, dict):
        raise ValueError("expected a JSON object")
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
    if "prompt" in body:
        if not isinstance(body["prompt"], str) or not body["prompt"].strip():
            raise ValueError('"prompt" must be a text that is not empty')
        return Prompt(name, kind, ({"role": "user", "content": body["prompt"]},))
    return Prompt(name, kind, _messages(body["messages"]))


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


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or ())
