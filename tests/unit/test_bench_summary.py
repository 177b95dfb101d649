"""Figures of levels, and what counters say about speculation."""

import math

import pytest

from specd.bench.plan import Level, LevelDone, Sample
from specd.bench.summary import acceptance, percentile, prefix_hit_rate, summarise
from specd.engines.engine import Counters


def sample(**values: object) -> Sample:
    base: dict[str, object] = {
        "concurrency": 1, "repeat": 1, "prompt_id": "a", "started_at": 0.0, "ttft_ms": 100.0, "answer_ttft_ms": 100.0,
        "tpot_ms": 10.0, "e2e_ms": 1090.0, "tokens_in": 50, "tokens_out": 100, "chunks": 25, "finish": "stop",
    }  # fmt: skip
    return Sample(**{**base, **values})  # type: ignore[arg-type]


def failed(why: str) -> Sample:
    return Sample(concurrency=1, repeat=1, prompt_id="f", started_at=0.0, error=why, chunks=3)


def level(*samples: Sample, wall_s: float = 2.0, repeat: int = 1) -> LevelDone:
    return LevelDone(
        level=Level(1, repeat), samples=samples, wall_s=wall_s, metrics_before="", metrics_after="",
        loop_lag_p99_ms=1.0, endpoint="chat", counting="usage", warmup=2, in_flight=1,
    )  # fmt: skip


def test_figures_over_repeats() -> None:
    figures = summarise([level(sample(), sample(tpot_ms=20.0)), level(sample(tpot_ms=30.0), wall_s=3.0, repeat=2)])
    assert figures["tpot_ms"] == {"median": 20.0, "p95": pytest.approx(29.0), "mean": 20.0, "count": 3}
    assert figures["output_tok_s"] == pytest.approx(300 / 5)
    assert figures["request_tok_s"]["median"] == pytest.approx(100 / 1.09)
    assert (figures["repeats"], figures["requests"], figures["failed"]) == (2, 3, 0)
    assert (figures["tokens_per_chunk"], figures["chunks_per_request"]) == (4.0, 25.0)
    assert figures["finish"] == {"stop": 3}


def test_failed_requests_enter_no_mean() -> None:
    figures = summarise(
        [
            level(
                sample(),
                failed("no answer: x (after 0 chunks, 0 tokens)"),
                failed("no answer: x (after 2 chunks, 2 tokens)"),
            )
        ]
    )
    assert figures["tpot_ms"]["count"] == 1
    assert figures["error_rate"] == pytest.approx(2 / 3)
    assert figures["errors"] == {"no answer: x": 2}
    assert figures["tokens_per_chunk"] == 4.0


def test_nothing_measured_is_none_and_not_a_number_that_is_wrong() -> None:
    figures = summarise([level(failed("x"))])
    assert [figures[key] for key in ("tpot_ms", "ttft_ms", "output_tok_s", "tokens_per_chunk")] == [None] * 4
    assert summarise([])["error_rate"] is None
    assert not any(isinstance(value, float) and math.isnan(value) for value in figures.values())


def test_reasoning_and_answers_without_content() -> None:
    figures = summarise(
        [
            level(
                sample(tokens_reasoning=40),
                sample(tokens_reasoning=100, answer_ttft_ms=None, finish="length"),
                sample(ttft_ms=None, answer_ttft_ms=None, tpot_ms=None, e2e_ms=None, tokens_out=0, chunks=0),
            )
        ]
    )
    assert figures["reasoning_share"] == pytest.approx(0.7)
    assert (figures["without_answer"], figures["empty"]) == (1, 1)


def test_percentile() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([1.0, 2.0], 0.25) == 1.25
    assert percentile([5.0], 0.95) == 5.0


# -- counters: the figures of a real server with n-gram drafts of 5 (265 drafts, 1323 drafted, 1200 accepted)
BEFORE = Counters(
    process_start=1.5,
    drafts=0.0,
    draft_tokens=0.0,
    accepted_tokens=0.0,
    generation_tokens=10.0,
    accepted_by_position=(0.0,) * 5,
    prefix_queries=100.0,
    prefix_hits=0.0,
)
AFTER = Counters(
    process_start=1.5, drafts=265.0, draft_tokens=1323.0, accepted_tokens=1200.0, generation_tokens=2050.0,
    accepted_by_position=(245.0, 245.0, 244.0, 233.0, 233.0), prefix_queries=600.0, prefix_hits=5.0,
)  # fmt: skip


def test_acceptance() -> None:
    found = acceptance(BEFORE, AFTER)
    assert found is not None
    assert found["acceptance_length"] == pytest.approx(1 + 1200 / 265)
    assert found["acceptance_rate"] == pytest.approx(1200 / 1323)
    assert found["acceptance_by_position"] == pytest.approx([245 / 265, 245 / 265, 244 / 265, 233 / 265, 233 / 265])
    # 2,040 tokens, of which 1,200 came as accepted drafts: 840 steps.
    assert found["tokens_per_step"] == pytest.approx(2040 / 840)
    assert (found["drafts"], found["draft_tokens"], found["accepted_tokens"]) == (265, 1323, 1200)
    assert prefix_hit_rate(BEFORE, AFTER) == pytest.approx(0.01)


def test_positions_that_appear_with_the_first_draft() -> None:
    found = acceptance(Counters(process_start=1.5, generation_tokens=10.0), AFTER)
    assert found is not None
    assert found["acceptance_by_position"] == pytest.approx([count / 265 for count in AFTER.accepted_by_position])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BEFORE, Counters(process_start=1.5, generation_tokens=5000.0)),
        (Counters(), AFTER),
        (Counters(process_start=1.0, drafts=0.0), AFTER),
        (AFTER, BEFORE),
        (Counters(), Counters()),
    ],
    ids=["speculation off", "no page before", "another process", "counters fell", "no pages"],
)
def test_acceptance_unknown(before: Counters, after: Counters) -> None:
    assert acceptance(before, after) is None


def test_on_but_nothing_drafted() -> None:
    found = acceptance(BEFORE, BEFORE)
    assert found is not None
    assert (found["drafts"], found["acceptance_length"], found["acceptance_rate"]) == (0, None, None)
