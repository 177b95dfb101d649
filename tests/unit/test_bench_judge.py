"""The verdict: its interval, its rule, its error rates by simulation, and what it refuses to judge."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from specd.bench.effect import Pair, clustered, simple
from specd.bench.judge import Comparison, compare
from specd.bench.plan import Level, LevelDone, Sample
from specd.bench.student import quantile
from specd.settings import Policy

POLICY = Policy()
Noise = Callable[[str, int, int], float]


def side(
    speed: float = 1.0, *, prompts: int = 12, repeats: int = 3, levels: tuple[int, ...] = (1,),
    noise: Noise | None = None, same_prompts: bool = False, **changes: Any,
) -> list[LevelDone]:  # fmt: skip
    """One side's levels; `noise(prompt, repeat, concurrency)` is added to the log of each time."""
    done = []
    for concurrency in levels:
        for repeat in range(1, repeats + 1):
            samples = []
            for index in range(prompts):
                prompt = f"p{index if same_prompts else index + prompts * repeat}"
                factor = math.exp(noise(prompt, repeat, concurrency) if noise else 0.0) / speed
                ttft, tpot = 80 * factor, 10 * factor
                samples.append(
                    Sample(
                        concurrency=concurrency, repeat=repeat, prompt_id=prompt, started_at=0.0, ttft_ms=ttft,
                        answer_ttft_ms=ttft, tpot_ms=tpot, e2e_ms=ttft + 99 * tpot, tokens_in=50, tokens_out=100,
                        chunks=100, finish="length",
                    )
                )  # fmt: skip
            wall_s = sum(sample.e2e_ms or 0 for sample in samples) / 1000 / concurrency
            done.append(
                LevelDone(
                    level=Level(concurrency, repeat), samples=tuple(samples), wall_s=wall_s, metrics_before="",
                    metrics_after="", loop_lag_p99_ms=1.0, endpoint="chat", counting="running", in_flight=concurrency,
                    route="direct",
                )
            )  # fmt: skip
    return [replace(level, **changes) for level in done]


def noisy(seed: int, spread: float = 0.02) -> Noise:
    rng = random.Random(seed)
    return lambda _prompt, _repeat, _level: rng.gauss(0, spread)


def spoiled(levels: list[LevelDone], count: int, **changes: Any) -> list[LevelDone]:
    """Change the first `count` samples of the first level."""
    first, *others = levels
    samples = [replace(s, **changes) if n < count else s for n, s in enumerate(first.samples)]
    return [replace(first, samples=tuple(samples)), *others]


# -- statistics


@pytest.mark.parametrize(
    ("p", "df", "expected"),
    [
        (0.975, 1, 12.70620474), (0.975, 2, 4.30265273), (0.975, 5, 2.57058184), (0.95, 11, 1.79588482),
        (0.975, 35, 2.03010793), (0.995, 10, 3.16927267), (0.975, 1e6, 1.95996636), (0.75, 1, 1.0),
        (0.025, 2, -4.30265273), (0.5, 3, 0.0), (0.9995, 4, 8.61030158),
    ],
)  # fmt: skip
def test_quantiles_of_student(p: float, df: float, expected: float) -> None:
    assert quantile(p, df) == pytest.approx(expected, abs=1e-6)


def test_quantile_between_whole_degrees_of_freedom() -> None:
    assert quantile(0.975, 3) < quantile(0.975, 2.5) < quantile(0.975, 2)


@pytest.mark.parametrize(("p", "df"), [(0.0, 2), (1.0, 2), (0.9, 0), (0.9, math.nan)])
def test_no_quantile(p: float, df: float) -> None:
    with pytest.raises(ValueError, match="no t quantile"):
        quantile(p, df)


def test_interval_of_independent_pairs_is_the_usual_one() -> None:
    values = [0.1, 0.2, 0.15, 0.05, 0.3, 0.1]
    mean = sum(values) / 6
    half = quantile(0.975, 5) * math.sqrt(sum((v - mean) ** 2 for v in values) / 5 / 6)
    for effect in (
        simple(values, 0.95),
        clustered([Pair(value, f"p{n}", 1) for n, value in enumerate(values)], 0.95),
    ):
        assert effect is not None
        assert (effect.mean, effect.low, effect.high) == pytest.approx((mean, mean - half, mean + half))


def test_pairs_of_one_prompt_count_once() -> None:
    """Repeating each pair ten times adds nothing that was not known."""
    values = [0.1, 0.2, 0.15, 0.05, 0.3, 0.1]
    once = clustered([Pair(value, f"p{n}", 1) for n, value in enumerate(values)], 0.95)
    often = clustered([Pair(value, f"p{n}", r) for n, value in enumerate(values) for r in range(10)], 0.95)
    assert once is not None
    assert often is not None
    assert (often.low, often.high) == pytest.approx((once.low, once.high))


def test_what_a_repeat_shares_widens_the_interval() -> None:
    rng = random.Random(1)
    calm = [Pair(rng.gauss(0, 0.01), f"{n}", n % 4) for n in range(48)]
    moved = [Pair(pair.effect + 0.03 * (pair.repeat - 1.5), pair.prompt, pair.repeat) for pair in calm]
    one, two = clustered(calm, 0.95), clustered(moved, 0.95)
    assert one is not None
    assert two is not None
    assert two.high - two.low > 5 * (one.high - one.low)


def test_one_prompt_or_one_repeat_says_nothing_of_doubt() -> None:
    assert clustered([Pair(0.1, "a", 1), Pair(0.2, "a", 2)], 0.95) is None
    assert simple([0.1], 0.95) is None


# -- the rule


@pytest.mark.parametrize(
    ("speed", "outcome", "words"),
    [
        (0.88, "worse", "12.0 % slower (95 % interval "),
        (1.2, "better", "20.0 % faster (95 % interval "),
        (1.0, "equivalent", "no difference beyond the margin of 3 %: "),
    ],
)
@pytest.mark.parametrize("metric", ["tpot", "ttft", "output_tok_s"])
def test_outcomes(speed: float, outcome: str, words: str, metric: str) -> None:
    noise = {1: noisy(1, 0.004), 2: noisy(2, 0.004)}
    verdict = compare(side(noise=noise[1]), side(speed, noise=noise[2]), Policy(metric=metric))
    assert verdict.outcome == outcome
    assert verdict.estimate == pytest.approx(speed - 1, abs=0.005)
    assert verdict.low is not None
    assert verdict.high is not None
    assert verdict.low < (verdict.estimate or 0) < verdict.high
    if speed == 1.0:
        assert verdict.reason.startswith(words)
    else:
        assert verdict.reason.split(" (")[0].split()[1:3] == words.split(" (")[0].split()[1:3]
    assert verdict.reason.endswith("3 repeats" if metric == "output_tok_s" else "36 pairs")


def test_reason_in_full() -> None:
    verdict = compare(side(), side(0.877), POLICY)
    assert verdict.reason == "12.3 % slower (95 % interval 12.3 to 12.3 %) in TPOT at concurrency 1, 36 pairs"


def test_wide_interval_is_inconclusive() -> None:
    verdict = compare(side(noise=noisy(3, 0.3)), side(noise=noisy(4, 0.3)), POLICY)
    assert verdict.outcome == "inconclusive"
    assert verdict.reason.startswith("not sure enough for a margin of 3 %: ")
    assert " % slower to " in verdict.reason


def test_sure_but_small_difference_is_equivalent() -> None:
    verdict = compare(side(noise=noisy(1, 0.001)), side(1.01, noise=noisy(2, 0.001)), POLICY)
    assert verdict.outcome == "equivalent"
    assert verdict.low is not None
    assert verdict.low > 0


@pytest.mark.parametrize("metric", ["tpot", "ttft", "output_tok_s"])
def test_swapping_the_sides_swaps_the_verdict(metric: str) -> None:
    swapped = {"better": "worse", "worse": "better"}
    for seed in range(30):
        speed = 1 + 0.01 * (seed - 15)
        one, two = side(noise=noisy(seed)), side(speed, noise=noisy(seed + 99))
        here, there = compare(one, two, Policy(metric=metric)), compare(two, one, Policy(metric=metric))
        assert there.outcome == swapped.get(here.outcome, here.outcome)
        assert (1 + (here.estimate or 0)) * (1 + (there.estimate or 0)) == pytest.approx(1)


def test_too_few_pairs() -> None:
    verdict = compare(side(prompts=2, repeats=2), side(0.5, prompts=2, repeats=2), POLICY)
    assert (verdict.outcome, verdict.pairs, verdict.estimate) == ("inconclusive", 4, None)
    assert verdict.reason == "too little to judge in TPOT at concurrency 1: 4 pairs"


def test_throughput_of_one_repeat_is_inconclusive() -> None:
    verdict = compare(side(repeats=1), side(0.5, repeats=1), Policy(metric="output_tok_s"))
    assert (verdict.outcome, verdict.pairs) == ("inconclusive", 1)


def test_pairing_survives_samples_in_another_order_and_missing_ones() -> None:
    def skewed(prompt: str, _repeat: int, _level: int) -> float:
        return int(prompt[1:]) * 0.5

    candidate = [replace(level, samples=level.samples[::-1][1:]) for level in side(1.1, noise=skewed)]
    verdict = compare(side(noise=skewed), candidate, POLICY)
    assert verdict.pairs == 33
    assert verdict.estimate == pytest.approx(0.1)


def test_gain_at_one_level_and_loss_at_another_is_said() -> None:
    baseline = side(levels=(1, 16))
    candidate = [*side(1.3, levels=(1,)), *side(0.8, levels=(16,))]
    verdict = compare(baseline, candidate, POLICY)
    assert verdict.outcome == "better"
    assert verdict.reason.endswith("36 pairs; but 20.0 % slower at concurrency 16")
    deciding = compare(baseline, candidate, Policy(level=16))
    assert (deciding.outcome, deciding.level) == ("worse", 16)


def test_json_form() -> None:
    found = json.loads(
        json.dumps(compare(side(levels=(1, 4)), side(0.9, levels=(1, 4)), POLICY).as_json(), allow_nan=False)
    )
    assert list(found) == [
        "metric", "level", "estimate", "low", "high", "unit", "margin", "confidence", "pairs", "look", "outcome",
        "reason", "notes", "levels",
    ]  # fmt: skip
    assert [level["concurrency"] for level in found["levels"]] == [1, 4]
    tpot = found["levels"][1]["metrics"]["tpot"]
    assert (tpot["outcome"], tpot["unit"], tpot["baseline"]) == ("worse", "ms", pytest.approx(10))
    assert tpot["candidate"] == pytest.approx(10 / 0.9)
    assert found["levels"][0]["metrics"]["output_tok_s"]["unit"] == "tok/s"


# -- error rates, by simulation with the real code


def simulated(runs: int, speed: float, policy: Policy, *, same_prompts: bool) -> dict[str, int]:
    """Heavy-tailed noise of requests (sd about 4 %), 1 % shared by a repeat of a side, 3 % by a prompt of a side."""
    rng = random.Random(f"{speed} {same_prompts}")
    counts: dict[str, int] = {}

    def fresh() -> Noise:
        by_prompt: dict[str, float] = {}
        by_repeat: dict[int, float] = {}

        def noise(prompt: str, repeat: int, _level: int) -> float:
            heavy = rng.gauss(0, 0.02) * (4 if rng.random() < 0.05 else 1)
            shared = by_prompt.setdefault(prompt, rng.gauss(0, 0.03)) + by_repeat.setdefault(repeat, rng.gauss(0, 0.01))
            return heavy + shared

        return noise

    for _ in range(runs):
        one, two = side(noise=fresh(), same_prompts=same_prompts), side(speed, noise=fresh(), same_prompts=same_prompts)
        outcome = compare(one, two, policy).outcome
        counts[outcome] = counts.get(outcome, 0) + 1
    return counts


@pytest.mark.parametrize("same_prompts", [True, False], ids=["same prompts in each repeat", "other prompts"])
def test_no_difference_is_rarely_called_one(same_prompts: bool) -> None:
    counts = simulated(1000, 1.0, POLICY, same_prompts=same_prompts)
    assert counts.get("better", 0) + counts.get("worse", 0) <= 50
    # Without a margin only the interval itself stands between chance and a verdict.
    bare = simulated(1000, 1.0, Policy(margin=0.0), same_prompts=same_prompts)
    assert bare.get("better", 0) + bare.get("worse", 0) <= 50


@pytest.mark.parametrize("same_prompts", [True, False], ids=["same prompts in each repeat", "other prompts"])
@pytest.mark.parametrize(("speed", "outcome"), [(0.9, "worse"), (1.1, "better")])
def test_ten_percent_is_found(speed: float, outcome: str, same_prompts: bool) -> None:
    counts = simulated(300, speed, POLICY, same_prompts=same_prompts)
    assert counts.get(outcome, 0) >= 285


# -- validity


def invalid(baseline: list[LevelDone], candidate: list[LevelDone], **policy: Any) -> Comparison:
    verdict = compare(baseline, candidate, Policy(**policy))
    assert verdict.outcome == "invalid"
    return verdict


def test_more_errors_than_allowed() -> None:
    verdict = invalid(side(), spoiled(side(1.5), 2, error="HTTP 500: boom", ttft_ms=None, tpot_ms=None, e2e_ms=None))
    assert verdict.reason == "2 of 36 requests to the candidate failed at concurrency 1 (HTTP 500: boom)"
    assert compare(side(), spoiled(side(1.5), 1, error="x"), Policy(max_error_rate=0.05)).outcome == "better"


def test_errors_at_another_level_and_on_the_baseline_count_too() -> None:
    broken = [*side(1.5), *spoiled(side(1.5, levels=(16,)), 9, error="x")]
    assert "to the candidate failed at concurrency 16" in invalid(side(levels=(1, 16)), broken).reason
    assert "to the baseline failed at concurrency 16" in invalid(broken, side(levels=(1, 16))).reason


def test_level_that_was_given_up() -> None:
    verdict = invalid(side(), side(1.5, stopped_early="stalled: nothing came"))
    assert verdict.reason == "the candidate was given up at concurrency 1: stalled: nothing came"


def test_counted_and_estimated_tokens_are_not_compared() -> None:
    estimated = [replace(level, samples=tuple(replace(s, exact=False) for s in level.samples)) for level in side(0.5)]
    assert "some are estimated" in invalid(side(), estimated).reason
    assert compare(side(), estimated, Policy(metric="ttft")).outcome == "worse"
    both = compare(estimated, estimated, POLICY)
    assert both.outcome == "equivalent"
    assert "estimated from the length of the text" in both.notes[0]


def test_late_client_decides_nothing() -> None:
    verdict = invalid(side(), side(0.5, loop_lag_p99_ms=250.0))
    assert (
        verdict.reason == "client-bound: the candidate's client was late by 250.0 ms (99th percentile) at concurrency 1"
    )
    # 12 ms are much for a TTFT of 80 ms and nothing for 990 ms of decoding.
    assert compare(side(), side(0.9, loop_lag_p99_ms=12.0), POLICY).outcome == "worse"
    assert "client-bound" in invalid(side(), side(0.9, loop_lag_p99_ms=12.0), metric="ttft").reason


def test_other_endpoint() -> None:
    assert "different endpoints" in invalid(side(), side(endpoint="completions")).reason


@pytest.mark.parametrize(("baseline", "candidate"), [([], []), (side(), []), ([], side()), (side(levels=(4,)), side())])
def test_not_measured(baseline: list[LevelDone], candidate: list[LevelDone]) -> None:
    verdict = invalid(baseline, candidate, level=1)
    assert verdict.reason == "nothing to compare at concurrency 1: it was not measured on both sides"


def test_all_failed_has_no_figures() -> None:
    broken = [
        replace(
            level, samples=tuple(replace(s, error="x", ttft_ms=None, tpot_ms=None, e2e_ms=None) for s in level.samples)
        )
        for level in side()
    ]
    verdict = invalid(side(), broken)
    assert verdict.estimate is None
    json.dumps(verdict.as_json(), allow_nan=False)


def test_notes() -> None:
    long = [replace(level, samples=tuple(replace(s, tokens_out=300) for s in level.samples)) for level in side()]
    notes = compare(side(route="tunnel"), [replace(level, in_flight=0) for level in long], POLICY).notes
    assert [note.split(":")[0][:30] for note in notes] == [
        "the answers differ in length (", "measured over direct and tunne", "fewer requests than the concur",
    ]  # fmt: skip
