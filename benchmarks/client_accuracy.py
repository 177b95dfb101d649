"""How true are the benchmark client's figures? `python -m benchmarks.client_accuracy [--tool vllm=PATH ...]`.

Truth is what benchmarks/exact_server.py notes when it writes a token: any delay of its own is in it, so what is left is
the client's error (and the loopback's microseconds). Printed are measured - true, and the client's CPU time for each
token, which is that of a long run less that of a short one, so that starting the program is not in it. Other clients,
given by the path of their command, are measured by the same server in the same run.
"""

import argparse
import asyncio
import json
import statistics
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.client_tools import OTHERS, Figures, Load, ours, run_other, say

# Concurrency, requests, ms a token.
_LEVELS = ((1, 4, 20.0), (32, 128, 20.0), (256, 768, 40.0))
_TOKENS = 100
_FIRST_MS = 50.0
_COUNTABLE = 10_000
_FLOOD = 64
_FLOOD_STEPS_MS = (16.0, 8.0, 4.0, 3.0, 2.0, 1.5, 1.0)
# Beyond these errors a client is behind.
_TPOT_ERROR, _TTFT_ERROR_MS = 0.01, 10.0


@asynccontextmanager
async def exact_server(step_ms: float, first_ms: float = _FIRST_MS, per_chunk: int = 1) -> AsyncIterator[str]:
    """Run the server and return its URL."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.exact_server", "--step-ms", str(step_ms), "--first-ms", str(first_ms),
        "--per-chunk", str(per_chunk), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.kill()
        await process.wait()


async def truth(url: str, load: Load) -> tuple[float, float]:
    """Return the true mean TTFT and TPOT in ms of the last requests, which are the counted ones."""

    def read() -> list[dict[str, Any]]:
        with urllib.request.urlopen(url + "/truth", timeout=10) as answer:
            return list(json.loads(answer.read()))

    found = [each for each in await asyncio.to_thread(read) if each["tokens"] == load.tokens][-load.requests :]
    return statistics.fmean(e["ttft_ms"] for e in found), statistics.fmean(e["tpot_ms"] for e in found)


async def _run(name: str, command: str, load: Load) -> Figures:
    return await (ours(load) if name == "ours" else run_other(name, command, load))


async def accuracy(tools: dict[str, str], tokenizer: str) -> None:
    """Print errors and cost of each client at each concurrency."""
    say(f"{'client':9} {'conc.':>5} {'tok/s':>6} | TTFT error ms | TPOT error % | CPU us a token")
    for concurrency, requests, step_ms in _LEVELS:
        for name, command in tools.items():
            async with exact_server(step_ms) as url:
                load = Load(url, concurrency, requests, _TOKENS, tokenizer)
                try:
                    short = await _run(name, command, Load(url, 1, 1, _TOKENS, tokenizer))
                    await truth(url, load)
                    found = await _run(name, command, load)
                except (RuntimeError, TimeoutError) as error:
                    say(f"{name:9} {concurrency:5} {'':6} | {str(error)[-600:]}")
                    continue
                ttft, tpot = await truth(url, load)
            errors = f"{found.ttft_ms - ttft:+13.2f} | {(found.tpot_ms / tpot - 1) * 100:+12.3f} | "
            # Starting a program costs other amounts each time; a few tokens would be lost in that.
            count = (requests - 1) * _TOKENS
            errors += f"{(found.cpu_s - short.cpu_s) * 1e6 / count:8.0f}" if count > _COUNTABLE else f"{'-':>8}"
            say(f"{name:9} {concurrency:5} {concurrency / step_ms * 1000:6.0f} | {errors}{_health(found)}")


async def packing() -> None:
    """Print our tokens per second for each number of tokens in an event."""
    say("\ntokens in an event, ours, 10 ms a token: tok/s, and against one token an event")
    alone = 0.0
    for size in (1, 2, 4, 8):
        async with exact_server(10.0, per_chunk=size) as url:
            found = await ours(Load(url, 4, 8, 160))
        speed = 1000 / found.tpot_ms
        alone = alone or speed
        say(f"{size:3} {speed:8.2f} {(speed / alone - 1) * 100:+.2f} %")


async def flood() -> None:
    """Print up to which rate of tokens our client keeps up."""
    say(f"\n{_FLOOD} streams, ours, until the client is behind (TPOT off by 1 % or TTFT by {_TTFT_ERROR_MS:g} ms)")
    best = 0.0
    for step_ms in _FLOOD_STEPS_MS:
        async with exact_server(step_ms) as url:
            load = Load(url, _FLOOD, _FLOOD * 2, round(2000 / step_ms))
            found = await ours(load)
            ttft, tpot = await truth(url, load)
        rate = _FLOOD / tpot * 1000
        behind = abs(found.tpot_ms / tpot - 1) > _TPOT_ERROR or abs(found.ttft_ms - ttft) > _TTFT_ERROR_MS
        errors = f"TTFT {found.ttft_ms - ttft:+.2f} ms, TPOT {(found.tpot_ms / tpot - 1) * 100:+.3f} %"
        say(f"{rate:8.0f} tok/s: {errors}{_health(found)}{', behind' if behind else ''}")
        if behind:
            break
        best = rate
    say(f"kept up to {best:.0f} tok/s")


def _health(found: Figures) -> str:
    if found.level is None:
        return ""
    level = found.level
    words = f", {level.cpu_share:.0%} of a core, loop lag p99 {level.loop_lag_p99_ms:.1f} ms"
    return f"{words}, client-bound: {level.client_bound}" if level.client_bound else words


async def main() -> None:
    """Print all three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", action="append", default=[], help=f"NAME=PATH, NAME one of {', '.join(OTHERS)}")
    parser.add_argument("--tokenizer", default="", help="a directory with a tokenizer, for the other clients")
    parser.add_argument("--only", choices=("accuracy", "packing", "flood"))
    given = parser.parse_args()
    tools = {"ours": "", **dict(tool.split("=", 1) for tool in given.tool)}
    if given.only in (None, "accuracy"):
        await accuracy(tools, given.tokenizer)
    if given.only in (None, "packing"):
        await packing()
    if given.only in (None, "flood"):
        await flood()


if __name__ == "__main__":
    asyncio.run(main())
