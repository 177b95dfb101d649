"""The trials as a table of fixed columns that fit the width; only cells that changed are drawn again."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, cast

from rich.text import Text
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import DataTable

from tui.actions import Scope, bindings_of
from tui.console import Console
from tui.glyphs import Glyphs
from tui.ink import ACCENT, MUTED, bar, inked, outcome_style, state_look
from tui.records import Trial
from tui.timeline import Gauge, gauge
from tui.words import age, clock_words, seconds_between, short

__all__ = ["TrialsTable"]

_SHORT_BAR, _LONG_BAR = 4, 10


@dataclass(frozen=True, slots=True)
class _Row:
    trial: Trial
    gauge: Gauge | None
    now: datetime
    glyphs: Glyphs


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: its width in cells with one of gap, how it shows a row, and the least table width that has it."""

    key: str
    title: str
    width: int
    cell: Callable[[_Row], Content]
    least: int = 0
    most: int = 10_000
    grows: bool = False


def _state(row: _Row) -> Content:
    sign, style = state_look(row.trial.state, row.glyphs)
    return Content.assemble((f"{sign} {row.trial.state}", style))


def _progress(row: _Row, cells: int) -> Content:
    found = row.gauge
    if found is None or found.fraction is None:
        return Content("")
    return Content.assemble((bar(found.fraction, cells, row.glyphs), ACCENT), f" {found.fraction:.0%}")


def _left(row: _Row) -> Content:
    if row.gauge is None or row.gauge.eta_s is None:
        return Content("")
    seconds = row.gauge.eta_s
    return Content(clock_words(seconds)) if seconds >= 0 else Content.assemble((f"+{short(-seconds)}", MUTED))


def _age(row: _Row) -> Content:
    seconds = seconds_between(row.trial.created_at, row.now)
    return Content.assemble((age(seconds) if seconds is not None else "", MUTED))


_COLUMNS = (
    _Column("id", "id", 13, lambda row: Content.assemble((row.trial.id, MUTED)), least=100),
    _Column("name", "name", 14, lambda row: Content.assemble((row.trial.name, "bold")), grows=True),
    _Column("service", "service", 8, lambda row: Content(row.trial.service)),
    _Column("state", "state", 20, _state),
    _Column(
        "outcome", "outcome", 13, lambda row: Content.assemble((row.trial.outcome, outcome_style(row.trial.outcome)))
    ),
    _Column("share", "done", 10, lambda row: _progress(row, _SHORT_BAR), most=99),
    _Column("progress", "progress", 16, lambda row: _progress(row, _LONG_BAR), least=100),
    _Column("left", "left", 7, _left),
    _Column("age", "age", 5, _age, least=60),
    _Column("reason", "why", 20, lambda row: Content.assemble((row.trial.reason, MUTED)), least=130, grows=True),
)


class TrialsTable(DataTable[Text]):
    """One row a trial; the row under the cursor stays under it while others come and go."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings_of(Scope.TRIALS, on="screen"),
        *bindings_of(
            Scope.MOVING,
            names={
                "scroll_down": "cursor_down",
                "scroll_up": "cursor_up",
                "scroll_home": "scroll_top",
                "scroll_end": "scroll_bottom",
                "scroll_left": "cursor_left",
                "scroll_right": "screen.open",
            },
        ),
    ]

    def __init__(self) -> None:
        super().__init__(cursor_type="row", cell_padding=0, zebra_stripes=False)
        self._width = 0
        self._theme = ""
        self._columns: list[_Column] = []
        self._rows: dict[str, list[Content]] = {}
        self._drawn: dict[str, tuple[int, Trial, list[Content]]] = {}

    @property
    def selected(self) -> str:
        """The id of the trial under the cursor; "" when the table is empty."""
        ids = list(self._rows)
        return ids[self.cursor_row] if 0 <= self.cursor_row < len(ids) else ""

    def show(self, trials: list[Trial], now: datetime) -> None:
        """Draw these trials, in this order."""
        console = cast(Console, self.app)
        selected = self.selected
        width = self.size.width - self.scrollbar_size_vertical
        fresh = (width, console.theme) != (self._width, self._theme)
        if fresh:
            self._lay_out(width)
            self._theme = console.theme
        rows = {trial.id: self._cells(trial, now) for trial in trials}
        if fresh or list(rows) != list(self._rows):
            self._fill(rows, selected)
        else:
            self._change(rows)

    def _cells(self, trial: Trial, now: datetime) -> list[Content]:
        """Return a trial's cells; those of one that stands still are made once a minute at most."""
        console = cast(Console, self.app)
        row = _Row(trial, gauge(trial, console.view.details.get(trial.id), now), now, console.glyphs)
        minute = int(now.timestamp() // 60)
        drawn = self._drawn.get(trial.id)
        if row.gauge is None and drawn is not None and drawn[0] == minute and drawn[1] == trial:
            return drawn[2]
        cells = [column.cell(row) for column in self._columns]
        self._drawn[trial.id] = (minute, trial, cells)
        return cells

    def _lay_out(self, width: int) -> None:
        self._width = width
        self._columns = [column for column in _COLUMNS if column.least <= width <= column.most]
        growing = sum(column.grows for column in self._columns)
        spare = max(0, width - sum(column.width for column in self._columns))
        self.clear(columns=True)
        self._rows, self._drawn = {}, {}
        for column in self._columns:
            extra = spare // growing if column.grows else 0
            self.add_column(Text(column.title, style="bold"), key=column.key, width=column.width + extra)

    def _fill(self, rows: dict[str, list[Content]], selected: str) -> None:
        variables = self.app.theme_variables
        self.clear()
        for trial, cells in rows.items():
            self.add_row(*(inked(cell, variables) for cell in cells), key=trial)
        self._rows = rows
        ids = list(rows)
        if selected in rows:
            self.move_cursor(row=ids.index(selected), animate=False)

    def _change(self, rows: dict[str, list[Content]]) -> None:
        variables = self.app.theme_variables
        for trial, cells in rows.items():
            known = self._rows[trial]
            if cells is known:
                continue
            for column, cell, before in zip(self._columns, cells, known, strict=True):
                if cell.plain != before.plain or cell.spans != before.spans:
                    self.update_cell(trial, column.key, inked(cell, variables))
        self._rows = rows
