"""What a dangerous action asks first, and when there is nothing to ask."""

from typing import Any

import pytest

from tests.console import story
from tui.model import ViewState, reduce_all
from tui.questions import Question, Refusal, cancel_question, rollback_question
from tui.updates import DaemonFound, ServicesLoaded, TrialsLoaded

AT = story.NOW.isoformat()


def view(state: str = "loading", **service: Any) -> ViewState:
    """Return the story with the loading trial in another state."""
    trials = [{**brief, "state": state} if brief["id"] == story.LOADING else brief for brief in story.briefs()]
    services = [{**body, **service} if body["name"] == "kimi" else body for body in story.services()]
    return reduce_all(ViewState(), [DaemonFound("1", AT, 1), TrialsLoaded(trials, AT), ServicesLoaded(services, AT)])


@pytest.mark.parametrize("ask", [lambda v: cancel_question(v, story.LOADING), lambda v: rollback_question(v, "kimi")])
def test_a_question_names_host_unit_what_serves_and_the_expected_outage(ask: Any) -> None:
    question = ask(view())
    assert isinstance(question, Question)
    facts = dict(question.facts)
    assert (facts["service"], facts["host"], facts["unit"]) == ("kimi", "gpu1", "vllm-kimi.service")
    assert facts["serving now"] == "nothing yet"
    assert facts["expected outage"] == "about 1h03m"


def test_an_outage_that_nobody_has_seen_is_unknown() -> None:
    question = rollback_question(view(expected_outage_s=None), "kimi")
    assert isinstance(question, Question)
    assert dict(question.facts)["expected outage"] == "unknown: no earlier start"


@pytest.mark.parametrize("state", ["queued", "baseline", "write-unit", "verify"])
def test_cancelling_before_restart_says_that_the_baseline_goes_on(state: str) -> None:
    question = cancel_question(view(state), story.LOADING)
    assert isinstance(question, Question)
    assert question.consequence == "The baseline has not been touched and goes on serving."
    assert question.target == story.LOADING


@pytest.mark.parametrize("state", ["restart", "loading", "cudagraph-compile", "ready", "benchmark"])
def test_cancelling_later_says_that_nothing_serves_for_a_while(state: str) -> None:
    question = cancel_question(view(state), story.LOADING)
    assert isinstance(question, Question)
    assert "until then nothing serves" in question.consequence


@pytest.mark.parametrize("state", ["rollback", "restored", "withdrawn", "kept", "rollback-failed"])
def test_there_is_nothing_to_cancel_once_it_ends(state: str) -> None:
    refusal = cancel_question(view(state), story.LOADING)
    assert isinstance(refusal, Refusal)
    assert refusal.words == f"eagle3-k2 is in {state}: there is nothing to cancel. Now serving: nothing yet."


@pytest.mark.parametrize("state", ["rollback-failed", "kept", "loading", "verify"])
def test_what_holds_a_service_can_be_rolled_back(state: str) -> None:
    question = rollback_question(view(state), "kimi")
    assert isinstance(question, Question)
    assert question.target == "kimi"
    assert dict(question.facts)["held by"] == f"eagle3-k2 ({story.LOADING}), in {state}"


def test_a_service_that_nothing_holds_says_what_it_serves() -> None:
    refusal = rollback_question(view(trial=None, serving="the baseline vllm-kimi.service"), "kimi")
    assert isinstance(refusal, Refusal)
    assert refusal.words.endswith("Now serving: the baseline vllm-kimi.service.")


@pytest.mark.parametrize(("service", "words"), [("", "No service is selected."), ("x", "The daemon has no service x.")])
def test_an_unknown_service_is_named(service: str, words: str) -> None:
    assert rollback_question(view(), service) == Refusal(words)


def test_a_rollback_that_runs_is_not_asked_for_again() -> None:
    assert isinstance(rollback_question(view("rollback"), "kimi"), Refusal)


def test_no_trial_is_nothing_to_cancel() -> None:
    assert cancel_question(view(), "") == Refusal("No trial is selected.")
