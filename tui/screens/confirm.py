"""One question before a dangerous action."""

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from tui.actions import Scope, bindings_of
from tui.ink import MUTED, WARN
from tui.questions import Question

__all__ = ["ConfirmScreen"]


class ConfirmScreen(ModalScreen[bool]):
    """Ends with True for yes; the cursor is on no."""

    CSS_PATH = "../styles/confirm.tcss"
    BINDINGS = bindings_of(Scope.CONFIRM)
    AUTO_FOCUS = "#no"

    def __init__(self, question: Question) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        question = self.question
        width = max(len(name) for name, _ in question.facts)
        facts = [Content.assemble((f"{name:<{width}}  ", MUTED), (value, "bold")) for name, value in question.facts]
        with Vertical(id="question"):
            yield Static(Content.assemble((question.title, f"bold {WARN}")), id="title")
            yield Static(Content("\n").join(facts), id="facts")
            yield Static(Content(question.consequence), id="consequence")
            with Horizontal(id="answers"):
                yield Button(Content(f"y  {question.yes}"), id="yes", variant="warning", compact=True)
                yield Button(Content(f"n  {question.no}"), id="no", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_yes(self) -> None:
        """Do it."""
        self.dismiss(True)

    def action_no(self) -> None:
        """Do nothing."""
        self.dismiss(False)

    def key_left(self) -> None:
        self.focus_previous()

    def key_right(self) -> None:
        self.focus_next()
