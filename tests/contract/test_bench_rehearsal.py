"""The whole benchmark against the rehearsal engine: scripted truth, faults, and a verdict with acceptance."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.reference_server import reference_server
from specd.bench.builtin import BuiltinBenchmark
from specd.bench.judge import compare
from specd.bench.plan import BenchPlan, Level, LevelDone, Target
from specd.bench.summary import acceptance, prefix_hit_rate, summarise
from specd.engines import by_name
from specd.settings import Policy

PLAN = BenchPlan(
    levels=(1,), repeats=1, requests=3, prompts="quick", max_tokens=48, temperature=0.0, warmup_requests=2,
    first_token_s=10.0, idle_s=2.0, extra_body={"ignore_eos": True},
)  # fmt: skip
STEADY: dict[str, Any] = {"base_step_ms": 10, "slope": 0, "step_noise": 0, "prefill_ms_per_token": 0}


async def measure(url: str, plan: BenchPlan = PLAN, levels: Sequence[Level] = (Level(1, 1),)) -> list[LevelDone]:
    async with BuiltinBenchmark().measure(Target(base_url=url, model="m"), plan, tuple(levels)) as run:
        return [item async for item in run if isinstance(item, LevelDone)]


pytestmark = pytest.mark.timing


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
async def test_scripted_speed_whatever_a_chunk_holds(size: int) -> None:
    async with reference_server({**STEADY, "tokens_per_chunk": size}) as url:
        (done,) = await measure(url)
    figures = summarise([done])
    assert figures["tpot_ms"]["median"] == pytest.approx(10, rel=0.01)
    assert figures["tokens_out"]["mean"] == 48
    assert figures["tokens_per_chunk"] == pytest.approx(size, rel=0.2)
    assert (done.counting, figures["is_exact"], figures["failed"]) == ("running", True, 0)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content", "both"])
async def test_reasoning_counts_and_starts_the_clock(field: str) -> None:
    script = {**STEADY, "reasoning": field, "reasoning_share": 0.5}
    async with reference_server(script, "--reasoning-parser", "deepseek_r1") as url:
        (done,) = await measure(url)
    for sample in done.samples:
        assert sample.error == ""
        assert sample.ttft_ms == pytest.approx(10, abs=8)
        assert sample.answer_ttft_ms == pytest.approx(250, rel=0.1)
        assert sample.tpot_ms == pytest.approx(10, rel=0.02)
        assert (sample.tokens_out, sample.tokens_reasoning) == (48, 24)


async def test_no_usage_is_counted_by_the_servers_tokenizer() -> None:
    async with reference_server({**STEADY, "faults": "no-usage"}) as url:
        (done,) = await measure(url)
    assert done.counting == "tokenize"
    assert [(s.tokens_out, s.exact) for s in done.samples] == [(48, True)] * 3


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("error-in-stream:20", "error in the stream: "),
        ("cut-stream:20", "stream cut: "),
        ("hang:serving:60", "idle timeout"),
    ],
)
async def test_faults_in_mid_stream(fault: str, error: str) -> None:
    async with reference_server({**STEADY, "faults": fault}) as url:
        (done,) = await measure(url, BenchPlan(**{**_fields(PLAN), "warmup_requests": 0, "idle_s": 0.5}))
    failed = [sample for sample in done.samples if sample.error]
    assert failed
    assert failed[0].error.startswith(error)
    assert "(after " in failed[0].error
    assert all(sample.ttft_ms is None for sample in failed)


async def test_unique_prefixes_keep_the_prefix_cache_out() -> None:
    async with reference_server({**STEADY, "base_step_ms": 1}) as url:
        levels = await measure(url, levels=(Level(1, 1), Level(4, 1), Level(1, 2)))
    engine = by_name("vllm")
    for done in levels:
        rate = prefix_hit_rate(engine.counters(done.metrics_before), engine.counters(done.metrics_after))
        assert rate is not None
        assert rate < 0.01


async def test_slower_speculation_is_called_worse_with_its_acceptance() -> None:
    """The story of an n-gram trial on a mixture of experts: drafts are accepted, and it is slower all the same."""
    script = {"time_scale": 0.25}
    flag = json.dumps({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4})
    levels = [Level(1, repeat) for repeat in (1, 2)]
    plan = BenchPlan(**{**_fields(PLAN), "requests": 5, "repeats": 2})
    async with reference_server(script) as url:
        baseline = await measure(url, plan, levels)
    async with reference_server(script, "--speculative-config", flag) as url:
        candidate = await measure(url, plan, levels)
    verdict = compare(baseline, candidate, Policy())
    assert verdict.outcome == "worse"
    assert verdict.pairs == 10
    assert "% slower (95 % interval " in verdict.reason
    assert -0.4 < (verdict.low or 0) < (verdict.estimate or 0) < (verdict.high or 0) < -0.03
    engine = by_name("vllm")
    found = acceptance(engine.counters(candidate[0].metrics_before), engine.counters(candidate[0].metrics_after))
    assert found is not None
    assert 1.2 < found["acceptance_length"] < 2.5
    assert 1 < found["tokens_per_step"] < found["acceptance_length"]
    assert len(found["acceptance_by_position"]) == 5
    assert acceptance(engine.counters(baseline[0].metrics_before), engine.counters(baseline[0].metrics_after)) is None


def _fields(plan: BenchPlan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}
