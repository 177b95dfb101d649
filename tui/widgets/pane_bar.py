"""The names of a screen's panes, the shown one marked; a click shows another."""

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

__all__ = ["PaneBar"]


class _Tab(Static):
    def __init__(self, pane: str) -> None:
        super().__init__(markup=False)
        self.pane = pane

    def on_click(self) -> None:
        self.post_message(PaneBar.Chosen(self.pane))


class PaneBar(Horizontal):
    """One line of names with a remark at its end."""

    class Chosen(Message):
        """A pane's name was clicked."""

        def __init__(self, pane: str) -> None:
            super().__init__()
            self.pane = pane

    def __init__(self, panes: tuple[str, ...]) -> None:
        super().__init__()
        self._panes = panes

    def compose(self) -> ComposeResult:
        for pane in self._panes:
            yield _Tab(pane)
        yield Static(id="remark", markup=False)

    def show(self, shown: str, marks: dict[str, str], remark: Content) -> None:
        """Draw the names: the shown one in brackets, each with its mark."""
        for tab in self.query(_Tab):
            name = f"{tab.pane}{marks.get(tab.pane, '')}"
            tab.set_class(tab.pane == shown, "-shown")
            tab.update(Content(f"[{name}]" if tab.pane == shown else f" {name} "))
        self.query_one("#remark", Static).update(remark)
