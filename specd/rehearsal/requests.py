"""Reading the bodies of chat and plain completions, with vLLM's refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .tokens import decode, encode


class ApiError(Exception):
    """A refusal in OpenAI's form."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        """Return the error object that is sent."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


@dataclass(frozen=True)
class Ask:
    """One completion asked for."""

    is_chat: bool
    model: str
    prompt: Sequence[int]
    max_tokens: int
    min_tokens: int
    is_streaming: bool
    includes_usage: bool
    has_running_usage: bool
    stop: Sequence[str]
    keeps_stop: bool
    ignores_eos: bool
    returns_token_ids: bool
    wants_thinking: bool
    echoes: bool
    seed: int


def read_json(body: bytes) -> dict[str, Any]:
    """Decode a request body; raises ApiError."""
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", str(error))
        position = getattr(error, "pos", 0)
        detail = {
            "type": "json_invalid",
            "loc": f"body.{position}",
            "msg": "JSON decode error",
            "input": "<dict of 0 items>",
            "ctx": {"error": reason},
        }
        message = f"1 validation error:\n  {detail}"
        raise ApiError(400, "Bad Request", message, f"body.{position}") from None
    if not isinstance(values, dict):
        raise ApiError(400, "Bad Request", "1 validation error:\n  Input should be a valid dictionary", "body")
    return values


def read_ask(values: Mapping[str, Any], *, is_chat: bool, max_model_len: int, forces_usage: bool) -> Ask:
    """Check a completion body and turn its prompt into tokens; raises ApiError."""
    prompt = encode(render_chat(values)) if is_chat else read_prompt(values.get("prompt"))
    if values.get("n") not in (None, 1):
        raise _bad("the rehearsal engine gives one choice: n must be 1", "n")
    stream = _boolean(values, "stream", False)
    options = values.get("stream_options")
    if options is not None and not stream:
        raise _bad("Stream options can only be defined when `stream=True`.", "stream_options")
    if options is not None and not isinstance(options, dict):
        raise _bad("Input should be a valid dictionary", "stream_options")
    options = options or {}
    usage = _boolean(options, "include_usage", False) or forces_usage
    _number(values, "temperature", 0.0, 2.0)
    stop = values.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(each, str) for each in stop):
        raise _bad("Input should be a valid string or a list of strings", "stop")
    thinking = values.get("chat_template_kwargs")
    switch = thinking.get("enable_thinking", thinking.get("thinking", True)) if isinstance(thinking, dict) else True
    return Ask(
        is_chat=is_chat,
        model=str(values.get("model") or ""),
        prompt=prompt,
        max_tokens=_max_tokens(values, is_chat, len(prompt), max_model_len),
        min_tokens=_integer(values, "min_tokens", 0) or 0,
        is_streaming=stream,
        includes_usage=usage,
        has_running_usage=usage and _boolean(options, "continuous_usage_stats", False),
        stop=[each for each in stop if each],
        keeps_stop=_boolean(values, "include_stop_str_in_output", False),
        ignores_eos=_boolean(values, "ignore_eos", False),
        returns_token_ids=_boolean(values, "return_token_ids", False),
        wants_thinking=bool(switch),
        echoes=not is_chat and _boolean(values, "echo", False),
        seed=_integer(values, "seed", None) or 0 if values.get("temperature") != 0 else 0,
    )


def read_prompt(prompt: Any) -> list[int]:
    """Return the tokens of a prompt given as text or ids (or a list of one of them); raises ApiError."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return encode(prompt)
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return list(prompt)
    if isinstance(prompt, list) and len(prompt) > 1:
        raise _bad("the rehearsal engine takes one prompt a request", "prompt")
    raise _bad("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")


def render_chat(values: Mapping[str, Any]) -> str:
    """Apply the chat template to a body's messages; raises ApiError."""
    messages = values.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _bad("Field required: messages must be a list with at least one message", "messages")
    parts = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _bad("each message needs a role", "messages")
        parts.append(f"<|{message['role']}|>\n{_content(message.get('content'))}\n")
    if values.get("add_generation_prompt") is not False:
        parts.append("<|assistant|>\n")
    return "".join(parts)


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    if content is None or isinstance(content, str):
        return content or ""
    raise _bad("message content must be a string or a list of parts", "messages")


def read_text(ids: Any) -> str:
    """Return the text of a list of token ids; raises ApiError."""
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise _bad("Input should be a list of integers", "tokens")
    return decode(ids)


def _max_tokens(values: Mapping[str, Any], is_chat: bool, prompt_size: int, max_model_len: int) -> int:
    room = max_model_len - prompt_size
    limit = f"This model's maximum context length is {max_model_len} tokens. However, "
    if room < 1:
        raise ApiError(
            400,
            "BadRequestError",
            f"{limit}your prompt contains at least {max_model_len + 1} input tokens, which exceeds this limit even "
            "without any output tokens. Please reduce the length of the input prompt. "
            f"(parameter=input_tokens, value={max_model_len + 1})",
            "input_tokens",
        )
    asked = _integer(values, "max_completion_tokens", None) if is_chat else None
    asked = _integer(values, "max_tokens", None if is_chat else 16) if asked is None else asked
    if asked is None:
        return room
    if asked < 1:
        raise _bad(f"max_tokens must be at least 1, got {asked}.", "max_tokens")
    if asked > room:
        raise ApiError(
            400,
            "BadRequestError",
            f"{limit}you requested {asked} output tokens and your prompt contains at least {prompt_size} input "
            f"tokens, for a total of at least {asked + prompt_size} tokens. Please reduce the length of the input "
            f"prompt or the number of requested output tokens. (parameter=input_tokens, value={prompt_size})",
            "input_tokens",
        )
    return asked


def _boolean(values: Mapping[str, Any], name: str, default: bool) -> bool:
    value = values.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _bad("Input should be a valid boolean", name)
    return value


def _integer(values: Mapping[str, Any], name: str, default: int | None) -> int | None:
    value = values.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise _bad("Input should be a valid integer", name)
    return value


def _number(values: Mapping[str, Any], name: str, low: float, high: float) -> None:
    value = values.get(name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _bad("Input should be a valid number", name)
    if not low <= value <= high:
        raise _bad(f"{name} must be in [{low:g}, {high:g}], got {value}.", name)


def _bad(message: str, param: str) -> ApiError:
    return ApiError(400, "BadRequestError", message, param)
