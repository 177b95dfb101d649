"""How true are the benchmark client's figures? `python -m benchmarks.client_accuracy`.

Truth for TPOT is a script: the reference server makes a token every 10 ms at any concurrency. Truth for TTFT is the
engine's own mean (from /metrics, so including any wait for a running step) plus what a request spends outside the
engine, on the way and in the HTTP server. The latter is what a bare socket, which does nothing but look at the clock,
sees with the same requests in the same run. Printed are measured / true - 1, and the client's CPU time for each token.
"""

import argparse
import asyncio
import json
import re
import resource
import statistics
import time
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from benchmarks.reference_server import reference_server
from specd.bench.builtin import BuiltinBenchmark
from specd.bench.plan import BenchPlan, Level, LevelDone, Target
from specd.bench.prompts import load_prompts
from specd.bench.workload import Mode, body, counted

STEP_MS = 10.0
SCRIPT: dict[str, Any] = {
    "base_step_ms": STEP_MS, "slope": 0, "step_noise": 0, "prefill_ms_per_token": 0, "answer_tokens": [4000, 4000],
}  # fmt: skip


async def measure(url: str, level: Level, requests: int, tokens: int) -> LevelDone:
    """Measure one level of a reference server."""
    plan = _plan(level, requests, tokens)
    async with BuiltinBenchmark().measure(Target(base_url=url, model="m"), plan, (level,)) as run:
        done = [item async for item in run if isinstance(item, LevelDone)]
    return done[0]


async def bare_ttfts_ms(url: str, level: Level, requests: int, tokens: int) -> list[float]:
    """Send a level's requests over bare sockets, one for each slot, and return the times to the first token in ms."""
    plan, found = _plan(level, requests, tokens), []
    target = Target(base_url=url, model="m")
    payloads = [
        json.dumps(body(work, plan, target, Mode())).encode() for work in counted(load_prompts("quick"), plan, level)
    ]

    async def slot() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        while payloads:
            payload = payloads.pop(0)
            head = f"POST {Mode().path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n\r\n"
            sent = time.monotonic()
            writer.write(head.encode() + payload)
            seen, first = b"", None
            while not seen.endswith(b"0\r\n\r\n"):
                seen += await reader.read(65536)
                # The second one: the first belongs to the role and is empty.
                if first is None and seen.count(b'"content":') > 1:
                    first = (time.monotonic() - sent) * 1000
                    found.append(first)
        writer.close()

    await asyncio.gather(*(slot() for _ in range(level.concurrency)))
    return found


def _engine_ttft_ms(before: str, after: str) -> float:
    """Return the engine's own mean time to the first token between two pages."""
    total, count = (
        _value(after, f"vllm:time_to_first_token_seconds_{part}")
        - _value(before, f"vllm:time_to_first_token_seconds_{part}")
        for part in ("sum", "count")
    )
    return total / count * 1000


def _value(page: str, series: str) -> float:
    found = re.search(rf"^{re.escape(series)}(?:{{.*}})? (\S+)$", page, re.MULTILINE)
    return float(found.group(1)) if found else 0.0


async def _page(url: str) -> str:
    def read() -> str:
        with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(read)


def _plan(level: Level, requests: int, tokens: int) -> BenchPlan:
    return BenchPlan(
        levels=(level.concurrency,), repeats=1, requests=requests, prompts="quick", max_tokens=tokens, temperature=0.0,
        warmup_requests=2, first_token_s=30.0, idle_s=30.0, extra_body={"ignore_eos": True},
    )  # fmt: skip


def _spread(values: list[float], truth: float) -> str:
    errors = sorted(abs(value / truth - 1) for value in values)
    worst = errors[min(len(errors) - 1, int(len(errors) * 0.99))]
    return f"median {statistics.median(values) / truth - 1:+.4f}  p99 of |error| {worst:.4f}"


async def main() -> None:
    """Print the errors at each concurrency and chunk size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=128)
    tokens = parser.parse_args().tokens
    print("concurrency  tokens/chunk  metric  error (measured / true - 1)")
    async with reference_server(SCRIPT) as url:
        for concurrency, requests in ((1, 6), (16, 64)):
            cpu = _children_cpu_s()
            done = await measure(url, Level(concurrency, 1), requests, tokens)
            cost_us = (_children_cpu_s() - cpu) * 1e6 / sum(s.tokens_out or 0 for s in done.samples)
            good = [sample for sample in done.samples if not sample.error]
            # Another repeat has salts of its own, so that the prefix cache does not know these requests either.
            pages = [await _page(url)]
            bare = await bare_ttfts_ms(url, Level(concurrency, 2), requests, tokens)
            pages.append(await _page(url))
            outside = statistics.fmean(bare) - _engine_ttft_ms(*pages)
            true = _engine_ttft_ms(done.metrics_before, done.metrics_after) + outside
            ours = statistics.fmean(s.ttft_ms or 0 for s in good)
            print(f"{concurrency:11}  {1:12}  TPOT    {_spread([s.tpot_ms or 0 for s in good], STEP_MS)}")
            print(
                f"{concurrency:11}  {1:12}  TTFT    mean   {ours / true - 1:+.4f}  ({ours:.2f} ms, true {true:.2f} ms)"
            )
            print(f"{'':27}  requests {len(done.samples)}, failed {len(done.samples) - len(good)}, ", end="")
            print(f"loop lag p99 {done.loop_lag_p99_ms:.2f} ms, client CPU {cost_us:.0f} us a token, start included")
    for size in (2, 4, 8, 16):
        async with reference_server({**SCRIPT, "tokens_per_chunk": size}) as url:
            done = await measure(url, Level(1, 1), 3, tokens)
            print(f"{1:11}  {size:12}  TPOT    {_spread([s.tpot_ms or 0 for s in done.samples], STEP_MS)}")


def _children_cpu_s() -> float:
    """CPU seconds of the processes that have ended and been waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    asyncio.run(main())
