"""Plots as inline SVG: distributions, throughput against latency, acceptance, the verdict's interval, the timeline.

All are drawn from numbers; no text of a trial becomes markup but by `escape`.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from specd.cli.figures import comparison_words, level_figure, level_pairs, load_words
from specd.cli.text import clean, duration, figure, moment

__all__ = ["acceptance_plot", "curve_plot", "distribution_plot", "interval_plot", "timeline_plot"]

_WIDE, _HIGH, _LEFT, _BELOW = 420, 150, 52, 34
_SIDES = (("baseline", "base"), ("candidate", "cand"))
_LEGEND = '<tspan class="base">baseline</tspan> <tspan dx="8" class="cand">candidate</tspan>'


class _Frame:
    """A plot's area with its two scales; `x` and `y` turn values into places."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float], x_title: str, y_title: str) -> None:
        self._left, self._right = min(xs), max(xs)
        self._low, self._high = min(0.0, *ys), max(ys)
        self._titles = x_title, y_title
        self.shapes: list[str] = []

    def x(self, value: float) -> float:
        """Return where a value lies across."""
        return _LEFT + (value - self._left) / ((self._right - self._left) or 1.0) * _WIDE

    def y(self, value: float) -> float:
        """Return where a value lies upwards."""
        return 8 + _HIGH - (value - self._low) / ((self._high - self._low) or 1.0) * _HIGH

    def svg(self) -> str:
        """Return the plot."""
        x_title, y_title = (escape(title) for title in self._titles)
        low, high, left, right = (_short(v) for v in (self._low, self._high, self._left, self._right))
        frame = (
            f'<path class="axis" d="M{_LEFT},8 V{8 + _HIGH} H{_LEFT + _WIDE}"/>'
            f'<text x="{_LEFT - 6}" y="18" text-anchor="end">{high}</text>'
            f'<text x="{_LEFT - 6}" y="{8 + _HIGH}" text-anchor="end">{low}</text>'
            f'<text x="{_LEFT}" y="{24 + _HIGH}">{left}</text>'
            f'<text x="{_LEFT + _WIDE}" y="{24 + _HIGH}" text-anchor="end">{right}</text>'
            f'<text x="{_LEFT + _WIDE / 2}" y="{24 + _HIGH}" text-anchor="middle">{x_title}</text>'
            f'<text x="{_LEFT + 8}" y="18" class="note">{y_title}</text>'
            f'<text x="{_LEFT + _WIDE}" y="18" text-anchor="end">{_LEGEND}</text>'
        )
        size = f'width="{_LEFT + _WIDE + 20}" height="{_HIGH + _BELOW}"'
        return f'<svg {size} role="img">{frame}{"".join(self.shapes)}</svg>'


def distribution_plot(requests: Sequence[Mapping[str, Any]], key: str, title: str, load: str) -> str:
    """Return the share of requests that were at least as fast, for each side; "" without numbers on both."""
    sides = {
        side: sorted(
            float(request[key])
            for request in requests
            if request.get("side") == side and load_words(request) == load and _is_number(request.get(key))
        )
        for side, _ in _SIDES
    }
    if not all(sides.values()):
        return ""
    every = [value for values in sides.values() for value in values]
    frame = _Frame(every, (0.0, 1.0), "ms", "share of requests")
    for side, css in _SIDES:
        values = sides[side]
        path = f"M{frame.x(values[0]):.1f},{frame.y(0):.1f}"
        for number, value in enumerate(values, start=1):
            path += f" H{frame.x(value):.1f} V{frame.y(number / len(values)):.1f}"
        frame.shapes.append(f'<path class="line {css}" d="{path} H{frame.x(max(every)):.1f}"/>')
    return f"<h3>{escape(title)}, {escape(load)}</h3>{frame.svg()}"


def curve_plot(trial: Mapping[str, Any]) -> str:
    """Return throughput against time per token over the levels; "" with fewer than two of them on both sides."""
    points: dict[str, list[tuple[float, float, str]]] = {side: [] for side, _ in _SIDES}
    for load, baseline, candidate in level_pairs(trial):
        name = load.removeprefix("concurrency ")
        for (side, _), level in zip(_SIDES, (baseline, candidate), strict=True):
            rate, time = level_figure(level, "output_tok_s"), level_figure(level, "tpot_ms.median")
            if rate is not None and time is not None:
                points[side].append((time, rate, name))
    if not all(len(found) > 1 for found in points.values()):
        return ""
    every = [point for found in points.values() for point in found]
    frame = _Frame([p[0] for p in every], [p[1] for p in every], "time per token, median (ms)", "output tok/s")
    for side, css in _SIDES:
        places = [(frame.x(time), frame.y(rate), escape(name)) for time, rate, name in points[side]]
        frame.shapes.append(
            f'<path class="line {css}" d="M' + " L".join(f"{x:.1f},{y:.1f}" for x, y, _ in places) + '"/>'
        )
        frame.shapes += [
            f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="3"/><text x="{x + 5:.1f}" y="{y + 12:.1f}">{c}</text>'
            for x, y, c in places
        ]
    return f"<h3>Throughput against latency, by load</h3>{frame.svg()}"


def acceptance_plot(trial: Mapping[str, Any]) -> str:
    """Return how often the draft token of each position was accepted, at the lowest level that tells."""
    for load, _, candidate in level_pairs(trial):
        shares = candidate.get("acceptance_by_position")
        if isinstance(shares, list) and shares and all(_is_number(share) for share in shares):
            bars = [(f"position {n}", float(share), f"{share:.0%}") for n, share in enumerate(shares, start=1)]
            return f"<h3>Draft tokens accepted, {escape(load)}</h3>{_bars(bars, 1.0)}"
    return ""


def interval_plot(trial: Mapping[str, Any]) -> str:
    """Return the estimate and its interval against zero and the margin: the verdict as a picture."""
    comparison = trial.get("comparison") or {}
    numbers = [comparison.get(key) for key in ("low", "estimate", "high")]
    if not all(_is_number(number) for number in (*numbers, comparison.get("margin"))):
        return ""
    low, estimate, high = (float(number) for number in numbers if number is not None)
    margin = float(comparison["margin"])
    widest = max(abs(low), abs(high), 2 * margin, 0.02) * 1.1

    def x(value: float) -> float:
        return _LEFT + (value + widest) / (2 * widest) * _WIDE

    shapes = (
        f'<rect class="margin" x="{x(-margin):.1f}" y="10" width="{x(margin) - x(-margin):.1f}" height="34"/>'
        f'<path class="axis" d="M{x(0):.1f},4 V50"/>'
        f'<path class="line cand" d="M{x(low):.1f},27 H{x(high):.1f} M{x(low):.1f},20 V34 M{x(high):.1f},20 V34"/>'
        f'<circle class="cand" cx="{x(estimate):.1f}" cy="27" r="5"/>'
        f'<text x="{_LEFT}" y="66">slower</text><text x="{_LEFT + _WIDE}" y="66" text-anchor="end">faster</text>'
        f'<text x="{x(0):.1f}" y="66" text-anchor="middle">shaded: ±{margin:.1%} counts as equal</text>'
    )
    words = escape(comparison_words(comparison))
    return f'<svg width="{_LEFT + _WIDE + 20}" height="72" role="img" aria-label="{words}">{shapes}</svg>'


def timeline_plot(trial: Mapping[str, Any]) -> str:
    """Return the states as one line in proportion, those without a serving baseline marked."""
    history = trial.get("history") or []
    times = [moment(entry.get("at")) for entry in history]
    if len(times) < 2 or None in times:
        return ""
    known = [time for time in times if time is not None]
    whole = (known[-1] - known[0]).total_seconds() or 1.0
    shapes: list[str] = []
    away = 0.0
    for entry, begin, end in zip(history, known, known[1:], strict=False):
        state = str(entry.get("state"))
        took = (end - begin).total_seconds()
        x, width = (begin - known[0]).total_seconds() / whole * _WIDE, took / whole * _WIDE
        is_away = state in _AWAY
        away += took if is_away else 0.0
        label = escape(f"{clean(state)}: {duration(took)}")
        shapes.append(
            f'<rect class="{"cand" if is_away else "base"}" x="{_LEFT + x:.1f}" y="8" width="{max(width - 1, 0.5):.1f}"'
            f' height="22"><title>{label}</title></rect>'
        )
        if width > 60:
            shapes.append(f'<text x="{_LEFT + x + 3:.1f}" y="44">{escape(clean(state))}</text>')
    if not away:
        return ""
    words = escape(f"{duration(away)} without the baseline, of {duration(whole)}")
    text = f'<text x="{_LEFT}" y="60" class="note">{words}; hover a part for its time</text>'
    return f'<svg width="{_LEFT + _WIDE + 20}" height="66" role="img">{"".join(shapes)}{text}</svg>'


# From the stop of the baseline on.
_AWAY = frozenset({"restart", "loading", "cudagraph-compile", "ready", "benchmark", "rollback"})


def _bars(bars: Sequence[tuple[str, float, str]], largest: float) -> str:
    rows = []
    for number, (label, value, shown) in enumerate(bars):
        top, length = number * 18, value / (largest or 1.0) * (_WIDE - 100)
        rows.append(
            f'<text x="0" y="{top + 13}">{escape(label)}</text>'
            f'<rect class="cand" x="100" y="{top + 2}" width="{length:.1f}" height="13"/>'
            f'<text x="{106 + length:.1f}" y="{top + 13}">{escape(shown)}</text>'
        )
    return f'<svg width="{_WIDE + 80}" height="{len(bars) * 18 + 4}" role="img">{"".join(rows)}</svg>'


def _short(value: float) -> str:
    return figure(value, 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
