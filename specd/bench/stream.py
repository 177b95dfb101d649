"""One streamed answer (OpenAI chat or plain completion), read event by event into the figures of a Sample.

When the clock starts and stops:

- First token: the first event with generated text in any channel (content, reasoning, reasoning_content, tool calls,
  refusal). A role or an empty string never starts it.
- Last token: the last event with generated text, with a finish reason (the token that ended the answer may have no
  text), or, where the server sends running usage, with more tokens than before. The usage event and [DONE] never count.

TPOT = (last - first) / (n - k): n tokens in all, k of them in or before the first event, because those cost prefill
and not decoding. With running usage k is what the server says. Without it k is the first event's share of the text,
at least 1 and at most what leaves one token for every later event; so where an event is one token, k = 1.

Chunk gaps are the times between events with text; an event may hold several tokens, so they are no time per token.
Something on the way that collects events and lets them go in bunches shows itself: many events in one instant, although
their number over the time says that they were made apart.
"""

import json
from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from specd.bench.plain import plain
from specd.bench.sse import Event

__all__ = ["Answer", "Timing"]

_TEXT_KEYS = ("content", "refusal")
_REASONING_KEYS = ("reasoning", "reasoning_content")
_BAD_FINISHES = ("error", "abort")
_PROTOCOL_NAMES = ("", "message", "error")
_BYTES_PER_TOKEN = 4
# Bunched: at least so many events, so many for each instant, and on average made so far apart in seconds.
_BUNCH_EVENTS = 8
_BUNCH = 3.0
_APART_S = 0.002


@dataclass(frozen=True, slots=True)
class Timing:
    """An answer's figures: times in ms from the send; None where there is nothing to say."""

    ttft_ms: float | None
    answer_ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float | None
    tokens_out: int | None
    exact: bool


class Answer:
    """Collects one stream. `sent` and all times are seconds of one monotonic clock.

    `due` is when the request should have gone out, if a schedule says so: latencies then count from it.
    """

    def __init__(self, sent: float, due: float | None = None) -> None:
        self.sent = sent
        self.began = sent
        self.due = due
        self.connecting_s = 0.0
        self.is_resent = False
        self.is_compressed = False
        self.status = 0
        self.has_timed_out = False
        self.is_reused = False
        self.is_done = False
        self.error = ""
        self.finish = ""
        self.events = 0
        self.chunks = 0
        self.tokens_in: int | None = None
        self.tokens_out: int | None = None
        self.tokens_reasoning: int | None = None
        self.has_running_usage = False
        self.counted: int | None = None
        self.progress_at = sent
        self._first: float | None = None
        self._first_answer: float | None = None
        self._last: float | None = None
        self._first_tokens: int | None = None
        self._reasoning_end: int | None = None
        self._first_bytes = 0
        self._later = 0
        self._bytes = 0
        self._text: list[str] = []
        self._chunk_times = array("d")

    @property
    def start(self) -> float:
        """The moment from which latencies count."""
        return self.sent if self.due is None else self.due

    @property
    def send_delay_s(self) -> float:
        """How late this client sent: from due (or from the slot that became free) to the bytes, connecting left out."""
        return max(0.0, self.sent - (self.began if self.due is None else self.due) - self.connecting_s)

    @property
    def gaps_ms(self) -> list[float]:
        """The times between events with text, in ms."""
        return [(late - early) * 1000 for early, late in pairwise(self._chunk_times)]

    @property
    def is_bunched(self) -> bool:
        """True when events came together that can't have been made together: something on the way collects them."""
        count = len(self._chunk_times)
        if count < _BUNCH_EVENTS:
            return False
        span = self._chunk_times[-1] - self._chunk_times[0]
        # Before the first byte there was time to make them all; a real engine does not make so many in one step.
        if span == 0:
            return True
        apart = span / (count - 1)
        instants = 1 + sum(late - early > apart / 10 for early, late in pairwise(self._chunk_times))
        return apart >= _APART_S and count / instants >= _BUNCH

    @property
    def text(self) -> str:
        """All generated text in the order it came, reasoning included."""
        return "".join(self._text)

    @property
    def tokens_seen(self) -> int:
        """How many tokens have come so far: the server's word, or one an event while it says nothing."""
        return self.chunks if self.tokens_out is None else self.tokens_out

    @property
    def has_first_token(self) -> bool:
        """True once a generated token has come."""
        return self._first is not None

    @property
    def last_at(self) -> float | None:
        """When the last token came; None before the first, and for a failed answer."""
        return None if self.error else self._last

    def take(self, event: Event, at: float) -> None:
        """Take an event that was complete at `at`; after an error or [DONE] nothing more is read."""
        data = event.data.strip()
        if self.is_done or self.error or not data:
            return
        self.events += 1
        if data == b"[DONE]":
            self._finish(is_marked=True)
            return
        try:
            body = json.loads(data)
        except ValueError:
            # Events with names of their own are not part of the protocol (a proxy's ping, say).
            if event.name in _PROTOCOL_NAMES:
                self.fail(f"event {self.events} is not JSON")
            return
        if not isinstance(body, dict):
            self.fail(f"event {self.events} is not a JSON object")
        elif body.get("error") or body.get("object") == "error" or event.name == "error":
            self.fail(f"error in the stream: {_message(body)}")
        else:
            self._read(body, at)

    def end(self, rest: Event | None, at: float) -> None:
        """The server closed the stream cleanly; `rest` is what stood after the last blank line, there since `at`."""
        if rest is not None and not self.is_done and not self.error:
            if _is_whole(rest.data):
                self.take(rest, at)
            else:
                self.fail("stream cut inside an event")
        if not self.is_done and not self.error:
            self._finish(is_marked=False)

    def fail(self, why: str) -> None:
        """Record why this is no good answer, with its position; the first reason stays."""
        if not self.error:
            self.error = f"{plain(why, 300)} (after {self.chunks} chunks, {self.tokens_seen} tokens)"

    def timing(self) -> Timing:
        """Return the figures; a violated invariant of this client becomes the answer's error."""
        if self._first is None or self._last is None or self.error:
            return Timing(None, None, None, None, self.tokens_out, self.tokens_out is not None)
        count = self.tokens_out if self.tokens_out is not None else self.counted
        exact = count is not None
        if count is None:
            count = max(1, round(self._bytes / _BYTES_PER_TOKEN))
        elapsed = self._last - self._first
        later = count - self._tokens_of_first(count)
        timing = Timing(
            ttft_ms=(self._first - self.start) * 1000,
            answer_ttft_ms=None if self._first_answer is None else (self._first_answer - self.start) * 1000,
            tpot_ms=elapsed * 1000 / later if later > 0 and elapsed > 0 else None,
            e2e_ms=(self._last - self.start) * 1000,
            tokens_out=count,
            exact=exact,
        )
        self._check_invariants(timing, later)
        return timing

    def _read(self, body: dict[str, Any], at: float) -> None:
        before = self.tokens_out or 0
        self._read_usage(body.get("usage"))
        grown = (self.tokens_out or 0) - before
        generated = is_answer = has_finished = False
        size = 0
        choices = body.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            reasoning, answer = _texts(choice)
            for text in (reasoning, answer):
                if text:
                    self._text.append(text)
                    size += len(text.encode(errors="replace"))
            generated = generated or bool(reasoning or answer)
            is_answer = is_answer or bool(answer)
            finish = choice.get("finish_reason")
            if isinstance(finish, str) and finish:
                self.finish = plain(finish, 40)
                has_finished = True
        if generated:
            self._note_text(at, size, is_answer, has_count=grown > 0)
        if generated or has_finished or (choices and grown > 0):
            self.progress_at = at
            if self._first is not None:
                self._later += self._last is not None
                self._last = at

    def _note_text(self, at: float, size: int, is_answer: bool, *, has_count: bool) -> None:
        self.chunks += 1
        self._chunk_times.append(at)
        self._bytes += size
        if self._first is None:
            self._first = at
            self._first_tokens = self.tokens_out if has_count else None
            self._first_bytes = size
        if self._first_answer is None:
            if is_answer:
                self._first_answer = at
            else:
                self._reasoning_end = self.tokens_out

    def _read_usage(self, usage: Any) -> None:
        """Read an event's usage; of several the last wins."""
        if not isinstance(usage, dict):
            return
        before = self.tokens_out
        self.tokens_in = _count(usage.get("prompt_tokens"), self.tokens_in)
        self.tokens_out = _count(usage.get("completion_tokens"), before)
        details = usage.get("completion_tokens_details")
        given = details.get("reasoning_tokens") if isinstance(details, dict) else usage.get("reasoning_tokens")
        self.tokens_reasoning = _count(given, self.tokens_reasoning)
        if before is not None and self.tokens_out is not None:
            self.has_running_usage = True
            if self.tokens_out < before:
                self.fail(f"usage fell from {before} to {self.tokens_out} tokens")

    def _tokens_of_first(self, count: int) -> int:
        if self._first_tokens is not None:
            return min(max(1, self._first_tokens), count)
        share = round(count * self._first_bytes / self._bytes) if self._bytes else 1
        return max(1, min(share, count - self._later))

    def reasoning(self) -> int | None:
        """Return the tokens spent on reasoning: the server's count, else by running usage, else None."""
        if self.tokens_reasoning is None and self.has_running_usage and self._reasoning_end is not None:
            return self._reasoning_end
        return self.tokens_reasoning

    def _finish(self, *, is_marked: bool) -> None:
        self.is_done = True
        if self.finish in _BAD_FINISHES:
            self.fail(f"finish reason {self.finish}")
        elif not self.finish and self.chunks == 0:
            self.fail("stream ended without a token")
        elif not self.finish and not is_marked:
            self.fail("stream ended with neither a finish reason nor [DONE]")

    def _check_invariants(self, timing: Timing, later: int) -> None:
        ttft, e2e, answer = timing.ttft_ms, timing.e2e_ms, timing.answer_ttft_ms
        if ttft is None or e2e is None or timing.tokens_out is None:
            return
        broken = ""
        if not 0 <= ttft <= e2e:
            broken = f"first token at {ttft:.3f} ms, last at {e2e:.3f} ms"
        elif answer is not None and not ttft <= answer <= e2e:
            broken = f"first answer token at {answer:.3f} ms, outside {ttft:.3f} to {e2e:.3f} ms"
        elif timing.tokens_out < 1:
            broken = f"{self.chunks} chunks with text, but {timing.tokens_out} tokens"
        elif timing.tpot_ms is not None and abs(ttft + timing.tpot_ms * later - e2e) > 0.01 * e2e:
            broken = f"TTFT + TPOT x {later} is not the end-to-end time"
        if broken:
            self.fail(f"client invariant: {broken}")


def _texts(choice: dict[str, Any]) -> tuple[str, str]:
    """Return (reasoning, answer) text of a choice; the two names of reasoning may carry the same text at once."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return "", _flat(choice.get("text"))
    reasoning = next((text for key in _REASONING_KEYS if (text := _flat(delta.get(key)))), "")
    answer = "".join(_flat(delta.get(key)) for key in _TEXT_KEYS)
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            answer += _flat(function.get("name")) + _flat(function.get("arguments"))
    return reasoning, answer


def _flat(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_flat(part.get("text")) for part in value if isinstance(part, dict))
    return ""


def _count(value: Any, otherwise: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise


def _message(body: dict[str, Any]) -> str:
    error = body.get("error", body)
    if isinstance(error, dict):
        return str(error.get("message") or error.get("type") or error)
    return str(error)


def _is_whole(data: bytes) -> bool:
    if data.strip() == b"[DONE]":
        return True
    try:
        json.loads(data)
    except ValueError:
        return False
    return True
