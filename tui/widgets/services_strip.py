"""Services in one line each, above the trials."""

from datetime import datetime
from typing import cast

from textual.content import Content
from textual.widgets import Static

from tui.console import Console
from tui.glyphs import Glyphs
from tui.ink import ACCENT, BAD, GOOD, MUTED, WARN, state_look
from tui.model import ViewState
from tui.records import Service
from tui.timeline import guard_left_s
from tui.words import clock_words

__all__ = ["ServicesStrip", "guard_words", "service_look"]

_MOST = 4


def service_look(service: Service, glyphs: Glyphs) -> tuple[str, str]:
    """Return a service's sign and style by what serves."""
    if service.serving.startswith("unknown"):
        return glyphs.failed, BAD
    if service.serving.startswith("nothing"):
        return glyphs.warning, WARN
    return glyphs.on, GOOD if service.serving.startswith("the baseline") else ACCENT


def guard_words(service: Service, now: datetime) -> str:
    """Return when an armed guard acts; "" when none is armed."""
    left = guard_left_s(service.guard, now)
    if left is None:
        return "fired" if service.guard and service.guard.state == "fired" else ""
    return clock_words(left) if left > 0 else "is due"


class ServicesStrip(Static):
    """At most four lines; the services' own screen has them all."""

    def show(self, view: ViewState, now: datetime) -> None:
        """Draw the lines: those with a trial first."""
        glyphs = cast(Console, self.app).glyphs
        services = sorted(view.services.values(), key=lambda service: (not service.trial, service.name))
        lines = [_line(service, view, now, self.content_size.width, glyphs) for service in services[:_MOST]]
        if len(services) > _MOST:
            lines.append(Content.assemble((f"  and {len(services) - _MOST} more: press 2", MUTED)))
        if not services:
            words = "no services yet" if view.is_known else "waiting for the daemon"
            lines.append(Content.assemble((f"  {words}", MUTED)))
        self.update(Content("\n").join(lines))


def _line(service: Service, view: ViewState, now: datetime, width: int, glyphs: Glyphs) -> Content:
    sign, style = service_look(service, glyphs)
    trial = view.trials.get(service.trial)
    tail = Content("")
    if trial is not None:
        mark, colour = state_look(trial.state, glyphs)
        tail = Content.assemble(("  ", ""), (f"{mark} {trial.state}", colour), f" {trial.name}")
    if guard := guard_words(service, now):
        tail = Content.assemble(tail, ("  guard ", MUTED), guard)
    if service.link.connected is False:
        tail = Content.assemble(tail, (f"  {glyphs.warning} link down", BAD))
    head = Content.assemble((f"{sign} ", style), (service.name, "bold"), (f" on {service.host}  ", MUTED))
    serving = Content.assemble(("serves ", MUTED), (service.serving or "unknown", style))
    room = max(width - head.cell_length - tail.cell_length, 12)
    return Content.assemble(head, serving.truncate(room, ellipsis=glyphs.is_unicode), tail)
