"""How far a measurement is, and when it will end."""

import pytest

from specd.bench.plan import BenchPlan, Level, LevelDone, Progress
from specd.phases.pace import Pace


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


def make_plan(warmup: int) -> BenchPlan:
    return BenchPlan(
        levels=(1, 4), repeats=1, requests=10, prompts="quick", max_tokens=50, temperature=0.0,
        warmup_requests=warmup, first_token_s=10.0, idle_s=10.0,
    )  # fmt: skip


def seen(level: Level, done: int, total: int, tok_s: float | None) -> Progress:
    return Progress(level=level, done=done, total=total, failed=0, output_tok_s=tok_s)


def measured(level: Level, wall_s: float) -> LevelDone:
    return LevelDone(level=level, samples=(), wall_s=wall_s, metrics_before="", metrics_after="", loop_lag_p99_ms=0.0)


ONE, FOUR = Level(1, 1), Level(4, 1)


def test_nothing_is_claimed_before_a_token_was_seen() -> None:
    assert Pace(make_plan(0), [ONE, FOUR], {}).ahead(seen(ONE, 0, 10, None)) == (None, None)


def test_a_first_measurement_goes_by_the_speed_it_sees() -> None:
    clock = Clock()
    pace = Pace(make_plan(0), [ONE, FOUR], {}, clock)
    clock.at += 5
    # 10 answers of 50 tokens at 50 tok/s, half of them done; the other level at twice the speed.
    fraction, eta_s = pace.ahead(seen(ONE, 5, 10, 50.0))
    assert eta_s == pytest.approx(5 + 5)
    assert fraction == pytest.approx(5 / 15)


def test_what_the_other_side_took_counts_more_than_the_speed() -> None:
    clock = Clock()
    pace = Pace(make_plan(0), [ONE, FOUR], {(1, 0.0): 8.0, (4, 0.0): 4.0}, clock)
    assert pace.ahead(seen(ONE, 0, 10, 1.0)) == (0.0, pytest.approx(12.0))
    clock.at += 10
    pace.finished(measured(ONE, 10.0))
    assert pace.ahead(seen(FOUR, 5, 10, 1.0)) == (pytest.approx(10 / 12), pytest.approx(2.0))


def test_warm_up_is_part_of_what_is_left() -> None:
    clock = Clock()
    pace = Pace(make_plan(2), [ONE, FOUR], {(1, 0.0): 10.0, (4, 0.0): 10.0}, clock)
    # Two rounds of one request before the first level, two of four before the second.
    clock.at += 1
    assert pace.ahead(seen(ONE, 0, 0, 50.0))[1] == pytest.approx(20 + 2 + 8 - 1)
    clock.at += 1
    assert pace.ahead(seen(ONE, 0, 10, 50.0))[1] == pytest.approx(20 + 8)
    pace.finished(measured(ONE, 10.0))
    assert pace.ahead(seen(FOUR, 0, 10, 50.0))[1] == pytest.approx(10)


def test_the_share_never_falls_and_the_time_left_never_turns_negative() -> None:
    clock = Clock()
    pace = Pace(make_plan(0), [ONE], {(1, 0.0): 2.0}, clock)
    clock.at += 4
    first, _ = pace.ahead(seen(ONE, 8, 10, 50.0))
    pace.finished(measured(Level(1, 2), 400.0))
    second, eta_s = pace.ahead(seen(ONE, 8, 10, 50.0))
    assert first is not None
    assert second is not None
    assert second >= first
    assert eta_s == pytest.approx(80.0)
    pace.finished(measured(ONE, 400.0))
    assert pace.ahead(seen(ONE, 10, 10, 50.0)) == (pytest.approx(1.0), 0.0)


def test_a_rate_that_was_never_met_takes_as_long_as_its_requests_need_to_be_sent() -> None:
    slow = Level(0, 1, 0.5)
    fraction, eta_s = Pace(make_plan(4), [slow], {}).ahead(seen(slow, 0, 10, None))
    assert (fraction, eta_s) == (pytest.approx(0.0, abs=0.01), pytest.approx(20.0, abs=0.1))
