"""What all forms of a report show of a trial, as plain text."""

from collections.abc import Mapping, Sequence
from typing import Any

from specd.cli.figures import comparison_words
from specd.cli.text import clean, duration, moment, value_text
from specd.engines.masking import MASK, is_secret_name

__all__ = ["HEAD", "Trial", "changes", "history", "overview_row", "reasons", "to_apply"]

Trial = Mapping[str, Any]

HEAD = ("Trial", "Service", "Host", "State", "Outcome", "Result")


def overview_row(trial: Trial) -> tuple[str, ...]:
    """Return a trial's row of the overview, in HEAD's order."""
    result = comparison_words(trial.get("comparison") or {}) or clean(trial.get("reason") or "")
    names = (clean(trial.get(key) or "-") for key in ("name", "service", "host", "state", "outcome"))
    return (*names, result)


def changes(trial: Trial) -> list[tuple[str, str]]:
    """Return what a trial changes as (flag or variable, value); secrets masked."""
    found = trial.get("changes") or {}
    pairs = [(f"--{name}", name, value) for name, value in (found.get("flags") or {}).items()]
    pairs += [(name, name, value) for name, value in (found.get("env") or {}).items()]
    return [(clean(shown), _value(name, value)) for shown, name, value in pairs]


def history(trial: Trial) -> list[tuple[str, str, str]]:
    """Return (time, state, how long) of each state a trial was in."""
    entries: Sequence[Mapping[str, Any]] = trial.get("history") or []
    rows = []
    for number, entry in enumerate(entries):
        begin = moment(entry.get("at"))
        end = moment(entries[number + 1].get("at")) if number + 1 < len(entries) else None
        took = duration((end - begin).total_seconds()) if begin and end else ""
        rows.append((clean(entry.get("at")), clean(entry.get("state")), took))
    return rows


def reasons(trial: Trial) -> list[str]:
    """Return the sentences that say why: the verdict's reason and the failure's own."""
    failure = trial.get("failure")
    sentences = []
    if trial.get("reason") and not (isinstance(failure, dict) and failure.get("sentence") == trial["reason"]):
        sentences.append(clean(trial["reason"]))
    if isinstance(failure, dict):
        sentences.append(f"{clean(failure.get('kind'))}: {clean(failure.get('sentence'))}")
        sentences += [clean(line) for line in failure.get("lines") or []]
        if failure.get("hint"):
            sentences.append(f"Hint: {clean(failure['hint'])}")
    return sentences


def to_apply(trial: Trial) -> str:
    """Return a drop-in that gives the baseline the command of a better candidate, ready to use; "" for others.

    One that would hold a masked secret is not given: it would not work.
    """
    argv = (trial.get("candidate") or {}).get("argv")
    unit = (trial.get("baseline") or {}).get("unit")
    if trial.get("outcome") != "better" or not isinstance(argv, list) or not argv:
        return ""
    words = [clean(word) for word in argv]
    if any(MASK in word for word in words) or words != argv:
        return "The command line holds a secret or control characters: change the flags above in the unit by hand."
    path = f"/etc/systemd/system/{clean(unit or 'UNIT')}.d/50-{clean(trial.get('name'))}.conf"
    env = [f'Environment="{name}={value}"' for name, _, value in _variables(trial)]
    command = " \\\n    ".join(quoted_word(word) for word in words)
    return "\n".join([f"# {path}", "[Service]", *env, "ExecStart=", f"ExecStart={command}"])


def _variables(trial: Trial) -> list[tuple[str, str, str]]:
    found = (trial.get("changes") or {}).get("env") or {}
    return [(clean(name), "", clean(value)) for name, value in found.items() if value is not None]


def quoted_word(word: str) -> str:
    """Return a word as ExecStart= takes it. (systemd.service(5), systemd.syntax(7))"""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if not text or any(c in text for c in " \t;'\"{}#") else text


def _value(name: str, value: Any) -> str:
    if value is None:
        return "(removed)"
    return MASK if is_secret_name(name) else value_text(value)
