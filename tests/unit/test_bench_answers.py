"""Are the candidate's greedy answers the baseline's, and how would one know?"""

from dataclasses import replace

import pytest

from specd.bench.answers import digests, equality, rare
from specd.bench.plan import LevelDone
from tests.unit.test_bench_judge import side


def answering(change: dict[int, str], levels: list[LevelDone] | None = None) -> list[LevelDone]:
    """Return levels in which the nth answer is as given, else one text for all."""
    made, number = [], 0
    for done in levels or side(repeats=1):
        samples = []
        for sample in done.samples:
            whole, words = digests(change.get(number, "one two three four"))
            samples.append(replace(sample, text_digest=whole, text_words=words))
            number += 1
        made.append(replace(done, samples=tuple(samples)))
    return made


def test_differences_are_counted_and_placed() -> None:
    found = equality(answering({}), answering({0: "one two other four", 1: "one two three four five"}))
    assert found is not None
    assert (found.compared, found.differ, found.first_word) == (12, 2, 3.0)
    assert "2 of 12 greedy answers are not the baseline's" in found.words()
    assert "was not measured" in found.words()
    assert equality(side(), side()) is None


def test_what_the_baseline_does_itself_is_no_change() -> None:
    own = {n: f"one {n}" for n in range(6)}
    found = equality(answering({}), answering(own), answering(own))
    assert found is not None
    assert not found.is_more(0.01)
    assert found.excess == 0
    much = equality(answering({}), answering({n: f"x {n}" for n in range(12)}), answering({0: "y"}))
    assert much is not None
    assert much.is_more(0.01)
    assert "of its own, measured again, 1 of 12 differ" in much.words()


def test_digests_hold_no_text() -> None:
    whole, words = digests("a secret answer")
    assert (len(whole), len(words)) == (16, 12)
    assert "secret" not in whole + words
    assert digests("a secret answer") == (whole, words)


def test_fisher_s_exact_test() -> None:
    # The lady tasting tea: four of four right, of eight cups.
    assert rare(4, 4, 4, 8) == pytest.approx(1 / 70)
    assert rare(0, 4, 4, 8) == pytest.approx(1.0)
