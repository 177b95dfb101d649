"""Errors of the vocabulary: what may not happen to a trial's state."""

from states.table import State, Trigger

__all__ = ["IllegalMove", "UnknownEvent"]


class IllegalMove(Exception):
    """A trigger was fired in a state from which the table has no move for it."""

    def __init__(self, state: State, trigger: Trigger) -> None:
        super().__init__(f"{trigger.value!r} is not a move from {state.value!r}")
        self.state = state
        self.trigger = trigger


class UnknownEvent(ValueError):
    """A wire record names no event of this version, or lacks one of its fields."""
