"""The report as Markdown."""

import re
from collections.abc import Sequence

from specd.cli.figures import comparison_words, level_rows
from specd.cli.text import clean
from specd.report.rows import HEAD, Trial, changes, history, overview_row, reasons

__all__ = ["as_markdown"]

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|!~])")


def as_markdown(trials: Sequence[Trial]) -> str:
    """Return an overview table, then a section for each trial."""
    lines = ["# Trials", "", *_table([HEAD, *(overview_row(trial) for trial in trials)])]
    for trial in trials:
        lines += ["", *_section(trial)]
    return "\n".join(lines) + "\n"


def _section(trial: Trial) -> list[str]:
    where = f"{clean(trial.get('service'))} on {clean(trial.get('host'))}, id {clean(trial.get('id'))}"
    lines = [f"## {_plain(clean(trial.get('name')))}", "", _plain(where)]
    if trial.get("outcome"):
        words = comparison_words(trial.get("comparison") or {})
        lines += ["", f"**{_plain(clean(trial['outcome']))}**" + (f": {_plain(words)}" if words else "")]
    for sentence in reasons(trial):
        lines += ["", _plain(sentence)]
    changed = changes(trial)
    if changed:
        lines += ["", *_table([("Change", "Value"), *changed])]
    figures = level_rows(trial)
    if figures:
        head = ("", "baseline", "candidate", "difference")
        rows = [(row[0].strip(), "", "", "") if row[1] == "baseline" else row for row in figures]
        lines += ["", *_table([head, *((name.strip(), *rest) for name, *rest in rows)])]
    states = history(trial)
    if states:
        lines += ["", *_table([("Time (UTC)", "State", "Took"), *states])]
    return lines


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *body = [[_plain(cell) for cell in row] for row in rows]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in body]


def _plain(text: str) -> str:
    """Return text that no Markdown reader takes for markup."""
    return _SPECIAL.sub(r"\\\1", text)
