"""The report as one HTML file that needs nothing from the network: own style, bars as inline SVG."""

from collections.abc import Sequence
from html import escape
from typing import Any

from specd.cli.figures import (
    FIGURES,
    LOWER_IS_BETTER,
    comparison_words,
    level_figure,
    level_pairs,
    level_rows,
    load_words,
)
from specd.cli.text import clean, figure
from specd.report.plots import acceptance_plot, curve_plot, distribution_plot, interval_plot, timeline_plot
from specd.report.rows import HEAD, Trial, changes, history, overview_row, reasons, to_apply

__all__ = ["as_html"]

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --base: #6b7a90; --cand: #c2571a; --dim: #777; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .8rem 0; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
section { border-top: 2px solid var(--line); margin-top: 2.5rem; }
.id, .note { color: var(--dim); } .verdict { font-size: 1.15rem; } code { overflow-wrap: anywhere; }
svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
.base { fill: var(--base); } .cand { fill: var(--cand); } .margin { fill: var(--line); }
.axis { stroke: currentColor; fill: none; } .line { fill: none; stroke-width: 2; }
.line.base { stroke: var(--base); } .line.cand { stroke: var(--cand); stroke-dasharray: 6 2; }
pre { overflow-x: auto; padding: .6rem; border: 1px solid var(--line); }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_CHARTED = ("tpot_ms.median", "ttft_ms.median", "output_tok_s")
_LABEL, _WIDE, _ROW = 120, 420, 18


def as_html(trials: Sequence[Trial]) -> str:
    """Return the whole page."""
    title = "Trials" if len(trials) != 1 else f"Trial {clean(trials[0].get('name'))}"
    overview = [[_link(trial, row[0]), *map(_text, row[1:])] for trial in trials for row in [overview_row(trial)]]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>\n<body><h1>{_text(title)}</h1>\n"
        + _table(HEAD, overview)
        + "".join(_section(trial) for trial in trials)
        + "</body></html>\n"
    )


def _section(trial: Trial) -> str:
    parts = [
        f'<section id="{_anchor(trial)}"><h2>{_text(trial.get("name"))}</h2>',
        f'<p class="id">{_text(trial.get("service"))} on {_text(trial.get("host"))}, id {_text(trial.get("id"))}</p>',
    ]
    if trial.get("outcome"):
        words = comparison_words(trial.get("comparison") or {})
        verdict = f"<strong>{_text(trial['outcome'])}</strong>" + (f": {_text(words)}" if words else "")
        parts.append(f'<p class="verdict">{verdict}</p>')
    parts += [f"<p>{_text(sentence)}</p>" for sentence in reasons(trial)]
    changed = changes(trial)
    if changed:
        rows = [[f"<code>{_text(name)}</code>", f"<code>{_text(value)}</code>"] for name, value in changed]
        parts.append("<h3>What it changes</h3>" + _table(("Flag or variable", "Value"), rows))
    parts += [interval_plot(trial), timeline_plot(trial)]
    parts += [_chart(trial, key, title, digits) for key, title, digits in FIGURES if key in _CHARTED]
    parts += [curve_plot(trial), acceptance_plot(trial), *_distributions(trial)]
    figures = level_rows(trial)
    if figures:
        parts.append("<h3>Measured</h3>" + _figure_tables(figures))
    if applied := to_apply(trial):
        lines = "\n".join(_text(line) for line in applied.split("\n"))
        parts.append(f"<h3>To apply it</h3><pre>{lines}</pre>")
    states = history(trial)
    if states:
        rows = [[_text(cell) for cell in row] for row in states]
        parts.append("<h3>What happened</h3>" + _table(("Time (UTC)", "State", "Took"), rows))
    return "\n".join(part for part in parts if part) + "</section>\n"


def _distributions(trial: Trial) -> list[str]:
    requests = trial.get("requests") or []
    loads = {
        load_words(request): (float(request.get("rate") or 0), int(request["concurrency"])) for request in requests
    }
    kinds = (("ttft_ms", "Time to the first token"), ("tpot_ms", "Time per token"))
    return [
        distribution_plot(requests, key, title, level)
        for key, title in kinds
        for level in sorted(loads, key=lambda load: loads[load])
    ]


def _figure_tables(rows: Sequence[Sequence[str]]) -> str:
    """Return one table for each concurrency: a head row and the figures below it."""
    heads = [number for number, row in enumerate(rows) if row[1] == "baseline"]
    tables = []
    for start, end in zip(heads, [*heads[1:], len(rows)], strict=True):
        body = [[_text(cell.strip()) for cell in row] for row in rows[start + 1 : end]]
        tables.append(_table([cell.strip() for cell in rows[start]], body, numbers=True))
    return "".join(tables)


def _chart(trial: Trial, key: str, title: str, digits: int) -> str:
    """Return a figure of all levels as pairs of bars, or "" when no level has it."""
    bars: list[tuple[str, str, float]] = []
    for load, baseline, candidate in level_pairs(trial):
        for side, css, level in (("baseline", "base", baseline), ("candidate", "cand", candidate)):
            value = level_figure(level, key)
            if value is not None:
                bars.append((f"{side}, {load.removeprefix('concurrency ')}", css, value))
    if not bars:
        return ""
    largest = max(value for _, _, value in bars) or 1.0
    shapes = []
    for number, (label, css, value) in enumerate(bars):
        top, length = number * _ROW, max(value, 0.0) / largest * _WIDE
        shapes.append(
            f'<text x="0" y="{top + 13}">{_text(label)}</text>'
            f'<rect class="{css}" x="{_LABEL}" y="{top + 2}" width="{length:.1f}" height="{_ROW - 5}"/>'
            f'<text x="{_LABEL + length + 6:.1f}" y="{top + 13}">{figure(value, digits)}</text>'
        )
    better = "lower is better" if key in LOWER_IS_BETTER else "higher is better"
    size = f'width="{_LABEL + _WIDE + 80}" height="{len(bars) * _ROW + 4}"'
    return f'<h3>{_text(title)} <span class="note">({better})</span></h3><svg {size} role="img">{"".join(shapes)}</svg>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = False) -> str:
    """Return a table; `head` is text, `rows` are cells of ready HTML."""

    def css(column: int) -> str:
        return ' class="n"' if numbers and column else ""

    top = "".join(f"<th{css(n)}>{_text(cell)}</th>" for n, cell in enumerate(head))
    body = "".join("<tr>" + "".join(f"<td{css(n)}>{cell}</td>" for n, cell in enumerate(row)) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>\n"


def _link(trial: Trial, text: str) -> str:
    return f'<a href="#{_anchor(trial)}">{_text(text)}</a>'


def _anchor(trial: Trial) -> str:
    return "trial-" + _text(trial.get("id")).replace(" ", "-")


def _text(value: Any) -> str:
    return escape(clean(value if value is not None else "-"), quote=True)
