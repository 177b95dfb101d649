"""A trial's log: bounded, drawn in batches, followed or paused."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from textual.message import Message
from textual.widgets import Log

from tui.actions import Scope, bindings_of

__all__ = ["LogView"]

_MOST_LINES = 5000


class LogView(Log):
    """Lines that are already harmless; while paused, what comes is held back."""

    BINDINGS = bindings_of(Scope.MOVING)

    class Changed(Message):
        """The view was paused or follows again, or lines wait or were skipped."""

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, LogView.Changed)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(highlight=False, max_lines=_MOST_LINES, id=id)
        self.is_paused = False
        self.skipped = 0
        self._held: deque[str] = deque(maxlen=_MOST_LINES)
        self._held_count = 0

    @property
    def waiting(self) -> int:
        """How many lines came while paused."""
        return self._held_count

    def add(self, lines: Sequence[str], skipped: int = 0) -> None:
        """Show more lines; `skipped` came before them and are not shown."""
        self.skipped += skipped
        if self.is_paused:
            self._held.extend(lines)
            self._held_count += len(lines)
        else:
            self.write_lines(lines)
        self.post_message(self.Changed())

    def toggle(self) -> None:
        """Pause, or show what came and follow again."""
        self.is_paused = not self.is_paused
        if not self.is_paused:
            self.skipped += self._held_count - len(self._held)
            held = list(self._held)
            self._held.clear()
            self._held_count = 0
            self.write_lines(held)
            self.scroll_end(animate=False)
        self.post_message(self.Changed())

    # Log measures new lines in a thread that waits for the loop; at quit that wait has no end. Batches are small.
    def _update_size(self, updates: int, lines: list[str]) -> Any:
        if lines:
            self._update_maximum_width(updates, max(map(cell_len, lines)))
