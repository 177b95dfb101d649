"""What all screens share: heading, banner, footer, redrawing, and what the keys act upon."""

from dataclasses import dataclass
from datetime import datetime
from typing import cast

from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Footer

from tui.console import Console
from tui.model import ViewState
from tui.widgets.banner import Banner
from tui.widgets.heading import Heading

__all__ = ["ConsoleScreen", "Subject"]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is selected on a screen; "" for nothing. `copy_name` says in words what `copy_text` is."""

    trial: str = ""
    service: str = ""
    copy_name: str = ""
    copy_text: str = ""


class ConsoleScreen(Screen[None]):
    """A screen between heading and footer."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (18, "-high")]  # noqa: RUF012

    @property
    def console(self) -> Console:
        """The application, by its own type."""
        return cast(Console, self.app)

    def compose(self) -> ComposeResult:
        yield Heading()
        yield Banner()
        yield from self.compose_body()
        yield Footer(show_command_palette=False, compact=True)

    def compose_body(self) -> ComposeResult:
        """Yield what is between banner and footer."""
        raise NotImplementedError

    def on_mount(self) -> None:
        self.watch(self.app, "view", self._redraw, init=False)
        self.watch(self.app, "now", self._redraw, init=False)

    def on_screen_resume(self) -> None:
        self._redraw()

    def on_resize(self) -> None:
        self._redraw()

    def _redraw(self) -> None:
        # What is not seen is drawn when it comes up again; a screen below a question is seen.
        if not self.is_mounted or not self.is_current:
            return
        view, now = self.console.view, self.console.now
        self.query_one(Heading).show(view, now, self.crumbs(view))
        self.query_one(Banner).show(view, now)
        self.draw(view, now)

    def crumbs(self, view: ViewState) -> tuple[str, ...]:
        """Return where this screen is, outermost first."""
        raise NotImplementedError

    def draw(self, view: ViewState, now: datetime) -> None:
        """Show the view at this moment."""
        raise NotImplementedError

    def subject(self) -> Subject:
        """Return what keys act upon."""
        raise NotImplementedError

    def go_back(self) -> bool:
        """Undo the innermost thing on this screen; False when there is none and the screen itself may close."""
        return False
