"""Every key and what it does, from the table of actions."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from tui.actions import Scope, actions_of, key_words
from tui.ink import ACCENT, MUTED
from tui.widgets.text_pane import TextPane

__all__ = ["HelpScreen", "help_page"]


def help_page() -> Content:
    """Return the page: a heading for each scope, then its keys."""
    lines: list[Content] = []
    for scope in Scope:
        lines.append(Content.assemble((scope.value, "bold")))
        for action in actions_of(scope):
            keys = " ".join(key_words(key) for key in action.keys)
            lines.append(Content.assemble((f"  {keys:<14}", ACCENT), action.sentence))
        lines.append(Content(""))
    lines.append(Content.assemble(("All that is shown here is also in `specd show` and `specd trials`.", MUTED)))
    return Content("\n").join(lines)


class HelpScreen(ModalScreen[None]):
    """Over the screen it was asked from; escape closes it."""

    CSS_PATH = "../styles/help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark", "dismiss", "close")]

    def compose(self) -> ComposeResult:
        with Vertical(id="help"):
            yield Static("Keys  (escape closes)", id="title", markup=False)
            yield TextPane(id="keys")

    def on_mount(self) -> None:
        pane = self.query_one(TextPane)
        pane.show(help_page())
        pane.focus()
