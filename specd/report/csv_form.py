"""The report as CSV: one row for each trial and concurrency level, numbers unrounded."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from specd.cli.figures import FIGURES, level_figure, level_pairs
from specd.cli.text import clean
from specd.report.rows import Trial, changes

__all__ = ["as_csv"]

_FACTS = ("id", "name", "service", "host", "state", "outcome", "created_at")
_COMPARISON = ("metric", "estimate", "low", "high")


def as_csv(trials: Sequence[Trial]) -> str:
    """Return the table; a trial without measurements has one row with empty figures."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = [key for key, _, _ in FIGURES]
    sides = [f"{side}_{key.replace('.', '_')}" for key in keys for side in ("baseline", "candidate")]
    writer.writerow([*_FACTS, "changes", *_COMPARISON, "concurrency", "rate", *sides])
    for trial in trials:
        facts = [_cell(trial.get(key)) for key in _FACTS]
        changed = _cell(" ".join(f"{name}={value}" for name, value in changes(trial)))
        compared = [_cell((trial.get("comparison") or {}).get(key)) for key in _COMPARISON]
        pairs = level_pairs(trial)
        for _, baseline, candidate in pairs:
            level = baseline or candidate
            figures = [level_figure(side, key) for key in keys for side in (baseline, candidate)]
            writer.writerow([*facts, changed, *compared, level["concurrency"], level.get("rate", 0.0), *figures])
        if not pairs:
            writer.writerow([*facts, changed, *compared, None, None, *(None for _ in sides)])
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return a number as it is, and text so that no spreadsheet takes it for a formula."""
    if value is None or isinstance(value, int | float):
        return value
    text = clean(value)
    return "'" + text if text.startswith(("=", "+", "-", "@")) else text
