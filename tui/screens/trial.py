"""One trial: its stages, clocks and progress, and the panes log, result, checks and changes."""

from datetime import datetime

from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content
from textual.widgets import Static

from tui.actions import Scope, bindings_of
from tui.ink import MUTED, WARN
from tui.logtail import LogPage, LogTail
from tui.model import SETTLED, ViewState
from tui.pages import changes_page, checks_page, clocks_line, gauge_line, result_page, serving_line, stage_lines
from tui.records import Detail, Trial
from tui.screens.base import ConsoleScreen, Subject
from tui.widgets.log_view import LogView
from tui.widgets.pane_bar import PaneBar
from tui.widgets.text_pane import TextPane

__all__ = ["TrialScreen"]

_PANES = ("log", "result", "checks", "changes")


class TrialScreen(ConsoleScreen):
    """Wide terminals show the log beside another pane, narrow ones one pane at a time."""

    CSS_PATH = "../styles/trial.tcss"
    BINDINGS = bindings_of(Scope.TRIAL)

    def __init__(self, trial: str) -> None:
        super().__init__()
        self.trial = trial
        self._pane = ""
        self._is_chosen = False

    def compose_body(self) -> ComposeResult:
        for name in ("serving", "clocks", "stages", "gauge"):
            yield Static(id=name, markup=False)
        yield PaneBar(_PANES)
        with Container(id="panes"):
            yield LogView(id="log")
            for name in _PANES[1:]:
                yield TextPane(id=name)

    def on_mount(self) -> None:
        super().on_mount()
        self.console.want(self.trial)
        tail = LogTail(self.console.client.log, self.trial, self._log)
        self.run_worker(tail.run(), name="log", group="log", exit_on_error=False)
        self._show_pane("log")

    def crumbs(self, view: ViewState) -> tuple[str, ...]:
        trial = view.trials.get(self.trial)
        return ("trials", f"{trial.name} {trial.id}" if trial else self.trial)

    # -- drawing

    def draw(self, view: ViewState, now: datetime) -> None:
        trial, detail = view.trials.get(self.trial), view.details.get(self.trial)
        if trial is None:
            self._put("serving", Content.assemble(("asking the daemon for this trial", MUTED)))
            return
        service, glyphs, width = view.services.get(trial.service), self.console.glyphs, self.size.width - 2
        self._put("serving", serving_line(trial, detail, service))
        self._put("stages", stage_lines(trial, detail, now, width, glyphs))
        self._put("gauge", gauge_line(trial, detail, now, width, glyphs))
        if detail is not None:
            self._put("clocks", clocks_line(trial, detail, service, now))
            self._draw_panes(trial, detail)
            self._choose_first(trial)
        self._draw_bar()

    def _choose_first(self, trial: Trial) -> None:
        """A trial that has ended opens with its result, unless another pane was asked for by then."""
        if not self._is_chosen and trial.state in SETTLED:
            self._show_pane("result")
        self._is_chosen = True

    def _draw_panes(self, trial: Trial, detail: Detail) -> None:
        glyphs = self.console.glyphs
        self.query_one("#result", TextPane).show(result_page(trial, detail, glyphs))
        self.query_one("#checks", TextPane).show(checks_page(detail.checks, glyphs))
        self.query_one("#changes", TextPane).show(changes_page(trial, detail))

    def _draw_bar(self) -> None:
        view = self.console.view
        trial, detail = view.trials.get(self.trial), view.details.get(self.trial)
        marks = {}
        if detail and (amiss := sum(check.status != "passed" for check in detail.checks)):
            marks["checks"] = f" {amiss}{self.console.glyphs.warning}"
        if trial and trial.outcome:
            marks["result"] = f" {trial.outcome}"
        self.query_one(PaneBar).show(self._pane, marks, self._remark())

    def _remark(self) -> Content:
        log = self.query_one(LogView)
        parts = []
        if log.skipped:
            parts.append(f"{log.skipped} lines skipped on screen")
        if log.is_paused:
            parts.append(f"paused, {log.waiting} lines wait")
        if parts:
            return Content.assemble((", ".join(parts), WARN))
        is_seen = self._pane == "log" or self.has_class("-wide")
        return Content.assemble(("log: following" if is_seen else "", MUTED))

    def _put(self, name: str, text: Content) -> None:
        self.query_one(f"#{name}", Static).update(text)

    # -- log

    def _log(self, page: LogPage) -> None:
        self.query_one(LogView).add(page.lines, page.skipped)

    def on_log_view_changed(self) -> None:
        self._draw_bar()

    def action_follow(self) -> None:
        """Pause the log, or follow it again."""
        self.query_one(LogView).toggle()

    # -- panes

    def _show_pane(self, pane: str) -> None:
        if self._pane:
            self.remove_class(f"-{self._pane}")
        self._pane = pane
        self.add_class(f"-{pane}")
        self.query_one(f"#{pane}").focus()
        self._draw_bar()

    def _step_pane(self, by: int) -> None:
        self._is_chosen = True
        self._show_pane(_PANES[(_PANES.index(self._pane) + by) % len(_PANES)])

    def action_next_pane(self) -> None:
        """Show the next pane."""
        self._step_pane(1)

    def action_previous_pane(self) -> None:
        """Show the previous pane."""
        self._step_pane(-1)

    def on_pane_bar_chosen(self, message: PaneBar.Chosen) -> None:
        self._is_chosen = True
        self._show_pane(message.pane)

    # -- keys

    def subject(self) -> Subject:
        view = self.console.view
        trial, detail = view.trials.get(self.trial), view.details.get(self.trial)
        service = trial.service if trial else ""
        if detail and detail.failure and self._pane == "result":
            failure = detail.failure
            words = [f"{failure.kind}: {failure.sentence}", *failure.lines, *([failure.hint] if failure.hint else [])]
            return Subject(self.trial, service, "why it failed", "\n".join(words))
        return Subject(self.trial, service, "the trial's id", self.trial)
