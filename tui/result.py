"""A trial's result in words and rows: both sides' figures, the verdict, why it failed. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tui.records import Detail
from tui.words import clean, difference, figure, load_words, number

__all__ = ["FigureRow", "figure_rows", "verdict_words"]

Json = Mapping[str, Any]

# key of a level's summary, its inner key, title, decimals, factor, whether a lower value is better (None: neither)
_FIGURES: tuple[tuple[str, str, str, int, float, bool | None], ...] = (
    ("output_tok_s", "", "output, tok/s", 1, 1.0, False),
    ("tpot_ms", "median", "time per token, ms", 2, 1.0, True),
    ("ttft_ms", "median", "first token, ms", 0, 1.0, True),
    ("ttft_ms", "p95", "first token p95, ms", 0, 1.0, True),
    ("acceptance_length", "", "acceptance length", 2, 1.0, None),
    ("error_rate", "", "failed, %", 1, 100.0, None),
)
_METRICS = {"tpot": "time per token", "ttft": "time to the first token", "output_tok_s": "output"}


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure of both sides at one load; `is_better` None where the difference is neither."""

    load: str
    title: str
    baseline: str
    candidate: str
    change: str
    is_better: bool | None


def figure_rows(detail: Detail) -> list[FigureRow]:
    """Return the figures by load: concurrencies first, each lowest first; what neither side has is left out."""
    sides = [_by_load(levels) for levels in (detail.baseline, detail.candidate)]
    rows = []
    for load in sorted({*sides[0], *sides[1]}):
        rate, concurrency = load
        name = load_words(concurrency, rate)
        for key, inner, title, digits, factor, is_lower_better in _FIGURES:
            before, after = (_value(side.get(load, {}), key, inner, factor) for side in sides)
            if (before is None and after is None) or (key == "error_rate" and not before and not after):
                continue
            change = "" if is_lower_better is None else difference(before, after)
            is_better = None
            if change and before is not None and after is not None and before != after:
                is_better = (after < before) == is_lower_better
            rows.append(FigureRow(name, title, figure(before, digits), figure(after, digits), change, is_better))
    return rows


def _by_load(levels: tuple[Json, ...]) -> dict[tuple[float, int], Json]:
    found = ((number(level.get("rate")) or 0.0, number(level.get("concurrency")), level) for level in levels)
    return {(rate, int(concurrency)): level for rate, concurrency, level in found if concurrency is not None}


def _value(level: Json, key: str, inner: str, factor: float) -> float | None:
    value = level.get(key)
    if inner:
        value = value.get(inner) if isinstance(value, Mapping) else level.get(f"{key}_{inner}")
    found = number(value)
    return None if found is None else found * factor


def verdict_words(detail: Detail) -> str:
    """Return the deciding metric's speed change with its interval, in a sentence; "" without a comparison.

    The comparison's numbers are relative changes of speed, whatever the metric: above 0 the candidate is faster.
    """
    comparison = detail.comparison
    metric, estimate = str(comparison.get("metric") or ""), number(comparison.get("estimate"))
    if estimate is None:
        return ""
    level = number(comparison.get("level"))
    words = _METRICS.get(metric, clean(metric)) + (f" at concurrency {level:.0f}" if level else "")
    words += f": speed {estimate:+.1%}"
    low, high = number(comparison.get("low")), number(comparison.get("high"))
    if low is not None and high is not None:
        words += f" ({low:+.1%} to {high:+.1%})"
    margin = number(comparison.get("margin"))
    return words + (f"; below {margin:.1%} counts as equal" if margin is not None else "")
