"""A stream becomes a sample: what starts and stops the clock, what counts as a token, what is an error."""

import json
from pathlib import Path
from typing import Any

import pytest

from specd.bench.sse import Event, EventParser
from specd.bench.stream import Answer, Timing

STREAMS = Path(__file__).parents[1] / "corpus" / "streams"
MS = 0.001


def chat(delta: dict[str, Any], finish: str | None = None, usage: Any = None, **more: Any) -> dict[str, Any]:
    chunk: dict[str, Any] = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}
    return {**chunk, "usage": usage} if usage is not None else chunk


def tokens(count: int, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 7 + count, **more}


def read(chunks: list[tuple[float, Any]], *, is_marked: bool = True) -> Answer:
    """Feed (ms, chunk) pairs to an answer sent at 0."""
    answer = Answer(0.0)
    for at, chunk in chunks:
        answer.take(Event(chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode()), at * MS)
    if is_marked:
        answer.take(Event(b"[DONE]"), 9.0)
    else:
        answer.end(None, 9.0)
    return answer


def good(answer: Answer) -> Timing:
    timing = answer.timing()
    assert answer.error == ""
    return timing


def replay(name: str, step_ms: float = 10) -> Answer:
    """Read a captured stream, one event each step."""
    answer = Answer(0.0)
    parser = EventParser()
    for number, event in enumerate(parser.feed((STREAMS / f"{name}.sse").read_bytes())):
        answer.take(event, (100 + number * step_ms) * MS)
    answer.end(parser.close(), 99.0)
    return answer


# -- captured from a real server


@pytest.mark.parametrize(
    ("name", "count", "chunks", "running"),
    [
        ("base.chat_usage", 24, 24, False),
        ("base.chat_usage_continuous", 24, 24, True),
        ("base.completion_code", 96, 96, False),
        ("ngram.chat_usage", 24, 15, False),
        ("ngram.chat_repeat_continuous", 48, 18, True),
        ("ngram.completion_repeat", 96, 17, False),
        ("ngram.completion_free", 96, 70, False),
    ],
)
def test_captured(name: str, count: int, chunks: int, running: bool) -> None:
    answer = replay(name)
    timing = good(answer)
    assert (timing.tokens_out, answer.chunks, timing.exact) == (count, chunks, True)
    assert answer.has_running_usage is running
    assert answer.finish == "length"
    # A chat's first event has the role only and starts nothing.
    assert timing.ttft_ms == pytest.approx(110 if "chat" in name else 100)
    assert timing.tpot_ms == pytest.approx((chunks - 1) * 10 / (count - 1), rel=0.01)
    assert timing.e2e_ms == pytest.approx((timing.ttft_ms or 0) + (chunks - 1) * 10)


def test_captured_without_usage_is_estimated() -> None:
    timing = good(replay("base.chat_no_usage"))
    assert timing.exact is False
    assert timing.tokens_out == pytest.approx(24, rel=0.35)


def test_captured_death_of_the_engine_inside_a_200_stream() -> None:
    answer = replay("killed_engine")
    assert answer.error.startswith("error in the stream: EngineCore encountered an issue")
    assert f"after {answer.chunks} chunks" in answer.error
    assert answer.timing().ttft_ms is None


def test_captured_death_of_the_server() -> None:
    answer = replay("killed_server")
    assert answer.error.startswith("stream ended with neither a finish reason nor [DONE] (after ")


# -- the clock


def test_role_and_empty_content_start_nothing() -> None:
    answer = read(
        [
            (5, chat({"role": "assistant", "content": ""}, usage=tokens(0))),
            (9, chat({"content": ""})),
            (30, chat({"content": "a"}, usage=tokens(1))),
            (50, chat({"content": "b"}, "stop", usage=tokens(2))),
        ]
    )
    timing = good(answer)
    assert (timing.ttft_ms, timing.tpot_ms, timing.e2e_ms) == pytest.approx((30, 20, 50))


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"reasoning": "x"},
        {"reasoning_content": "x"},
        {"reasoning": "x", "reasoning_content": "x"},
        {"refusal": "x"},
        {"content": [{"type": "text", "text": "x"}]},
        {"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": ""}}]},
        {"content": None, "tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    ],
    ids=["content", "reasoning", "reasoning_content", "both names", "refusal", "parts", "tool name", "tool arguments"],
)
def test_every_channel_starts_the_clock(delta: dict[str, Any]) -> None:
    answer = read(
        [(12, chat(delta)), (20, chat({"content": "end"}, "stop")), (21, {"choices": [], "usage": tokens(2)})]
    )
    assert good(answer).ttft_ms == pytest.approx(12)
    assert good(answer).tpot_ms == pytest.approx(8)


def test_both_names_of_reasoning_are_one_text() -> None:
    assert read([(1, chat({"reasoning": "ab", "reasoning_content": "ab"}))]).text == "ab"


def test_reasoning_until_the_limit_is_a_good_sample() -> None:
    chunks = [(10 + 10 * n, chat({"reasoning": "hm "})) for n in range(300)]
    chunks += [(3000, chat({}, "length")), (3001, {"choices": [], "usage": tokens(300)})]
    answer = read(chunks)
    timing = good(answer)
    assert timing.ttft_ms == pytest.approx(10)
    assert timing.answer_ttft_ms is None
    assert timing.tpot_ms == pytest.approx(10, rel=0.01)
    assert (timing.tokens_out, answer.finish) == (300, "length")


def test_time_to_the_first_answer_token() -> None:
    chunks = [(10 * n, chat({"reasoning": "hm "}, usage=tokens(n))) for n in range(1, 501)]
    chunks += [(10 * n, chat({"content": "so "}, usage=tokens(n))) for n in range(501, 521)]
    answer = read([*chunks, (5200, chat({}, "stop", usage=tokens(520)))])
    assert good(answer).ttft_ms == pytest.approx(10)
    assert good(answer).answer_ttft_ms == pytest.approx(5010)
    assert answer.reasoning() == 500


def test_reasoning_tokens_are_the_servers_if_it_tells() -> None:
    usage = tokens(9, completion_tokens_details={"reasoning_tokens": 4})
    answer = read(
        [(1, chat({"reasoning": "a"})), (2, chat({"content": "b"}, "stop")), (3, {"choices": [], "usage": usage})]
    )
    assert answer.reasoning() == 4
    assert read([(1, chat({"content": "b"}, "stop", usage=tokens(2)))]).reasoning() is None


def test_end_token_without_text_counts_at_its_own_time() -> None:
    answer = read(
        [(10, chat({"content": "a"})), (20, chat({"content": "b"})), (30, chat({}, "stop")), (45, {"usage": tokens(3)})]
    )
    assert (good(answer).tpot_ms, good(answer).e2e_ms) == pytest.approx((10, 30))


# -- tokens


@pytest.mark.parametrize("per_chunk", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("usage", ["running", "end"])
@pytest.mark.parametrize("first", ["one", "full"])
def test_speed_does_not_depend_on_how_tokens_are_packed(per_chunk: int, usage: str, first: str) -> None:
    """10 ms a token, 256 tokens; a chunk comes when its last token is there."""
    words = ["the ", "of ", "and ", "speed ", "in ", "token ", "to ", "a "]
    sizes = [1] if first == "one" else []
    while sum(sizes) < 256:
        sizes.append(min(per_chunk, 256 - sum(sizes)))
    chunks: list[tuple[float, Any]] = []
    done = 0
    for size in sizes:
        text = "".join(words[(done + n) % len(words)] for n in range(size))
        done += size
        chunks.append((90 + 10 * done, chat({"content": text}, usage=tokens(done) if usage == "running" else None)))
    chunks.append((2651, chat({}, "length", usage=tokens(256) if usage == "running" else None)))
    chunks.append((2652, {"choices": [], "usage": tokens(256)}))
    timing = good(read(chunks))
    assert timing.tokens_out == 256
    assert timing.tpot_ms == pytest.approx(10, rel=0.01)


def test_running_usage_is_not_added_up() -> None:
    chunks = [(n, chat({"content": "x"}, usage=tokens(n))) for n in range(1, 11)]
    answer = read([*chunks, (11, {"choices": [], "usage": tokens(10)})])
    assert good(answer).tokens_out == 10


@pytest.mark.parametrize(
    "last", [{"choices": [], "usage": tokens(5)}, {"usage": tokens(5)}, {"choices": None, "usage": tokens(5)}]
)
def test_usage_only_event(last: dict[str, Any]) -> None:
    answer = read([(1, chat({"content": "x"})), (2, chat({"content": "y"}, "stop")), (80, last)])
    assert (good(answer).tokens_out, answer.tokens_in) == (5, 7)
    assert good(answer).e2e_ms == pytest.approx(2)


def test_no_usage_takes_the_count_that_is_given_later() -> None:
    answer = read([(1, chat({"content": "x"})), (2, chat({"content": "y"}, "stop"))])
    assert (good(answer).tokens_out, good(answer).exact) == (1, False)
    answer.counted = 2
    assert (good(answer).tokens_out, good(answer).exact) == (2, True)


def test_single_token_has_no_tpot() -> None:
    timing = good(read([(7, chat({"content": "x"}, "length", usage=tokens(1)))]))
    assert (timing.ttft_ms, timing.tpot_ms, timing.e2e_ms) == (pytest.approx(7), None, pytest.approx(7))


def test_everything_in_one_event_has_no_tpot() -> None:
    assert good(read([(7, chat({"content": "x y z"}, "stop", usage=tokens(3)))])).tpot_ms is None


def test_empty_answer_is_no_error_and_has_no_times() -> None:
    timing = good(read([(7, chat({"role": "assistant", "content": ""})), (9, chat({}, "stop", usage=tokens(1)))]))
    assert timing == Timing(None, None, None, None, 1, True)


# -- gaps


def test_gaps_are_between_events_with_text() -> None:
    words = [(at, chat({"content": "x"})) for at in (10, 20, 50)]
    answer = read([(1, chat({"role": "assistant"})), *words, (70, chat({}, "stop")), (80, {"usage": tokens(6)})])
    assert answer.gaps_ms == pytest.approx([10, 30])


def steps(count: int, bunch: int, step_ms: float) -> Answer:
    """An answer of `count` events that come `bunch` at a time."""
    times = [step_ms * bunch * (1 + number // bunch) for number in range(count)]
    return read([*((at, chat({"content": "x"})) for at in times), (times[-1], chat({}, "stop", usage=tokens(count)))])


@pytest.mark.parametrize(
    ("count", "bunch", "step_ms", "is_bunched"),
    [
        (64, 1, 10, False),
        (64, 2, 10, False),
        (64, 8, 10, True),
        (64, 64, 10, True),
        # A fast engine's events may share a read without anybody holding them back.
        (64, 4, 0.5, False),
        (4, 4, 10, False),
    ],
)
def test_events_held_back_on_the_way(count: int, bunch: int, step_ms: float, is_bunched: bool) -> None:
    assert steps(count, bunch, step_ms).is_bunched is is_bunched


def test_uneven_events_are_no_bunches() -> None:
    """A prefill of others in between makes one long gap, speculation uneven ones."""
    times = [10.0 * n + (400 if n > 20 else 0) + 7 * (n % 3) for n in range(64)]
    answer = read([*((at, chat({"content": "x"})) for at in times), (1100, chat({}, "stop", usage=tokens(64)))])
    assert not answer.is_bunched


def test_latencies_count_from_when_the_request_was_due() -> None:
    answer = Answer(0.5, due=0.2)
    answer.take(Event(json.dumps(chat({"content": "x"})).encode()), 1.0)
    answer.take(Event(json.dumps(chat({"content": "y"}, "stop", usage=tokens(2))).encode()), 1.1)
    answer.take(Event(b"[DONE]"), 1.2)
    timing = good(answer)
    assert (timing.ttft_ms, timing.tpot_ms, timing.e2e_ms) == pytest.approx((800, 100, 900))
    assert answer.send_delay_s == pytest.approx(0.3)


# -- ends and errors


def test_clean_end_without_done() -> None:
    assert good(read([(1, chat({"content": "x"}, "stop", usage=tokens(1)))], is_marked=False)).tokens_out == 1


def test_end_without_finish_reason_and_done() -> None:
    answer = read([(1, chat({"content": "x"})), (2, chat({"content": "y"}))], is_marked=False)
    assert answer.error == "stream ended with neither a finish reason nor [DONE] (after 2 chunks, 2 tokens)"


def test_done_alone() -> None:
    assert read([]).error.startswith("stream ended without a token")


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "CUDA out of\nmemory \x1b[31m", "code": 500}},
        {"error": "CUDA out of memory \x1b[31m"},
        {"object": "error", "message": "CUDA out of memory \x1b[31m", "code": 500},
    ],
)
def test_error_object_then_done(body: dict[str, Any]) -> None:
    answer = read([(1, chat({"content": "x"})), (2, body), (3, chat({"content": "late"}, "stop", usage=tokens(2)))])
    assert (
        answer.error
        == "error in the stream: CUDA out of memory \N{REPLACEMENT CHARACTER}[31m (after 1 chunks, 1 tokens)"
    )
    assert answer.timing() == Timing(None, None, None, None, None, False)


def test_error_key_that_is_null_is_none() -> None:
    assert good(read([(1, chat({"content": "x"}, "stop", usage=tokens(1), error=None))])).tokens_out == 1


@pytest.mark.parametrize("finish", ["error", "abort"])
def test_finish_reasons_that_are_failures(finish: str) -> None:
    assert read([(1, chat({"content": "x"}, finish))]).error.startswith(f"finish reason {finish}")


@pytest.mark.parametrize("data", [b"{", b"[1]", b"nonsense", b"\xff\xfe{}", b"nul"])
def test_unreadable_event(data: bytes) -> None:
    assert read([(1, chat({"content": "x"})), (2, data)]).error.startswith("event 2 is not ")


def test_events_with_other_names_and_empty_ones_are_ignored() -> None:
    answer = Answer(0.0)
    answer.take(Event(b"keepalive", "ping"), 0.1)
    answer.take(Event(b" "), 0.1)
    assert answer.error == ""


@pytest.mark.parametrize(
    "chunk", [{"choices": "x"}, {"choices": [None]}, {"choices": [{"delta": 3}]}, {"usage": [1]}, {}]
)
def test_odd_shapes_do_not_break_it(chunk: Any) -> None:
    assert good(read([(1, chunk), (2, chat({"content": "x"}, "stop", usage=tokens(1)))])).ttft_ms == pytest.approx(2)


def test_falling_usage_is_an_error() -> None:
    answer = read([(1, chat({"content": "x"}, usage=tokens(5))), (2, chat({"content": "y"}, "stop", usage=tokens(3)))])
    assert answer.error.startswith("usage fell from 5 to 3 tokens")


def test_zero_tokens_for_a_text_violates_an_invariant() -> None:
    answer = read([(1, chat({"content": "x"}, "stop", usage=tokens(0)))])
    answer.timing()
    assert answer.error.startswith("client invariant: 1 chunks with text, but 0 tokens")


def test_clock_that_runs_backwards_violates_an_invariant() -> None:
    answer = read([(10, chat({"content": "x"})), (5, chat({"content": "y"}, "stop", usage=tokens(2)))])
    answer.timing()
    assert answer.error.startswith("client invariant: first token at 10.000 ms, last at 5.000 ms")


@pytest.mark.parametrize("name", ["ngram.chat_repeat_continuous", "base.completion_code"])
def test_cut_anywhere_is_an_error_or_whole(name: str) -> None:
    """A clean end at any byte: good only once the finish reason and all of its event have come."""
    data = (STREAMS / f"{name}.sse").read_bytes()
    end_of_finish = data.index(b"\n\n", data.index(b'"finish_reason":"length"'))
    for at in range(0, len(data), 11):
        parser, answer = EventParser(), Answer(0.0)
        for event in parser.feed(data[:at]):
            answer.take(event, 0.1)
        answer.end(parser.close(), 0.1)
        whole = at >= end_of_finish and _is_readable(data[:at].rsplit(b"\n\n", 1)[-1].strip())
        assert (answer.error == "") is whole, (at, answer.error)


def _is_readable(rest: bytes) -> bool:
    """Nothing, no field yet, or an event that only lacks its blank line."""
    if rest in (b"", b"d", b"da", b"dat", b"data: [DONE]"):
        return True
    try:
        json.loads(rest.removeprefix(b"data: "))
    except ValueError:
        return False
    return True
