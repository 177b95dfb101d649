"""Measured figures of both sides, side by side, and what the comparison says; for `show` and the report."""

from collections.abc import Mapping
from typing import Any

from specd.cli.text import clean, figure

__all__ = ["FIGURES", "LOWER_IS_BETTER", "comparison_words", "level_figure", "level_pairs", "level_rows", "load_words"]

# Where in a level, title, decimals.
FIGURES = (
    ("ttft_ms.median", "first token, median (ms)", 0),
    ("ttft_ms.p95", "first token, p95 (ms)", 0),
    ("tpot_ms.median", "time per token, median (ms)", 2),
    ("output_tok_s", "output (tok/s)", 1),
    ("acceptance_length", "acceptance length", 2),
    ("error_rate", "failed requests (%)", 1),
)
LOWER_IS_BETTER = frozenset({"tpot_ms.median", "ttft_ms.median", "ttft_ms.p95", "error_rate"})
_METRICS = {"tpot": "time per token", "ttft": "time to the first token", "output_tok_s": "output tokens"}

Level = Mapping[str, Any]


def load_words(level: Mapping[str, Any]) -> str:
    """Return what a level's load was: `concurrency 4` or `0.5 requests/s`."""
    rate = level.get("rate")
    if isinstance(rate, int | float) and rate > 0:
        return f"{rate:g} requests/s"
    return f"concurrency {level.get('concurrency')}"


def level_pairs(trial: Mapping[str, Any]) -> list[tuple[str, Level, Level]]:
    """Return (load in words, baseline's level, candidate's level), concurrencies first, each lowest first; {} where a
    side lacks it."""
    sides = []
    for side in ("baseline", "candidate"):
        levels = (trial.get(side) or {}).get("levels") or []
        sides.append({_load(level): level for level in levels if isinstance(level.get("concurrency"), int)})
    baseline, candidate = sides
    pairs = [(baseline.get(load, {}), candidate.get(load, {})) for load in sorted({*baseline, *candidate})]
    return [(load_words(before or after), before, after) for before, after in pairs]


def _load(level: Level) -> tuple[float, int]:
    rate = level.get("rate")
    return (float(rate) if isinstance(rate, int | float) else 0.0, int(level["concurrency"]))


def level_figure(level: Level, key: str) -> float | None:
    """Return a figure of a level, None when it has no such number; `key` is dotted where the figure is in a group."""
    value: Any = level
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)


def level_rows(trial: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return the rows of a table: figure, baseline, candidate, difference; [] when nothing was measured."""
    rows: list[tuple[str, str, str, str]] = []
    for load, baseline, candidate in level_pairs(trial):
        rows.append((load, "baseline", "candidate", "difference"))
        for key, title, digits in FIGURES:
            before, after = _scaled(key, baseline), _scaled(key, candidate)
            if before is None and after is None:
                continue
            rows.append((f"  {title}", figure(before, digits), figure(after, digits), difference(key, before, after)))
    return rows


def difference(key: str, before: float | None, after: float | None) -> str:
    """Return the relative difference of two figures as a signed percentage; "" where it says nothing."""
    if key == "error_rate" or before is None or after is None or before == 0:
        return ""
    return f"{after / before - 1:+.1%}"


def comparison_words(comparison: Mapping[str, Any]) -> str:
    """Return the relative speed change by the deciding metric, with its interval; "" when there is none.

    A positive change is a faster candidate, whatever the metric.
    """
    metric, estimate = str(comparison.get("metric") or ""), comparison.get("estimate")
    if isinstance(estimate, bool) or not isinstance(estimate, int | float):
        return ""
    words = f"speed by {_METRICS.get(metric, clean(metric))} {estimate:+.1%}"
    low, high = comparison.get("low"), comparison.get("high")
    way = ""
    if isinstance(low, int | float) and isinstance(high, int | float):
        confidence = comparison.get("confidence")
        share = f"{confidence:.0%} " if isinstance(confidence, int | float) else ""
        words += f" ({share}interval {low:+.1%} to {high:+.1%})"
        way = ", faster" if low > 0 else ", slower" if high < 0 else ""
    if comparison.get("level"):
        words += f" at concurrency {clean(comparison['level'])}"
    return words + way


def _scaled(key: str, level: Level) -> float | None:
    value = level_figure(level, key)
    return value * 100 if value is not None and key == "error_rate" else value
