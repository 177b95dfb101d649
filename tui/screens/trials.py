"""The first screen: services in short, and all trials."""

from datetime import datetime

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Input, Static

from tui.ink import MUTED
from tui.model import ViewState
from tui.records import Trial
from tui.screens.base import ConsoleScreen, Subject
from tui.widgets.services_strip import ServicesStrip
from tui.widgets.trials_table import TrialsTable

__all__ = ["TrialsScreen", "matches"]


def matches(trial: Trial, words: str) -> bool:
    """True when every word is in the trial's id, name, service, host, state or outcome."""
    if not words:
        return True
    text = " ".join((trial.id, trial.name, trial.service, trial.host, trial.state, trial.outcome)).lower()
    return all(word in text for word in words.lower().split())


class TrialsScreen(ConsoleScreen):
    """Newest first; `/` filters as you type."""

    CSS_PATH = "../styles/trials.tcss"

    def compose_body(self) -> ComposeResult:
        yield ServicesStrip(markup=False)
        yield Input(placeholder="words in id, name, service, host, state or outcome", id="filter", compact=True)
        yield TrialsTable()
        yield Static(id="empty", markup=False)

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#filter").display = False
        self.query_one(TrialsTable).focus()

    def crumbs(self, view: ViewState) -> tuple[str, ...]:
        return ("trials",)

    def draw(self, view: ViewState, now: datetime) -> None:
        self.query_one(ServicesStrip).show(view, now)
        words = self._input.value
        trials = [trial for trial in view.newest_first() if matches(trial, words)]
        table = self.query_one(TrialsTable)
        table.show(trials, now)
        self.query_one("#empty", Static).update(self._empty_words(view, trials))

    def _empty_words(self, view: ViewState, trials: list[Trial]) -> Content:
        if trials or not view.is_known:
            return Content("")
        if view.trials:
            return Content.assemble((f"None of {len(view.trials)} trials matches. Escape clears the filter.", MUTED))
        return Content.assemble(("No trials yet. `specd submit FILE` queues some.", MUTED))

    @property
    def _input(self) -> Input:
        return self.query_one("#filter", Input)

    def subject(self) -> Subject:
        trial = self.console.view.trials.get(self.query_one(TrialsTable).selected)
        if trial is None:
            services = self.console.view.services
            return Subject(service=next(iter(services)) if len(services) == 1 else "")
        return Subject(trial.id, trial.service, "the trial's id", trial.id)

    def action_open(self) -> None:
        """Open the trial under the cursor."""
        if trial := self.query_one(TrialsTable).selected:
            self.console.open_trial(trial)

    def action_filter(self) -> None:
        """Show the filter and type into it."""
        self._input.display = True
        self._input.focus()

    def on_input_changed(self) -> None:
        self._redraw()

    def on_input_submitted(self) -> None:
        self.query_one(TrialsTable).focus()
        self._input.display = bool(self._input.value)

    def go_back(self) -> bool:
        if not self._input.display:
            return False
        self._input.value = ""
        self._input.display = False
        self.query_one(TrialsTable).focus()
        return True
