"""How states and outcomes look: a sign, a word, a style by the theme's variables. The word alone always suffices."""

from collections.abc import Mapping

from rich.text import Text
from textual.content import Content

from states.table import PARKED, TERMINAL, WORKING, Outcome, State
from tui.glyphs import Glyphs

__all__ = ["MUTED", "bar", "inked", "outcome_style", "stage_look", "state_look"]

GOOD, BAD, WARN, ACCENT, MUTED = "$text-success", "$text-error", "$text-warning", "$text-accent", "$muted"

_WORKING = frozenset(state.value for state in WORKING) - {State.QUEUED.value}
_TERMINAL = frozenset(state.value for state in TERMINAL)
_PARKED = frozenset(state.value for state in PARKED)
_OUTCOMES = {
    Outcome.BETTER.value: GOOD,
    Outcome.WORSE.value: WARN,
    Outcome.INVALID.value: BAD,
    Outcome.FAILED.value: BAD,
}


def state_look(state: str, glyphs: Glyphs) -> tuple[str, str]:
    """Return a state's sign and style."""
    if state in _PARKED:
        return glyphs.failed, BAD
    if state == State.ROLLBACK.value:
        return glyphs.now, WARN
    if state in _WORKING:
        return glyphs.now, ACCENT
    if state == State.WITHDRAWN.value:
        return glyphs.skipped, MUTED
    if state in _TERMINAL:
        return glyphs.done, GOOD
    return glyphs.later, MUTED


def stage_look(kind: str, state: str, glyphs: Glyphs) -> tuple[str, str]:
    """Return the sign and style of a stage by its kind."""
    if kind in ("now", "end"):
        return state_look(state, glyphs)
    return {
        "done": (glyphs.done, GOOD),
        "failed": (glyphs.failed, BAD),
        "stopped": (glyphs.failed, WARN),
        "skipped": (glyphs.skipped, MUTED),
        "later": (glyphs.later, MUTED),
    }[kind]


def outcome_style(outcome: str) -> str:
    """Return an outcome's style."""
    return _OUTCOMES.get(outcome, MUTED)


def bar(fraction: float, width: int, glyphs: Glyphs) -> str:
    """Return a bar of so many cells."""
    full = round(min(max(fraction, 0.0), 1.0) * width)
    return glyphs.full * full + glyphs.empty * (width - full)


def inked(content: Content, variables: Mapping[str, str]) -> Text:
    """Return content as a table's cell: its theme variables resolved, its text never read as markup."""
    text = Text(content.plain, no_wrap=True, overflow="ellipsis", end="")
    for span in content.spans:
        words = [variables.get(word[1:], "") if word.startswith("$") else word for word in str(span.style).split()]
        text.stylize(" ".join(words), span.start, span.end)
    return text
