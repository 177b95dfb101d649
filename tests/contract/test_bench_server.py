"""The client's requests over real sockets: odd servers, broken streams, deadlines, and what a server can do."""

import asyncio
import json
import random
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specd.bench.load import Runner
from specd.bench.plan import BenchPlan, Level, LevelDone, Progress, Target
from specd.bench.prompts import load_prompts
from specd.bench.server import Server
from specd.bench.stream import Answer
from specd.bench.workload import Mode, counted
from specd.errors import BenchError
from tests.contract.odd_server import HEAD, Answerer, OddServer, Request, hang_up, odd_server, text

PLAN = BenchPlan(
    levels=(1,), repeats=1, requests=4, prompts="quick", max_tokens=16, temperature=0.0, warmup_requests=0,
    first_token_s=3.0, idle_s=3.0,
)  # fmt: skip
PROMPTS = load_prompts("quick")
STREAMS = Path(__file__).parents[1] / "corpus" / "streams"
USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}


def target(odd: OddServer, **changes: Any) -> Target:
    return replace(Target(base_url=odd.url, model="m"), **changes)


async def ask(answer: Answerer, plan: BenchPlan = PLAN, **changes: Any) -> Answer:
    """Ask an odd server once."""
    async with odd_server(answer) as odd, Server.connect(target(odd, **changes), plan) as server:
        return await server.ask(counted(PROMPTS, plan, Level(1, 1))[0], Mode())


async def run(
    odd: OddServer, plan: BenchPlan, concurrency: int = 1, **changes: Any
) -> tuple[LevelDone, list[Progress]]:
    """Measure one level of an odd server."""
    said: list[Progress] = []
    async with Server.connect(target(odd, **changes), plan) as server:
        mode = await server.find_mode(PROMPTS)
        runner = Runner(server, target(odd, **changes), plan, PROMPTS, mode, said.append)
        return await runner.run(Level(concurrency, 1)), said


# -- streams


async def test_usual_answer() -> None:
    answer = await ask(lambda request: request.answer(words=8, pause_s=0.01))
    timing = answer.timing()
    assert (answer.error, timing.tokens_out, timing.exact) == ("", 8, True)
    assert timing.tpot_ms == pytest.approx(10, rel=0.5)


async def test_bytes_cut_at_random_inside_one_stream() -> None:
    data = (STREAMS / "ngram.chat_repeat_continuous.sse").read_bytes()
    rng = random.Random(3)

    async def answer(request: Request) -> None:
        await request.head()
        at = 0
        while at < len(data):
            size = rng.choice((1, 2, 3, 50, 400))
            await request.events(data[at : at + size])
            at += size
        await request.finish()

    found = await ask(answer)
    assert (found.error, found.timing().tokens_out, found.chunks) == ("", 48, 18)


async def test_cut_stream_tells_where() -> None:
    async def answer(request: Request) -> None:
        await request.head()
        await request.events(text("a"), text("b"), text("c"))
        hang_up()

    found = await ask(answer)
    assert found.error.startswith("stream cut: ")
    assert found.error.endswith("(after 3 chunks, 3 tokens)")
    assert found.timing().ttft_ms is None


async def test_server_that_drops_the_connection_after_done() -> None:
    async def answer(request: Request) -> None:
        await request.head()
        await request.events(text("a"), text("b", finish="stop"), USAGE, b"data: [DONE]\n\n")
        hang_up()

    assert (await ask(answer)).error == ""


async def test_server_that_leaves_the_response_open_after_done() -> None:
    async def answer(request: Request) -> None:
        await request.head()
        await request.events(text("a"), text("b", finish="stop"), USAGE, b"data: [DONE]\n\n")
        await asyncio.sleep(30)

    started = asyncio.get_running_loop().time()
    assert (await ask(answer)).error == ""
    assert asyncio.get_running_loop().time() - started < 2.5


async def test_response_without_length_that_ends_with_the_connection() -> None:
    async def answer(request: Request) -> None:
        await request.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        await request.send(b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}],')
        await request.send(b' "usage": {"completion_tokens": 1}}\n\n')
        hang_up()

    found = await ask(answer)
    assert (found.error, found.timing().tokens_out) == ("", 1)


async def test_compressed_stream_is_read_and_told() -> None:
    async def answer(request: Request) -> None:
        await request.send(HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"))
        packer = zlib.compressobj(wbits=31)
        for chunk in (text("a"), text("b", finish="stop"), USAGE):
            data = packer.compress(b"data: " + json.dumps(chunk).encode() + b"\n\n") + packer.flush(zlib.Z_SYNC_FLUSH)
            await request.events(data)
        await request.events(packer.compress(b"data: [DONE]\n\n") + packer.flush())
        await request.finish()

    async with odd_server(answer) as odd:
        done, _ = await run(odd, PLAN)
    assert [(sample.error, sample.tokens_out, sample.chunks) for sample in done.samples] == [("", 2, 2)] * 4
    assert done.notes == ("4 of 4 answers came compressed although that was not asked for",)
    assert all(request.headers["accept-encoding"] == "identity" for request in odd.generations)


async def test_proxy_that_holds_events_back_is_told() -> None:
    async def answer(request: Request) -> None:
        await request.head()
        for _ in range(4):
            await asyncio.sleep(0.04)
            await request.events(b"".join(b"data: " + json.dumps(text("w ")).encode() + b"\n\n" for _ in range(4)))
        await request.events(text("", finish="length"), b"data: [DONE]\n\n")
        await request.finish()

    async with odd_server(answer) as odd:
        done, _ = await run(odd, PLAN)
    assert all(sample.bunched and not sample.error for sample in done.samples)
    assert done.notes[0].startswith("4 of 4 answers came in bunches: something on the way")


async def test_error_inside_a_200_stream() -> None:
    async def answer(request: Request) -> None:
        await request.head()
        await request.events(text("a"), {"error": {"message": "the key s3cret is bad"}}, b"data: [DONE]\n\n")
        await request.finish()

    found = await ask(answer, api_key="s3cret")
    assert found.error == "error in the stream: the key *** is bad (after 1 chunks, 1 tokens)"


async def test_refusal_shows_the_servers_words_and_hides_the_key() -> None:
    body = {"error": {"message": "min_p is not supported with speculative decoding (key s3cret)\x1b[2J"}}
    found = await ask(lambda request: request.reply(400, body), api_key="s3cret")
    words = "HTTP 400: min_p is not supported with speculative decoding (key ***)\N{REPLACEMENT CHARACTER}[2J"
    assert found.error.startswith(words)


async def test_answer_that_is_no_stream() -> None:
    found = await ask(lambda request: request.reply(200, {"choices": []}))
    assert found.error.startswith("answered with application/json instead of a stream")


async def test_redirect_is_not_followed() -> None:
    found = await ask(lambda request: request.reply(307, ""))
    assert found.error.startswith("HTTP 307")


async def test_nobody_listens() -> None:
    async with odd_server(lambda request: request.answer()) as odd:
        url = odd.url
    async with Server.connect(Target(base_url=url, model="m"), PLAN) as server:
        found = await server.ask(counted(PROMPTS, PLAN, Level(1, 1))[0], Mode())
    assert found.error.startswith("no answer: ")


# -- deadlines


async def test_no_first_token() -> None:
    async def answer(request: Request) -> None:
        await request.head()
        await request.events(text("", role="assistant"))
        for _ in range(100):
            await asyncio.sleep(0.05)
            await request.events(b": keep-alive\n\n")

    found = await ask(answer, replace(PLAN, first_token_s=0.4))
    assert found.error.startswith("no first token within 0.4 s")
    assert found.has_timed_out


async def test_headers_that_never_come() -> None:
    found = await ask(lambda _request: asyncio.sleep(30), replace(PLAN, first_token_s=0.3))
    assert found.error.startswith("no first token within 0.3 s")


async def test_gap_inside_a_stream_tells_where() -> None:
    async def answer(request: Request) -> None:
        await request.head()
        await request.events(text("a"), text("b"))
        for _ in range(100):
            await asyncio.sleep(0.05)
            await request.events(b": keep-alive\n\n")

    found = await ask(answer, replace(PLAN, idle_s=0.4))
    assert found.error == "idle timeout: no further token for 0.4 s (after 2 chunks, 2 tokens)"


async def test_long_generation_outlives_both_deadlines() -> None:
    """Each deadline bounds its own wait, not the whole: a stream of 1.5 s under deadlines of 0.5 s."""
    plan = replace(PLAN, first_token_s=0.5, idle_s=0.5)
    found = await ask(lambda request: request.answer(words=15, pause_s=0.1), plan)
    assert (found.error, found.timing().tokens_out) == ("", 15)


# -- what the server can do


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        ("As of transformers v4.44, default chat template is no longer allowed", 400),
        ("Not Found", 404),
        ("this model has no chat template", 500),
    ],
)
async def test_without_chat_the_whole_run_uses_completions(refusal: str, status: int) -> None:
    async def answer(request: Request) -> None:
        if request.path == "/v1/chat/completions":
            await request.reply(status, {"error": {"message": refusal}})
            return
        await request.head()
        for word in ("a", "b", "c"):
            await request.events({"choices": [{"index": 0, "text": word, "finish_reason": None}]})
        await request.events(
            {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}
        )
        await request.events(b"data: [DONE]\n\n")
        await request.finish()

    async with odd_server(answer) as odd:
        done, _ = await run(odd, PLAN)
    assert (done.endpoint, done.counting, len(done.samples)) == ("completions", "usage", 4)
    assert all(sample.tokens_out == 3 and not sample.error for sample in done.samples)
    assert [request.path for request in odd.generations].count("/v1/chat/completions") == 1
    assert all(isinstance(request.body["prompt"], str) for request in odd.generations[1:])


@pytest.mark.parametrize("accepted", [{"include_usage": True}, None])
async def test_usage_options_a_server_does_not_know(accepted: Any) -> None:
    async def answer(request: Request) -> None:
        if request.body.get("stream_options") != accepted:
            await request.reply(422, {"detail": "extra fields not permitted"})
        else:
            await request.answer(usage=accepted is not None)

    async with odd_server(answer) as odd, Server.connect(target(odd), PLAN) as server:
        mode = await server.find_mode(PROMPTS)
    assert mode == Mode("chat", "usage" if accepted else "none", is_salted=True)


async def test_cache_salt_is_the_processs_own_and_only_for_servers_that_take_it() -> None:
    async def strict(request: Request) -> None:
        if "cache_salt" in request.body:
            await request.reply(422, {"detail": "extra fields not permitted: cache_salt"})
        else:
            await request.answer()

    async with odd_server(lambda request: request.answer()) as odd:
        await run(odd, PLAN)
        first = {request.body["cache_salt"] for request in odd.generations}
        await run(odd, PLAN)
        both = {request.body["cache_salt"] for request in odd.generations}
    assert (len(first), len(both)) == (1, 2)
    assert len({json.dumps(request.body["messages"]) for request in odd.generations}) == PLAN.requests + 1
    async with odd_server(strict) as odd, Server.connect(target(odd), PLAN) as server:
        assert await server.find_mode(PROMPTS) == Mode("chat", "running")


async def test_parameters_that_the_server_refuses() -> None:
    body = {"error": {"message": "logprobs are not supported with speculative decoding"}}
    async with odd_server(lambda request: request.reply(400, body)) as odd, Server.connect(target(odd), PLAN) as server:
        with pytest.raises(
            BenchError, match="refuses the benchmark's parameters: HTTP 400: logprobs are not supported"
        ):
            await server.find_mode(PROMPTS)


async def test_server_that_fails_the_first_request() -> None:
    async with (
        odd_server(lambda request: request.reply(500, "boom")) as odd,
        Server.connect(target(odd), PLAN) as server,
    ):
        with pytest.raises(BenchError, match="does not answer the benchmark's first request: HTTP 500: boom"):
            await server.find_mode(PROMPTS)


async def test_no_usage_is_counted_by_tokenize_afterwards() -> None:
    async def answer(request: Request) -> None:
        if request.path == "/tokenize":
            assert request.body["prompt"] == "word " * 8
            await request.reply(200, {"count": 11, "tokens": [1] * 11})
        else:
            await request.answer(usage=False)

    async with odd_server(answer) as odd:
        done, _ = await run(odd, PLAN)
    assert done.counting == "tokenize"
    assert {(sample.tokens_out, sample.exact) for sample in done.samples} == {(11, True)}
    paths = [request.path for request in odd.requests]
    assert paths.index("/tokenize") > max(n for n, path in enumerate(paths) if path == "/v1/chat/completions")


async def test_no_usage_and_a_tokenize_that_fails_half_way_is_estimated_throughout() -> None:
    asked: list[str] = []

    async def answer(request: Request) -> None:
        if request.path == "/tokenize":
            asked.append(request.path)
            await request.reply(200 if len(asked) < 3 else 500, {"count": 11})
        else:
            await request.answer(usage=False)

    async with odd_server(answer) as odd:
        done, _ = await run(odd, PLAN)
    assert done.counting == "estimated"
    assert {(sample.tokens_out, sample.exact) for sample in done.samples} == {(10, False)}
