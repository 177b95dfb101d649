"""A deadline that an operator can move while it runs, and that a restarted daemon takes up where it was."""

import time

from specd import clock

__all__ = ["Deadline"]


class Deadline:
    """`allowed_s` seconds for one state, of which `spent_s` are gone already; extensions add to both limits.

    `stall_s` bounds the time without progress; 0 means that the state has no such rule.
    """

    def __init__(self, allowed_s: float, *, stall_s: float = 0.0, spent_s: float = 0.0) -> None:
        self.allowed_s = allowed_s
        self.stall_s = stall_s
        self._started = time.monotonic() - spent_s

    @property
    def spent_s(self) -> float:
        """Seconds since the state was entered."""
        return time.monotonic() - self._started

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; negative once it has passed."""
        return self.allowed_s - self.spent_s

    @property
    def at(self) -> str:
        """The deadline as wall-clock time."""
        return clock.after(self.remaining_s)

    def extend(self, seconds: float) -> None:
        """Move the deadline, and the no-progress limit with it."""
        self.allowed_s += seconds
        if self.stall_s:
            self.stall_s += seconds
