"""Figures of finished levels: medians and tails, throughput, lengths, errors, and acceptance from engine counters."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from specd.bench.plan import LevelDone, Sample
from specd.engines.engine import Counters

__all__ = ["acceptance", "percentile", "prefix_hit_rate", "summarise"]


def summarise(levels: Sequence[LevelDone]) -> dict[str, Any]:
    """Return the figures of one side at one concurrency, over all given repeats; times in ms, None for no value.

    `tpot_ms`, `ttft_ms`, `answer_ttft_ms`, `e2e_ms`, `request_tok_s`, `tokens_out` and `tokens_in` are
    {median, p95, mean}; a failed request enters none of them. `output_tok_s` is all tokens of good requests over the
    wall time. `tokens_per_chunk` says how the server packs tokens into events and is no acceptance length.
    """
    samples = [sample for level in levels for sample in level.samples]
    good = [sample for sample in samples if not sample.error]
    wall_s = math.fsum(level.wall_s for level in levels)
    tokens = sum(sample.tokens_out or 0 for sample in good)
    chunks = sum(sample.chunks for sample in good)
    reasoning = [s.tokens_reasoning for s in good if s.tokens_reasoning is not None]
    with_text = [sample for sample in good if sample.ttft_ms is not None]
    return {
        "repeats": len(levels),
        "requests": len(samples),
        "failed": len(samples) - len(good),
        "error_rate": (len(samples) - len(good)) / len(samples) if samples else None,
        "errors": dict(Counter(_kind(sample.error) for sample in samples if sample.error).most_common(5)),
        "stopped_early": next((level.stopped_early for level in levels if level.stopped_early), ""),
        "wall_s": wall_s,
        "output_tok_s": tokens / wall_s if tokens and wall_s > 0 else None,
        "tpot_ms": _spread([s.tpot_ms for s in good]),
        "ttft_ms": _spread([s.ttft_ms for s in good]),
        "answer_ttft_ms": _spread([s.answer_ttft_ms for s in good]),
        "e2e_ms": _spread([s.e2e_ms for s in good]),
        "request_tok_s": _spread([_request_rate(s) for s in good]),
        "tokens_out": _spread([s.tokens_out for s in good]),
        "tokens_in": _spread([s.tokens_in for s in good]),
        "tokens_total": tokens,
        "reasoning_share": sum(reasoning) / tokens if reasoning and tokens else None,
        "without_answer": sum(1 for s in with_text if s.answer_ttft_ms is None),
        "empty": len(good) - len(with_text),
        "finish": dict(Counter(sample.finish or "none" for sample in good)),
        "chunks_per_request": chunks / len(good) if good else None,
        "tokens_per_chunk": tokens / chunks if chunks else None,
        "is_exact": all(sample.exact for sample in good),
        "counting": sorted({level.counting for level in levels if level.counting}),
        "endpoint": sorted({level.endpoint for level in levels if level.endpoint}),
        "route": sorted({level.route for level in levels if level.route}),
        "loop_lag_p99_ms": max((level.loop_lag_p99_ms for level in levels), default=None),
        "in_flight": max((level.in_flight for level in levels), default=0),
        "warmup": sum(level.warmup for level in levels),
        # Between events, each of which may hold several tokens (tokens_per_chunk): no time per token.
        "gap_p50_ms": max((level.gap_p50_ms for level in levels if level.gap_p50_ms is not None), default=None),
        "gap_p99_ms": max((level.gap_p99_ms for level in levels if level.gap_p99_ms is not None), default=None),
        "send_delay_p99_ms": max((level.send_delay_p99_ms for level in levels), default=None),
        "client_cpu_share": max((level.cpu_share for level in levels), default=None),
        "client_bound": next((level.client_bound for level in levels if level.client_bound), ""),
        "saturated": next((level.saturated for level in levels if level.saturated), ""),
        "notes": sorted({note for level in levels for note in level.notes}),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value at a share (0..1) of the ordered values, interpolated; values must not be empty."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def acceptance(before: Counters, after: Counters) -> dict[str, Any] | None:
    """Return what speculation did between two moments of one process; None when the counters can't tell.

    `acceptance_length` is 1 + accepted / drafts (tools define it differently; a step without a draft is not in it).
    `tokens_per_step` is generated tokens / steps of a request, where steps = generated - accepted.
    """
    drafts = _grown(before, after, "drafts")
    drafted = _grown(before, after, "draft_tokens")
    accepted = _grown(before, after, "accepted_tokens")
    if drafts is None or drafted is None or accepted is None:
        return None
    generated = _grown(before, after, "generation_tokens")
    steps = generated - accepted if generated is not None else 0.0
    return {
        "drafts": drafts,
        "draft_tokens": drafted,
        "accepted_tokens": accepted,
        "acceptance_length": 1 + accepted / drafts if drafts else None,
        "acceptance_rate": accepted / drafted if drafted else None,
        "acceptance_by_position": _by_position(before, after, drafts),
        "tokens_per_step": generated / steps if generated and steps > 0 else None,
        "definition": "acceptance_length = 1 + accepted tokens / drafts",
    }


def prefix_hit_rate(before: Counters, after: Counters) -> float | None:
    """Return the share of prompt tokens found in the prefix cache between two moments; None when unknown."""
    queries, hits = _grown(before, after, "prefix_queries"), _grown(before, after, "prefix_hits")
    return hits / queries if queries and hits is not None else None


def _by_position(before: Counters, after: Counters, drafts: float) -> list[float] | None:
    first, last = before.accepted_by_position, after.accepted_by_position
    if not drafts or not last or len(first) not in (0, len(last)):
        return None
    return [(late - early) / drafts for early, late in zip(first or (0.0,) * len(last), last, strict=True)]


def _grown(before: Counters, after: Counters, name: str) -> float | None:
    """Return by how much a counter grew; None if absent, or if the process began anew in between."""
    first, last = getattr(before, name), getattr(after, name)
    has_restarted = before.process_start != after.process_start
    if last is None or has_restarted or before == Counters():
        return None
    # A labelled series may appear only with its first event.
    grown = float(last) - float(first or 0.0)
    return grown if grown >= 0 else None


def _spread(values: Sequence[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {
        "median": percentile(known, 0.5),
        "p95": percentile(known, 0.95),
        "mean": math.fsum(known) / len(known),
        "count": len(known),
    }


def _request_rate(sample: Sample) -> float | None:
    if not sample.tokens_out or not sample.e2e_ms:
        return None
    return sample.tokens_out / sample.e2e_ms * 1000


def _kind(error: str) -> str:
    """Return an error without its position, so that equal ones are counted together."""
    return error.partition(" (after ")[0]
