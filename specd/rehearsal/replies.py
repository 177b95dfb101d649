"""The answer to one completion: chunks of a stream or one body, in vLLM 0.32's shape."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .requests import ApiError, Ask
from .tokens import decode
from .wire import Exchange

_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


@dataclass(frozen=True)
class Manner:
    """How an answer is cut and faulted."""

    fingerprint: str
    reasoning_fields: Sequence[str]
    reasoning_tokens: int
    tokens_per_chunk: int
    # --stream-interval sends the first token at once; the script's chunks are full from the first on.
    is_first_at_once: bool
    error_after: int | None
    cut_after: int | None
    has_usage: bool


class Reply:
    """Takes tokens from the engine and answers the client with them."""

    def __init__(self, ask: Ask, exchange: Exchange, manner: Manner, number: str, on_stop: Callable[[], None]) -> None:
        self._ask = ask
        self._exchange = exchange
        self._manner = manner
        self._on_stop = on_stop
        self._id = f"{'chatcmpl' if ask.is_chat else 'cmpl'}-{number}"
        self._created = int(time.time())
        self._produced = 0
        self._sent = 0
        self._pending: list[int] = []
        self._ids: list[int] = []
        self._reasoning = ""
        self._content = ""
        self._held = ""
        self._stopped_by: str | None = None

    def begin(self) -> None:
        """Send the head of a stream."""
        if self._ask.is_streaming:
            self._exchange.start_stream("text/event-stream; charset=utf-8")

    def take(self, ids: Sequence[int], finish: str | None) -> None:
        """Accept the tokens of one step; `finish` is the reason when they are the last."""
        if self._exchange.is_over:
            return
        is_first = self._produced == 0
        self._produced += len(ids)
        if is_first and self._ask.is_streaming and self._ask.is_chat:
            self._send_role()
        self._pending += ids
        fault = self._fault()
        if fault is not None:
            fault()
            return
        coalesce = 1 if is_first and self._manner.is_first_at_once else self._manner.tokens_per_chunk
        while self._pending and (finish or coalesce == 1 or len(self._pending) >= coalesce):
            size = len(self._pending) if coalesce == 1 else coalesce
            part, self._pending = self._pending[:size], self._pending[size:]
            self._write(part, None if self._pending else finish)
            if self._stopped_by is not None:
                break
        if self._stopped_by is not None or finish:
            self._finish(finish or "stop")

    def fail(self, message: str = _DEAD, status: int = 500) -> None:
        """End with an error: an event and [DONE] in a stream that has begun, a plain refusal otherwise."""
        error = ApiError(status, "InternalServerError", message).body()
        if self._exchange.is_over:
            return
        if self._exchange.is_started:
            self._event(json.dumps(error))
            self._event("[DONE]")
            self._exchange.end_stream()
        else:
            self._exchange.reply(status, json.dumps(error).encode())

    def _fault(self) -> Callable[[], None] | None:
        """Return what a scripted fault does now, with the tokens before it written."""
        for limit, action in ((self._manner.error_after, self._error), (self._manner.cut_after, self._cut)):
            if limit is not None and self._produced >= limit:
                keep = len(self._pending) - (self._produced - limit)
                part, self._pending = self._pending[: max(0, keep)], []
                if part:
                    self._write(part, None)
                return action
        return None

    def _error(self) -> None:
        self.fail("The server had an error while processing your request.")

    def _cut(self) -> None:
        self._exchange.cut()

    def _write(self, part: Sequence[int], finish: str | None) -> None:
        start = self._sent
        self._sent += len(part)
        self._ids += part
        thinking = self._manner.reasoning_tokens if self._ask.is_chat else 0
        split = max(0, min(len(part), thinking - start))
        reasoning, content = decode(part[:split]), self._cut_at_stop(decode(part[split:]), finish)
        self._reasoning += reasoning
        self._content += content
        if self._ask.is_streaming:
            is_last = bool(finish) or self._stopped_by is not None
            self._send_chunk(part, reasoning, content, (finish or "stop") if is_last else None)

    def _cut_at_stop(self, text: str, finish: str | None) -> str:
        """Return what of the text may go out: nothing from a stop string on, nor what may yet become one."""
        if not self._ask.stop:
            return text
        text, self._held = self._held + text, ""
        found = [(text.find(stop), stop) for stop in self._ask.stop if stop in text]
        if found and self._sent >= self._ask.min_tokens:
            at, stop = min(found)
            self._stopped_by = stop
            return text[: at + (len(stop) if self._ask.keeps_stop else 0)]
        if finish:
            return text
        keep = max(len(stop) for stop in self._ask.stop) - 1
        cut = max(0, len(text) - keep)
        self._held = text[cut:]
        return text[:cut]

    def _finish(self, finish: str) -> None:
        if self._stopped_by is not None:
            finish = "stop"
            self._on_stop()
        if not self._ask.is_streaming:
            self._exchange.reply(200, json.dumps(self._body(finish), ensure_ascii=False).encode("utf-8", "replace"))
            return
        if self._ask.includes_usage and self._manner.has_usage:
            last = {**self._envelope(), "choices": [], "usage": self._usage()}
            self._event(_dump({**last, "system_fingerprint": self._manner.fingerprint}))
        self._event("[DONE]")
        self._exchange.end_stream()

    def _send_role(self) -> None:
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        chunk: dict[str, Any] = {**self._envelope(), "choices": [choice]}
        if self._ask.has_running_usage and self._manner.has_usage:
            chunk["usage"] = self._usage(0)
        chunk["prompt_token_ids"] = list(self._ask.prompt) if self._ask.returns_token_ids else None
        self._event(_dump({**chunk, "prompt_text": None}))

    def _send_chunk(self, part: Sequence[int], reasoning: str, content: str, finish: str | None) -> None:
        token_ids = list(part) if self._ask.returns_token_ids else None
        choice: dict[str, Any] = {"index": 0}
        if self._ask.is_chat:
            delta = {name: reasoning for name in self._manner.reasoning_fields} if reasoning else {}
            if content or not reasoning:
                delta["content"] = content
            choice.update(delta=delta, logprobs=None, finish_reason=finish)
            if finish:
                choice["stop_reason"] = self._stopped_by
        else:
            prefix = decode(self._ask.prompt) if self._ask.echoes and self._sent == len(part) else ""
            choice.update(text=prefix + content, logprobs=None, finish_reason=finish, stop_reason=self._stopped_by)
            choice["prompt_token_ids"] = None
        choice["token_ids"] = token_ids
        chunk: dict[str, Any] = {**self._envelope(), "choices": [choice]}
        if self._ask.has_running_usage and self._manner.has_usage:
            chunk["usage"] = self._usage()
        self._event(_dump(chunk))

    def _body(self, finish: str) -> dict[str, Any]:
        body = self._envelope()
        choice: dict[str, Any] = {"index": 0}
        if self._ask.is_chat:
            message: dict[str, Any] = {"role": "assistant", "content": self._content or None, "refusal": None}
            message.update(annotations=None, audio=None, function_call=None, tool_calls=[])
            for name in self._manner.reasoning_fields:
                message[name] = self._reasoning or None
            choice.update(message=message, logprobs=None, finish_reason=finish, stop_reason=self._stopped_by)
            body["object"] = "chat.completion"
        else:
            text = (decode(self._ask.prompt) if self._ask.echoes else "") + self._content
            choice.update(text=text, logprobs=None, finish_reason=finish, stop_reason=self._stopped_by)
        choice["token_ids"] = self._ids if self._ask.returns_token_ids else None
        body["choices"] = [choice]
        body["system_fingerprint"] = self._manner.fingerprint
        if self._manner.has_usage:
            body["usage"] = self._usage()
        if self._ask.returns_token_ids:
            body["prompt_token_ids"] = list(self._ask.prompt)
        return body

    def _envelope(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._ask.is_chat else "text_completion"
        return {"id": self._id, "object": kind, "created": self._created, "model": self._ask.model}

    def _usage(self, completion: int | None = None) -> dict[str, Any]:
        count = self._sent if completion is None else completion
        prompt = len(self._ask.prompt)
        usage: dict[str, Any] = {"prompt_tokens": prompt, "total_tokens": prompt + count, "completion_tokens": count}
        if self._ask.is_chat and self._manner.reasoning_fields:
            usage["completion_tokens_details"] = {"reasoning_tokens": min(count, self._manner.reasoning_tokens)}
        return usage

    def _event(self, payload: str) -> None:
        self._exchange.send(f"data: {payload}\n\n".encode("utf-8", "replace"))


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
