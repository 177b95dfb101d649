"""Benchmark clients, ours and others', run the same way: so many requests at a concurrency, figures and CPU time back.

Others are commands given by path; each is asked for the same load over chat, streamed, with the server's own count of
tokens, and its figures are read from the JSON it writes. Their options: `vllm bench serve --help=all`, `guidellm run
--help`, `aiperf profile --help`, as of vLLM 0.32, GuideLLM 0.8 and AIPerf 0.13.
"""

import asyncio
import json
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specd.bench.builtin import BuiltinBenchmark
from specd.bench.plan import BenchPlan, Level, LevelDone, Target

__all__ = ["OTHERS", "Figures", "Load", "ours", "run_other", "say"]

_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Load:
    """What a client is asked to do. `tokenizer` is a directory with one, for clients that can't do without."""

    url: str
    concurrency: int
    requests: int
    tokens: int
    tokenizer: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a client found: mean times in ms, and the CPU seconds of its processes; `level` is ours alone."""

    ttft_ms: float
    tpot_ms: float
    cpu_s: float
    level: LevelDone | None = None


async def ours(load: Load) -> Figures:
    """Run this project's client."""
    plan = BenchPlan(
        levels=(load.concurrency,), repeats=1, requests=load.requests, prompts="quick", max_tokens=load.tokens,
        temperature=0.0, warmup_requests=0, first_token_s=60.0, idle_s=60.0, extra_body={"ignore_eos": True},
    )  # fmt: skip
    cpu = _children_cpu_s()
    level = Level(load.concurrency, 1)
    async with BuiltinBenchmark().measure(Target(base_url=load.url, model="m"), plan, (level,)) as run:
        done = next(iter([item async for item in run if isinstance(item, LevelDone)]))
    bad = [sample.error for sample in done.samples if sample.error]
    if bad:
        raise RuntimeError(f"{len(bad)} requests failed: {bad[0]}")
    ttft = statistics.fmean(sample.ttft_ms or 0.0 for sample in done.samples)
    tpot = statistics.fmean(sample.tpot_ms or 0.0 for sample in done.samples)
    return Figures(ttft, tpot, _children_cpu_s() - cpu, done)


def _vllm(load: Load, directory: Path) -> list[str]:
    return [
        *("bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", load.url),
        *("--model", "m", "--tokenizer", load.tokenizer, "--dataset-name", "random", "--random-input-len", "20"),
        *("--random-output-len", str(load.tokens), "--num-prompts", str(load.requests), "--ignore-eos"),
        *("--max-concurrency", str(load.concurrency), "--save-result", "--result-dir", str(directory)),
        *("--result-filename", "out.json", "--disable-tqdm"),
    ]


def _vllm_figures(directory: Path) -> tuple[float, float]:
    found = json.loads((directory / "out.json").read_text())
    return found["mean_ttft_ms"], found["mean_tpot_ms"]


def _guidellm(load: Load, directory: Path) -> list[str]:
    return [
        *("run", "--backend", f"kind=openai_http,target={load.url},model=m,request_format=/v1/chat/completions"),
        *("--profile", f"kind=concurrent,streams={load.concurrency}"),
        *("--constraint", f"kind=max_requests,count={load.requests}"),
        *("--tokenizer", f"kind=huggingface_auto,model={load.tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=20,output_tokens={load.tokens}"),
        *("--output", f"kind=json,path={directory / 'out.json'}", "--disable-console"),
    ]


def _guidellm_figures(directory: Path) -> tuple[float, float]:
    found = json.loads((directory / "out.json").read_text())["benchmarks"][0]["metrics"]
    # Its time per output token counts the first token too; the time between tokens is what others call TPOT.
    return (
        found["time_to_first_token_ms"]["successful"]["mean"],
        found["inter_token_latency_ms"]["successful"]["mean"],
    )


def _aiperf(load: Load, directory: Path) -> list[str]:
    return [
        *("profile", "--model", "m", "--url", load.url, "--endpoint-type", "chat", "--streaming"),
        *("--concurrency", str(load.concurrency), "--request-count", str(load.requests)),
        *("--tokenizer", load.tokenizer, "--isl", "20", "--osl", str(load.tokens), "--use-server-token-count"),
        *("--extra-inputs", "ignore_eos:true", "--no-gpu-telemetry", "--no-server-metrics", "--ui", "none"),
        *("--artifact-dir", str(directory)),
    ]


def _aiperf_figures(directory: Path) -> tuple[float, float]:
    found = json.loads(next(directory.rglob("profile_export_aiperf.json")).read_text())
    return found["time_to_first_token"]["avg"], found["inter_token_latency"]["avg"]


OTHERS: dict[str, tuple[Callable[[Load, Path], list[str]], Callable[[Path], tuple[float, float]]]] = {
    "vllm": (_vllm, _vllm_figures),
    "guidellm": (_guidellm, _guidellm_figures),
    "aiperf": (_aiperf, _aiperf_figures),
}


async def run_other(name: str, command: str, load: Load) -> Figures:
    """Run another client; raises RuntimeError with its last words when it does not do what it was asked."""
    arguments, figures = OTHERS[name]
    with tempfile.TemporaryDirectory() as where:
        directory = Path(where)
        cpu = _children_cpu_s()
        process = await asyncio.create_subprocess_exec(
            command, *arguments(load, directory), cwd=where, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_LIMIT_S):
                said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        used = _children_cpu_s() - cpu
        try:
            ttft, tpot = figures(directory)
        except (OSError, ValueError, LookupError, StopIteration, TypeError) as error:
            words = said.decode(errors="replace")[-1500:]
            raise RuntimeError(f"{name} ended with {process.returncode} and no figures ({error!r}): {words}") from error
    return Figures(ttft, tpot, used)


def _children_cpu_s() -> float:
    """CPU seconds of the processes that have ended and been waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def say(*words: Any) -> None:
    """Print a line at once."""
    print(*words, flush=True, file=sys.stdout)
