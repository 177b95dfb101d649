"""A benchmark client that is started ahead of its order: used once, replaced when it died, never left behind."""

import asyncio
import os
import signal

from specd.bench.builtin import BuiltinBenchmark
from specd.bench.plan import BenchPlan, Level, LevelDone, Target
from tests.contract.odd_server import OddServer, odd_server
from tests.contract.test_bench_process import clients_of

PLAN = BenchPlan(
    levels=(1,), repeats=1, requests=2, prompts="quick", max_tokens=16, temperature=0.0, warmup_requests=0,
    first_token_s=5.0, idle_s=5.0,
)  # fmt: skip


async def waiting_client() -> int:
    """Wait until a client of this process runs, and return its pid."""
    async with asyncio.timeout(10):
        while not (found := list(clients_of(os.getpid()))):
            await asyncio.sleep(0.01)
    assert len(found) == 1
    return found[0]


async def measured_by(benchmark: BuiltinBenchmark, odd: OddServer) -> int:
    """Measure a level and return the pid of the client that did it."""
    async with benchmark.measure(Target(base_url=odd.url, model="m"), PLAN, (Level(1, 1),)) as run:
        pid = await waiting_client()
        (done,) = [item async for item in run if isinstance(item, LevelDone)]
    assert [sample.error for sample in done.samples] == ["", ""]
    return pid


async def test_a_prepared_client_does_the_next_measurement_and_only_that() -> None:
    benchmark = BuiltinBenchmark()
    async with odd_server(lambda request: request.answer()) as odd:
        benchmark.prepare()
        benchmark.prepare()
        prepared = await waiting_client()
        assert await measured_by(benchmark, odd) == prepared
        assert await measured_by(benchmark, odd) != prepared
    assert not list(clients_of(os.getpid()))


async def test_one_that_died_while_it_waited_is_replaced() -> None:
    benchmark = BuiltinBenchmark()
    async with odd_server(lambda request: request.answer()) as odd:
        benchmark.prepare()
        prepared = await waiting_client()
        os.kill(prepared, signal.SIGKILL)
        async with asyncio.timeout(5):
            while os.path.exists(f"/proc/{prepared}"):
                await asyncio.sleep(0.01)
        # Its thread that waited for the child tells the loop next.
        await asyncio.sleep(0.1)
        assert await measured_by(benchmark, odd) != prepared


async def test_one_that_is_not_used_ends_with_close() -> None:
    benchmark = BuiltinBenchmark()
    await benchmark.close()
    benchmark.prepare()
    await benchmark.close()
    benchmark.prepare()
    await waiting_client()
    await benchmark.close()
    assert not list(clients_of(os.getpid()))
