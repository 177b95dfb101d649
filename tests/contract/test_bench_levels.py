"""Whole levels over real sockets: warm-up, hopeless and stalled servers, many requests at once, a unix socket."""

import asyncio
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from specd.bench.load import Runner, is_steady
from specd.bench.plan import BenchPlan, Level, LevelDone
from specd.bench.server import Server
from specd.bench.workload import Mode, counted
from tests.contract.odd_server import OddServer, Request, hang_up, odd_server
from tests.contract.test_bench_server import PLAN, PROMPTS, run, target

# -- the loop


async def test_level() -> None:
    async with odd_server(lambda request: request.answer()) as odd:
        done, said = await run(odd, replace(PLAN, requests=10), concurrency=3, api_key="s3cret", route="tunnel")
    assert (len(done.samples), done.in_flight, odd.most_open) == (10, 3, 3)
    assert (done.endpoint, done.counting, done.route, done.stopped_early) == ("chat", "usage", "tunnel", "")
    assert done.metrics_before == done.metrics_after == "process_start_time_seconds 5\n"
    assert sorted(s.prompt_id for s in done.samples) == sorted(
        w.prompt_id for w in counted(PROMPTS, replace(PLAN, requests=10), Level(3, 1))
    )
    assert done.wall_s == pytest.approx(
        max(s.started_at + (s.e2e_ms or 0) / 1000 for s in done.samples) - min(s.started_at for s in done.samples),
        abs=0.01,
    )
    assert {request.headers["authorization"] for request in odd.generations} == {"Bearer s3cret"}
    assert (said[-1].done, said[-1].total, said[-1].failed) == (10, 10, 0)


async def test_warm_up_is_unscored_at_full_concurrency_and_once_for_each() -> None:
    plan = replace(PLAN, warmup_requests=2, requests=4)
    async with odd_server(lambda request: request.answer()) as odd, Server.connect(target(odd), plan) as server:
        runner = Runner(server, target(odd), plan, PROMPTS, Mode(), lambda _progress: None)
        first, again = await runner.run(Level(4, 1)), await runner.run(Level(4, 2))
    assert (first.warmup, again.warmup) == (first.warmup, 0)
    assert first.warmup in (8, 12, 16)
    assert odd.most_open == 4
    assert len(odd.generations) == first.warmup + 4 + 4
    assert len(first.samples) == len(again.samples) == 4


async def test_warm_up_goes_on_until_two_rounds_agree() -> None:
    """The first request compiles: the round it is in must not be one of the two that agree."""
    seen: list[int] = []

    async def answer(request: Request) -> None:
        seen.append(1)
        await asyncio.sleep(0.5 if len(seen) == 1 else 0.0)
        await request.answer(words=8, pause_s=0.005)

    plan = replace(PLAN, warmup_requests=2)
    async with odd_server(answer) as odd, Server.connect(target(odd), plan) as server:
        runner = Runner(server, target(odd), plan, PROMPTS, Mode(), lambda _progress: None)
        done = await runner.run(Level(1, 1))
    assert done.warmup >= 3
    assert max(sample.ttft_ms or 0 for sample in done.samples) < 400


def test_steadiness() -> None:
    assert not is_steady([1.0])
    assert not is_steady([25.0, 1.0])
    assert is_steady([25.0, 1.0, 1.2])


async def test_base_url_may_end_with_the_version() -> None:
    async with odd_server(lambda request: request.answer()) as odd:
        odd.url += "/v1/"
        done, _ = await run(odd, PLAN)
    assert done.metrics_before.startswith("process_start")
    assert not any(sample.error for sample in done.samples)


async def test_server_without_metrics() -> None:
    async with odd_server(lambda request: request.answer()) as odd:
        odd.page = None
        done, _ = await run(odd, PLAN)
    assert (done.metrics_before, done.metrics_after) == ("", "")
    assert not any(sample.error for sample in done.samples)


async def test_hopeless_level_is_given_up() -> None:
    asked: list[int] = []

    async def answer(request: Request) -> None:
        asked.append(1)
        await (request.answer() if len(asked) == 1 else request.reply(500, "boom"))

    async with odd_server(answer) as odd:
        done, said = await run(odd, replace(PLAN, requests=50))
    assert done.stopped_early.startswith("5 requests failed in a row: HTTP 500: boom")
    assert (len(done.samples), said[-1].failed) == (5, 5)
    assert all(sample.error and sample.ttft_ms is None for sample in done.samples)


async def test_stalled_server_is_given_up_after_two_deadlines() -> None:
    asked: list[int] = []

    async def answer(request: Request) -> None:
        asked.append(1)
        await (request.answer() if len(asked) == 1 else asyncio.sleep(30))

    async with odd_server(answer) as odd:
        done, _ = await run(odd, replace(PLAN, requests=50, first_token_s=0.3))
    assert done.stopped_early.startswith("stalled: 2 requests in a row without tokens")
    assert len(done.samples) == 2


async def test_single_failures_do_not_end_a_level() -> None:
    asked: list[int] = []

    async def answer(request: Request) -> None:
        asked.append(1)
        await (request.reply(500, "boom") if len(asked) % 3 == 0 else request.answer())

    async with odd_server(answer) as odd:
        done, _ = await run(odd, replace(PLAN, requests=12))
    assert (len(done.samples), done.stopped_early) == (12, "")
    assert sum(1 for sample in done.samples if sample.error) == 4


async def test_connections_that_the_server_closes_when_idle_fail_nothing() -> None:
    async def answer(request: Request) -> None:
        await request.answer()
        hang_up()

    async with odd_server(answer) as odd:
        done, _ = await run(odd, replace(PLAN, requests=8), concurrency=2)
    assert not [sample.error for sample in done.samples if sample.error]
    resent = sum(sample.resent for sample in done.samples)
    assert len(odd.generations) == 8 + 1
    assert done.notes == () or "went out again" in done.notes[0]
    assert bool(done.notes) == bool(resent)


async def test_request_over_a_connection_that_died_unnoticed_goes_out_once_more() -> None:
    """The server answers one request of each connection and drops the next one unread, as after its idle time."""
    known: set[asyncio.StreamWriter] = set()

    async def answer(request: Request) -> None:
        if request.writer in known:
            hang_up()
        known.add(request.writer)
        await request.answer()

    async with odd_server(answer) as odd:
        done, _ = await run(odd, replace(PLAN, requests=6))
    assert [sample.error for sample in done.samples] == [""] * 6
    assert sum(sample.resent for sample in done.samples) >= 3
    assert "went out again" in done.notes[0]


async def test_request_that_a_new_connection_drops_too_has_failed() -> None:
    asked: list[int] = []

    async def answer(request: Request) -> None:
        asked.append(1)
        await (request.answer() if len(asked) == 1 else asyncio.sleep(0))
        if len(asked) > 1:
            hang_up()

    async with odd_server(answer) as odd:
        done, _ = await run(odd, replace(PLAN, requests=1))
    assert done.samples[0].error.startswith("no answer: ")
    assert done.samples[0].resent
    assert len(asked) == 3


# -- the open loop


def open_plan(**changes: object) -> BenchPlan:
    return replace(PLAN, **{"requests": 20, "rates": (50.0,), "arrivals": "constant", **changes})  # type: ignore[arg-type]


async def run_open(odd: OddServer, plan: BenchPlan) -> LevelDone:
    async with Server.connect(target(odd), plan) as server:
        runner = Runner(server, target(odd), plan, PROMPTS, Mode(), lambda _progress: None)
        return await runner.run(Level(0, 1, plan.rates[0]))


async def test_open_loop_sends_when_due_whatever_became_of_the_others() -> None:
    async with odd_server(lambda request: request.answer(words=3, pause_s=0.1)) as odd:
        done = await run_open(odd, open_plan())
    begins = sorted(sample.started_at for sample in done.samples)
    assert [late - early for early, late in pairwise(begins)] == pytest.approx([0.02] * 19, abs=1e-6)
    assert done.in_flight >= 10
    assert (len(done.samples), done.stopped_early) == (20, "")
    assert all(0 <= sample.send_delay_ms < 100 for sample in done.samples)


async def test_latency_of_an_open_loop_counts_the_wait_for_the_client_too() -> None:
    """The client's loop is blocked once: requests due meanwhile go out late, and their latency says so."""
    asked: list[int] = []

    async def answer(request: Request) -> None:
        asked.append(1)
        if len(asked) == 5:
            time.sleep(0.3)
        await request.answer(words=2)

    async with odd_server(answer) as odd:
        done = await run_open(odd, open_plan())
    assert max(sample.ttft_ms or 0 for sample in done.samples) > 250
    assert done.client_bound.startswith("the client sent up to ")


async def test_rate_that_piles_up_is_given_up() -> None:
    """One place, 20 ms each, asked 100 times a second."""
    place = asyncio.Lock()

    async def answer(request: Request) -> None:
        async with place:
            await asyncio.sleep(0.02)
        await request.answer(words=1, pause_s=0)

    async with odd_server(answer) as odd:
        done = await run_open(odd, open_plan(requests=200, rates=(100.0,)))
    assert done.saturated.startswith("requests pile up: ")
    assert done.stopped_early.startswith("saturated: requests pile up: ")
    assert len(done.samples) < 100


async def test_open_loop_against_a_dead_server_ends() -> None:
    async with odd_server(lambda request: request.reply(500, "boom")) as odd:
        done = await run_open(odd, open_plan(requests=500, rates=(20.0,)))
    assert done.stopped_early.startswith("5 requests failed in a row: HTTP 500: boom")
    assert len(done.samples) < 10


async def test_ramp_of_a_closed_loop() -> None:
    plan = replace(PLAN, requests=8, ramp_s=0.4)
    async with odd_server(lambda request: request.answer(words=2, pause_s=0.4)) as odd:
        done, _ = await run(odd, plan, concurrency=4)
    begins = sorted(sample.started_at for sample in done.samples)
    assert [at - begins[0] for at in begins[:4]] == pytest.approx([0, 0.1, 0.2, 0.3], abs=0.06)


async def test_more_requests_at_once_than_the_usual_pool_of_100() -> None:
    async with odd_server(lambda request: request.answer(words=3, pause_s=0.3)) as odd:
        done, _ = await run(odd, replace(PLAN, requests=120), concurrency=120)
    assert (done.in_flight, odd.most_open) == (120, 120)
    assert not any(sample.error for sample in done.samples)


async def test_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    async with odd_server(lambda request: request.answer(), path) as odd:
        done, _ = await run(odd, PLAN, unix_socket=path)
    assert not any(sample.error for sample in done.samples)
    assert odd.generations[0].headers["host"] == "127.0.0.1:1"
