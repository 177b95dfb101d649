"""A text that scrolls."""

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from tui.actions import Scope, bindings_of

__all__ = ["TextPane"]


class TextPane(VerticalScroll, can_focus=True):
    """Shows one Content; its place stays when the text changes."""

    BINDINGS = bindings_of(Scope.MOVING)

    def compose(self) -> ComposeResult:
        yield Static(markup=False)

    def show(self, text: Content) -> None:
        """Draw the text."""
        self.query_one(Static).update(text)
