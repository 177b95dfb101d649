"""One prompt, as it is sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Prompt"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: chat messages as they will be sent. `kind` is "" when the set gives none.

    `source` and `weight` say which set of a mix it comes from and how often that set is drawn from. `tools` are tool
    definitions of OpenAI's API; plain completions have no place for them.
    """

    id: str
    kind: str
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    source: str = ""
    weight: float = 1.0

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

    @property
    def text(self) -> str:
        """All text of the messages."""
        return "\n\n".join(text for text in map(_text_of, self.messages) if text)


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or ())
