"""What every screen may rely on: the view model, the time, the signs. No screens, no I/O."""

from collections.abc import Callable
from datetime import datetime

from textual.app import App
from textual.reactive import reactive

from tui.client import ApiClient
from tui.glyphs import Glyphs
from tui.model import ViewState

__all__ = ["Console"]


class Console(App[None]):
    """The application as its screens see it; data comes down as `view` and `now`."""

    view: reactive[ViewState] = reactive(ViewState(), init=False)
    now: reactive[datetime] = reactive(datetime.now().astimezone, init=False)

    def __init__(self, client: ApiClient, glyphs: Glyphs, clock: Callable[[], datetime]) -> None:
        super().__init__()
        self.client = client
        self.glyphs = glyphs
        self.clock = clock
        self.set_reactive(Console.now, clock())

    def want(self, trial: str) -> None:
        """Name the trial whose whole is shown; "" for none."""
        raise NotImplementedError

    def open_trial(self, trial: str) -> None:
        """Show one trial's screen."""
        raise NotImplementedError
