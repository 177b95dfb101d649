"""What must not be missed, below the heading: the daemon is away or degraded, a service needs a person."""

from datetime import datetime
from typing import cast

from textual.content import Content
from textual.widgets import Static

from tui.console import Console
from tui.ink import BAD
from tui.model import ViewState
from tui.words import clock_time, moment

__all__ = ["Banner"]


class Banner(Static):
    """Lines that are there only while they are true."""

    def show(self, view: ViewState, now: datetime) -> None:
        """Draw the lines, or nothing."""
        glyphs = cast(Console, self.app).glyphs
        lines = []
        if view.away_since:
            shown = " Shown is what it last said." if view.is_known else ""
            text = (
                f"{glyphs.warning} {view.away_why} (since {clock_time(moment(view.away_since))}).{shown} Trying again."
            )
            lines.append(Content.assemble((text, BAD)))
        elif view.problem:
            lines.append(Content.assemble((f"{glyphs.warning} {view.problem}", BAD)))
        for trial in view.parked():
            text = (
                f"{glyphs.failed} {trial.service} on {trial.host} needs a person: the rollback of {trial.name} failed "
                "and the baseline is not proven to serve. R tries again."
            )
            lines.append(Content.assemble((text, f"bold {BAD}")))
        self.display = bool(lines)
        self.update(Content("\n").join(lines))
