"""The first line: where one is, whether the daemon answers, and the time."""

from datetime import datetime
from typing import cast

from textual.content import Content
from textual.widgets import Static

from tui.console import Console
from tui.ink import BAD, GOOD, MUTED
from tui.model import ViewState
from tui.words import clock_time, clock_words, seconds_between

__all__ = ["Heading"]


class Heading(Static):
    """One line; the link's state is a word besides a sign."""

    def show(self, view: ViewState, now: datetime, crumbs: tuple[str, ...]) -> None:
        """Draw the line."""
        glyphs = cast(Console, self.app).glyphs
        left = [Content.assemble(("specd", "bold $text-primary"))]
        left += [Content.assemble((f" {glyphs.between} ", MUTED), (crumb, "bold")) for crumb in crumbs]
        link = self._link(view, now)
        right = Content.assemble(link, f"  {clock_time(now)}")
        line = Content("").join(left)
        room = self.content_size.width - right.cell_length - 1
        line = line.truncate(max(room, 0), ellipsis=glyphs.is_unicode)
        gap = max(1, self.content_size.width - line.cell_length - right.cell_length)
        self.update(Content.assemble(line, " " * gap, right))

    def _link(self, view: ViewState, now: datetime) -> Content:
        glyphs = cast(Console, self.app).glyphs
        if view.away_since:
            away = seconds_between(view.away_since, now) or 0.0
            return Content.assemble((f"{glyphs.warning} daemon away {clock_words(away)}", f"bold {BAD}"))
        if not view.is_known:
            return Content.assemble((f"{glyphs.off} connecting", MUTED))
        return Content.assemble((f"{glyphs.on} connected", GOOD))
