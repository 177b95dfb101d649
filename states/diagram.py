"""Prints the state diagram for the docs: `python -m states.diagram`."""

import sys

from states.table import DESCRIPTIONS, MOVES, PARKED, TERMINAL, State

__all__ = ["document", "mermaid"]


def mermaid() -> str:
    """Return the table as a mermaid state diagram; equal (source, target) pairs share one arrow."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for move in MOVES:
        arrows.setdefault((move.source, move.target), []).append(move.trigger.value)
    lines = ["stateDiagram-v2", "    direction LR", f"    [*] --> {State.QUEUED.name}"]
    lines += [f"    {state.name}: {state.value}" for state in State]
    lines += [f"    {source.name} --> {target.name}: {', '.join(names)}" for (source, target), names in arrows.items()]
    lines += [f"    {state.name} --> [*]" for state in State if state in TERMINAL]
    return "\n".join(lines) + "\n"


def document() -> str:
    """Return the whole docs page: diagram and one line a state."""
    rows = [
        f"| `{state.value}` | {DESCRIPTIONS[state]} | "
        f"{'terminal' if state in TERMINAL else 'parked' if state in PARKED else 'working'} |"
        for state in State
    ]
    return (
        "# States of a trial\n\nMade from the table in `states/table.py` by `make docs`; do not edit by hand.\n\n"
        f"```mermaid\n{mermaid()}```\n\n| state | what happens | kind |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    )


if __name__ == "__main__":
    sys.stdout.write(document())
