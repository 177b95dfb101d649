"""Looking early: the parts of the error add up to what is allowed, and limits stop a winner that costs too much."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from specd.bench.judge import compare
from specd.bench.limits import broken_limit
from specd.bench.plan import LevelDone
from specd.bench.sequential import SURE, complete_repeats, look_at
from specd.settings import Policy
from tests.unit.test_bench_judge import noisy, side


@pytest.mark.parametrize("of", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_the_looks_share_the_error_that_is_allowed(of: int, confidence: float) -> None:
    looks = [look for n in range(1, of + 1) if (look := look_at(n, of, confidence)) is not None]
    assert sum(1 - look.confidence for look in looks) == pytest.approx(1 - confidence)
    assert [look.number for look in looks] == list(range(min(3, of), of + 1))
    assert looks[-1].is_last


def test_a_repeat_counts_when_all_its_levels_are_there() -> None:
    levels = side(levels=(1, 4), repeats=3)
    assert complete_repeats(levels, 2) == 3
    assert complete_repeats(levels[:-1], 2) == 2


def decided_at(baseline: list[LevelDone], candidate: list[LevelDone], of: int) -> tuple[str, int]:
    """Return the verdict of looking after each repeat, and after which it came."""
    policy = Policy()
    for number in range(min(3, of), of + 1):
        look = look_at(number, of, policy.confidence)
        assert look is not None
        seen = [done for done in candidate if done.level.repeat <= number]
        found = compare(baseline, seen, policy, look)
        if found.outcome in SURE or look.is_last:
            return found.outcome, number
    raise AssertionError("the last look decides")


def test_a_clear_answer_comes_early_and_a_doubtful_one_late() -> None:
    baseline = side(repeats=5, noise=noisy(1))
    assert decided_at(baseline, side(0.8, repeats=5, noise=noisy(2)), 5) == ("worse", 3)
    assert decided_at(baseline, side(1.03, repeats=5, noise=noisy(3, 0.05)), 5)[1] == 5


def drifting(rng: random.Random) -> Callable[[str, int, int], float]:
    """Noise of a machine that drifts from repeat to repeat, with heavy tails."""
    drift = {repeat: rng.gauss(0, 0.03) for repeat in range(1, 5)}
    return lambda _prompt, repeat, _level: drift[repeat] + rng.gauss(0, 0.03) * (4 if rng.random() < 0.03 else 1)


def test_false_answers_stay_below_what_is_allowed_however_often_one_looks() -> None:
    """A/A with repeats that drift and heavy tails; benchmarks/verdict_errors.py does it at length."""
    rng, runs = random.Random(7), 120
    wrong = sum(
        decided_at(side(repeats=4, noise=drifting(rng)), side(repeats=4, noise=drifting(rng)), 4)[0]
        in {"better", "worse"}
        for _ in range(runs)
    )
    assert wrong <= 0.05 * runs + 3 * (0.05 * 0.95 * runs) ** 0.5


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({}, ""),
        ({"ttft_p95": 0.5}, ""),
        ({"ttft_p95": 0.1}, "TTFT (95th percentile) takes 30% longer at concurrency 1 (limit 10%)"),
        ({"error_rate": 0.0}, ""),
    ],
)
def test_a_figure_that_must_not_get_worse(limits: dict[str, float], words: str) -> None:
    baseline = side()
    candidate = [
        replace(done, samples=tuple(replace(s, ttft_ms=(s.ttft_ms or 0) * 1.3 * 1.2) for s in done.samples))
        for done in side(1.2)
    ]
    policy = Policy(limits=limits)
    assert broken_limit(baseline, candidate, policy) == words
    found = compare(baseline, candidate, policy)
    assert found.outcome == ("worse" if words else "better")
    assert words in found.reason
