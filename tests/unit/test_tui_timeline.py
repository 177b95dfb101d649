"""Stages, outage clock, guard and progress at a moment."""

from dataclasses import replace
from datetime import timedelta

import pytest

from states.table import WORKING
from tests.console import story
from tui.records import Bench, Detail, Guard, Progress, Step, Trial, detail_from, trial_from
from tui.timeline import gauge, guard_left_s, outage, stages

NOW = story.NOW


def known(trial: str) -> tuple[Trial, Detail]:
    body = story.whole(trial)
    return trial_from(body, NOW.isoformat()), detail_from(body, NOW.isoformat())


def kinds(trial: Trial, detail: Detail | None) -> dict[str, str]:
    return {stage.state: stage.kind for stage in stages(trial, detail, NOW)}


def test_a_running_trial_has_stages_behind_it_one_now_and_the_rest_to_come() -> None:
    trial, detail = known(story.LOADING)
    assert kinds(trial, detail) == {
        "queued": "done",
        "baseline": "done",
        "write-unit": "done",
        "verify": "done",
        "restart": "done",
        "loading": "now",
        "cudagraph-compile": "later",
        "ready": "later",
        "benchmark": "later",
        "rollback": "later",
    }


def test_stages_take_what_lies_between_their_moves() -> None:
    trial, detail = known(story.LOADING)
    took = {stage.state: stage.took_s for stage in stages(trial, detail, NOW)}
    assert took["baseline"] == pytest.approx(510.0)
    assert took["verify"] == pytest.approx(6.5)
    assert took["loading"] == pytest.approx(724.0)
    assert took["ready"] is None


def test_a_failed_stage_is_marked_and_those_after_it_are_skipped() -> None:
    found = kinds(*known(story.FAILED))
    assert (found["loading"], found["ready"], found["benchmark"], found["rollback"]) == (
        "failed",
        "skipped",
        "skipped",
        "done",
    )
    assert found["restored"] == "end"


def test_an_engine_without_a_compile_stage_skips_it() -> None:
    trial, detail = known(story.WORSE)
    detail = replace(detail, history=tuple(step for step in detail.history if step.state != "cudagraph-compile"))
    assert kinds(trial, detail)["cudagraph-compile"] == "skipped"


def test_a_cancelled_stage_is_stopped_not_failed() -> None:
    trial, detail = known(story.LOADING)
    step = Step("rollback", "cancel", "2026-03-01T12:30:00.000Z")
    found = kinds(replace(trial, state="rollback"), replace(detail, history=(*detail.history, step)))
    assert (found["loading"], found["rollback"]) == ("stopped", "now")


def test_a_second_rollback_counts_with_the_first() -> None:
    trial, detail = known(story.LOADING)
    steps = [("rollback", "cancel", 0), ("rollback-failed", "timed-out", 10), ("rollback", "rollback", 20)]
    more = tuple(Step(state, trigger, f"2026-03-01T12:30:{at:02}.000Z") for state, trigger, at in steps)
    trial, detail = replace(trial, state="rollback"), replace(detail, history=(*detail.history, *more))
    took = {stage.state: stage.took_s for stage in stages(trial, detail, NOW)}
    assert took["rollback"] == pytest.approx(10 + 44)


def test_without_its_whole_a_trial_still_has_all_stages() -> None:
    trial, _ = known(story.LOADING)
    assert list(kinds(trial, None)) == [state.value for state in WORKING]


def test_the_outage_begins_with_restart_and_runs() -> None:
    found = outage(*known(story.LOADING), NOW)
    assert found is not None
    assert (found.seconds, found.is_over) == (pytest.approx(807.0), False)


def test_the_outage_ends_when_the_baseline_serves() -> None:
    found = outage(*known(story.WORSE), NOW)
    assert found is not None
    assert (found.seconds, found.is_over) == (pytest.approx(5553.0), True)


def test_there_is_no_outage_before_restart() -> None:
    trial, detail = known(story.LOADING)
    assert outage(replace(trial, state="verify"), replace(detail, history=detail.history[:3]), NOW) is None


def test_an_outage_goes_on_while_a_person_is_needed() -> None:
    trial, detail = known(story.FAILED)
    history = (*detail.history[:-1], Step("rollback-failed", "failed", "2026-02-28T20:44:00.000Z"))
    found = outage(replace(trial, state="rollback-failed"), replace(detail, history=history), NOW)
    assert found is not None
    assert not found.is_over


@pytest.mark.parametrize(
    ("guard", "left"),
    [
        (None, None),
        (Guard("disarmed"), None),
        (Guard("armed", ""), None),
        (Guard("armed", "2026-03-01T12:32:04Z"), 60.0),
        (Guard("armed", "2026-03-01T12:30:04Z"), -60.0),
    ],
)
def test_an_armed_guard_has_a_countdown(guard: Guard | None, left: float | None) -> None:
    assert guard_left_s(guard, NOW) == left


def test_progress_grows_older_between_events() -> None:
    trial, detail = known(story.LOADING)
    found = gauge(trial, detail, NOW + timedelta(seconds=12))
    assert found is not None
    assert (found.fraction, found.eta_s, found.source) == (0.62, 400.0, "journal")


def test_without_progress_the_expected_end_counts() -> None:
    trial, detail = known(story.LOADING)
    trial = replace(trial, progress=None, expected_end_at="2026-03-01T12:32:04Z")
    found = gauge(trial, detail, NOW)
    assert found is not None
    assert (found.fraction, found.eta_s) == (None, 60.0)


def test_a_share_beyond_the_end_is_the_end() -> None:
    trial, detail = known(story.LOADING)
    found = gauge(replace(trial, progress=Progress("loading", fraction=1.7)), detail, NOW)
    assert found is not None
    assert found.fraction == 1.0


def test_nothing_known_is_no_gauge() -> None:
    trial, detail = known(story.LOADING)
    assert gauge(replace(trial, progress=None), detail, NOW) is None
    assert gauge(*known(story.WORSE), NOW) is None


def test_progress_of_an_earlier_state_does_not_count() -> None:
    trial, detail = known(story.LOADING)
    assert gauge(replace(trial, progress=Progress("verify", fraction=0.5)), detail, NOW) is None


def test_the_candidates_benchmark_is_measured_against_the_baselines_length() -> None:
    trial, detail = known(story.LOADING)
    measured = (("candidate", "concurrency 1", 1), ("candidate", "concurrency 8", 1))
    bench = Bench("candidate", "concurrency 1", 2, 6, 12, 1, 71.25)
    found = gauge(replace(trial, state="benchmark", progress=None, bench=bench, measured=measured), detail, NOW)
    assert found is not None
    assert found.fraction == pytest.approx((2 + 0.5) / 6)
    assert found.stage == "candidate, concurrency 1, repeat 2: 6 of 12, 1 failed, 71.2 tok/s"


def test_the_baselines_own_length_is_not_known_in_advance() -> None:
    trial, _ = known(story.LOADING)
    bench = Bench("baseline", "concurrency 1", 1, 6, 12)
    found = gauge(replace(trial, state="baseline", progress=None, bench=bench), Detail(), NOW)
    assert found is not None
    assert found.fraction is None
