"""When requests of an open loop are due, and how saturation shows."""

import random
import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from specd.bench.arrivals import due_times
from specd.bench.judge import compare
from specd.bench.plan import BenchPlan, Level, LevelDone, Sample
from specd.bench.saturation import Crowd, no_gain
from specd.errors import BenchError
from specd.settings import Policy


def plan(**changes: object) -> BenchPlan:
    values: dict[str, object] = {
        "levels": (1,), "repeats": 2, "requests": 400, "prompts": "quick", "max_tokens": 16, "temperature": 0.0,
        "warmup_requests": 0, "first_token_s": 9.0, "idle_s": 9.0, "rates": (2.0,),
    }  # fmt: skip
    return BenchPlan(**{**values, **changes})  # type: ignore[arg-type]


# -- arrivals


def test_constant() -> None:
    times = due_times(plan(arrivals="constant"), Level(0, 1, 4.0))
    assert times[:3] == pytest.approx([0, 0.25, 0.5])
    assert len(times) == 400


def test_poisson_has_the_rate_and_the_spread_of_one() -> None:
    times = due_times(plan(requests=4000), Level(0, 1, 2.0))
    gaps = [late - early for early, late in pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(0.5, rel=0.06)
    assert statistics.stdev(gaps) == pytest.approx(0.5, rel=0.1)


def test_both_sides_are_asked_at_the_same_moments_and_repeats_are_not() -> None:
    assert due_times(plan(), Level(0, 1, 2.0)) == due_times(plan(), Level(0, 1, 2.0))
    assert due_times(plan(), Level(0, 1, 2.0)) != due_times(plan(), Level(0, 2, 2.0))


@pytest.mark.parametrize("text", ["10\n20\n40\n", '{"timestamp": 1000, "x": 1}\n\n{"timestamp": 2000}\n{"ts": 4000}\n'])
def test_replay_keeps_the_pattern_and_has_the_rate(tmp_path: Path, text: str) -> None:
    path = tmp_path / "times.jsonl"
    path.write_text(text)
    times = due_times(plan(arrivals=str(path), requests=6), Level(0, 1, 2.0))
    assert times == pytest.approx([0, 1 / 3, 1, 1.5, 1.5 + 1 / 3, 2.5])


@pytest.mark.parametrize("text", ["", "1\n", "1\n1\n", "2\n1\n", "1\nx\n", "1\n[2]\n", "1\ntrue\n", "1\nNaN\n"])
def test_series_that_can_not_be_replayed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "times.txt"
    path.write_text(text)
    with pytest.raises(BenchError):
        due_times(plan(arrivals=str(path)), Level(0, 1, 1.0))


def test_missing_series() -> None:
    with pytest.raises(BenchError, match="can't read the timestamps"):
        due_times(plan(arrivals="/nowhere/times"), Level(0, 1, 1.0))


def test_ramp_reaches_the_rate_evenly() -> None:
    times = due_times(plan(arrivals="constant", ramp_s=10.0), Level(0, 1, 4.0))
    # A rate that grows evenly from 0 to 4 has sent 20 in 10 s, and 5 of them in the first half.
    assert sum(at < 5 for at in times) == 5
    assert sum(at < 10 for at in times) == 20
    assert times[21] - times[20] == pytest.approx(0.25)
    assert times == sorted(times)


def test_levels_and_rates_of_a_plan() -> None:
    work = plan(levels=(1, 4), rates=(0.5,)).work()
    assert work == (
        Level(1, 1), Level(4, 1), Level(0, 1, 0.5), Level(1, 2), Level(4, 2), Level(0, 2, 0.5),
    )  # fmt: skip
    assert [level.name for level in work[:3]] == ["concurrency 1", "concurrency 4", "0.5 requests/s"]


# -- saturation


def crowd(rate: float, servers: int, seed: int, sends: int = 200) -> Crowd:
    """Simulate Poisson arrivals at `servers` places of a mean service time of 1 s; return what the sends saw."""
    rng, seen = random.Random(seed), Crowd()
    free = [0.0] * servers
    ends: list[float] = []
    at, has_answer = 0.0, False
    for _ in range(sends):
        at += rng.expovariate(rate)
        begin = max(at, min(free))
        free[free.index(min(free))] = begin + rng.uniform(0.5, 1.5)
        ends.append(max(free) if servers == 1 else begin + 1.0)
        if not has_answer and min(ends) <= at:
            has_answer = True
            seen.answered()
        seen.sent(sum(end > at for end in ends))
    return seen


def test_a_rate_above_what_the_server_can_do_is_seen() -> None:
    found = [crowd(2.0 * servers, servers, seed) for servers in (1, 4, 16) for seed in range(20)]
    assert all(each.is_growing for each in found)
    assert all(each.is_hopeless for each in found)
    assert found[0].words.startswith("requests pile up: ")


def test_a_rate_well_below_is_not() -> None:
    found = [crowd(0.5 * servers, servers, seed) for servers in (1, 4, 16) for seed in range(100)]
    assert sum(each.is_growing for each in found) <= 3


def test_few_requests_say_nothing() -> None:
    assert not crowd(10.0, 1, 1, sends=20).is_growing


def test_more_concurrency_without_more_speed() -> None:
    speeds = {1: 70.0, 8: 400.0, 16: 405.0}
    assert no_gain(speeds, 1) == no_gain(speeds, 8) == no_gain(speeds, 99) == ""
    assert no_gain(speeds, 16) == "405 tok/s, and 400 tok/s already at concurrency 8"


# -- the verdict


def level(load: tuple[int, float], repeat: int, tpot_ms: float, client_bound: str = "") -> LevelDone:
    """A level of eight good requests."""
    samples = tuple(
        Sample(
            concurrency=load[0], repeat=repeat, prompt_id=f"p{n}", started_at=0.0, ttft_ms=100.0 + n,
            tpot_ms=tpot_ms * (1 + n / 1000 + repeat / 5000), e2e_ms=1100.0, tokens_out=100,
        )
        for n in range(8)
    )  # fmt: skip
    return LevelDone(
        level=Level(load[0], repeat, load[1]), samples=samples, wall_s=8.0, metrics_before="", metrics_after="",
        loop_lag_p99_ms=0.1, endpoint="chat", in_flight=load[0], client_bound=client_bound,
    )  # fmt: skip


def test_rates_are_judged_each_by_itself_and_a_concurrency_decides() -> None:
    slower = {(1, 0.0): 10.0, (0, 0.5): 10.0, (0, 2.0): 20.0}
    baseline = [level(load, repeat, 10.0) for load in slower for repeat in (1, 2, 3)]
    candidate = [level(load, repeat, tpot) for load, tpot in slower.items() for repeat in (1, 2, 3)]
    found = compare(baseline, candidate, Policy())
    outcomes = {(r.concurrency, r.rate): r.outcome for r in found.results if r.metric == "tpot"}
    assert outcomes == {(1, 0.0): "equivalent", (0, 0.5): "equivalent", (0, 2.0): "worse"}
    assert (found.level, found.outcome) == (1, "equivalent")
    assert "50.0 % slower at 2 requests/s" in found.reason
    assert [(entry["concurrency"], entry["rate"]) for entry in found.as_json()["levels"]] == [(1, 0), (0, 0.5), (0, 2)]


def test_a_client_bound_level_decides_nothing() -> None:
    baseline = [level((1, 0.0), repeat, 10.0) for repeat in (1, 2, 3)]
    bound = "the client used 99% of the one core it can use"
    candidate = [level((1, 0.0), repeat, 20.0, bound if repeat == 2 else "") for repeat in (1, 2, 3)]
    found = compare(baseline, candidate, Policy())
    assert found.outcome == "invalid"
    assert found.reason == f"client-bound: of the candidate, {bound} at concurrency 1"
