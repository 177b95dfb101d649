"""The speed and acceptance model tells the story it was made for, and repeats itself."""

from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.rehearsal.script import Script
from specd.rehearsal.speculative import Speculative
from specd.rehearsal.speed import Acceptance, StepClock

NGRAM = Speculative("ngram", 5, None, 4, 4)


def tpot_ms(script: Script, speculative: Speculative | None, key: int, tokens: int = 1500) -> float:
    """Play one request alone; returns its time per output token."""
    clock = StepClock(script, speculative.method if speculative else "none")
    acceptance = Acceptance(script, speculative) if speculative else None
    position, seconds, step = 1, 0.0, 0
    while position < tokens:
        step += 1
        drafted = acceptance.draft(key, position) if acceptance else 0
        seconds += clock.step_s(1 + drafted, 0, drafted, step)
        position += 1 + (acceptance.accepted(key, position) if acceptance and drafted else 0)
    return 1000 * seconds / (position - 1)


def test_baseline_is_13_6_ms() -> None:
    assert tpot_ms(Script(), None, 1) == pytest.approx(13.6, rel=0.002)


def test_ngram_is_9_to_26_percent_slower() -> None:
    ratios = [tpot_ms(Script(), NGRAM, key) / 13.6 for key in range(60)]
    assert 1.13 < mean(ratios) < 1.21
    assert sorted(ratios)[6] >= 1.09
    assert sorted(ratios)[-6] <= 1.26


def test_a_draft_head_pays() -> None:
    assert tpot_ms(Script(), Speculative("eagle3", 3, "d"), 1) < 0.8 * 13.6


def test_no_acceptance_costs_the_whole_verification() -> None:
    script = Script(acceptance=0.0, ngram_match_rate=1.0, step_noise=0.0)
    assert tpot_ms(script, NGRAM, 1) == pytest.approx(13.6 * 2.05)


def test_full_acceptance_yields_six_tokens_a_step() -> None:
    script = Script(acceptance=1.0, ngram_match_rate=1.0, step_noise=0.0)
    assert tpot_ms(script, NGRAM, 1) == pytest.approx(13.6 * 2.05 / 6)


def test_position_rates() -> None:
    acceptance = Acceptance(Script(acceptance=[1.0, 1.0, 0.0], ngram_match_rate=1.0), NGRAM)
    assert {acceptance.accepted(3, position) for position in range(50)} == {2}


@given(st.integers(1, 600), st.integers(0, 5000), st.integers(0, 100))
def test_step_formula(verified: int, prefilled: int, drafted: int) -> None:
    script = Script(step_noise=0.0, draft_ms_per_token=0.5)
    expected = 13.6 * min(1 + 0.21 * (verified - 1), 3.5) + 0.05 * prefilled + 0.5 * drafted
    assert StepClock(script, "eagle").step_s(verified, prefilled, drafted, 1) == pytest.approx(expected / 1000)


@given(st.integers(0, 2**64 - 1), st.integers(0, 10_000), st.integers(0, 9))
def test_decisions_depend_on_seed_prompt_and_position_alone(key: int, position: int, seed: int) -> None:
    one, other = Acceptance(Script(seed=seed), NGRAM), Acceptance(Script(seed=seed), NGRAM)
    assert one.draft(key, position) == other.draft(key, position)
    assert one.accepted(key, position) == other.accepted(key, position)
    assert 0 <= one.accepted(key, position) <= 5
