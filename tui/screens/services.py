"""All services, each with what serves, what holds it, its guard and the link to its host."""

from datetime import datetime
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from tui.actions import Scope, bindings_of
from tui.glyphs import Glyphs
from tui.ink import ACCENT, BAD, MUTED, WARN, bar, state_look
from tui.model import ViewState
from tui.pages import duration_or_unknown
from tui.records import Service, Trial
from tui.screens.base import ConsoleScreen, Subject
from tui.timeline import gauge
from tui.widgets.services_strip import guard_words, service_look
from tui.words import clock_words, seconds_between, short

__all__ = ["ServicesScreen"]

_BAR = 12


class _Services(OptionList):
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings_of(Scope.SERVICES, on="screen"),
        *bindings_of(
            Scope.MOVING,
            names={
                "scroll_down": "cursor_down",
                "scroll_up": "cursor_up",
                "scroll_home": "first",
                "scroll_end": "last",
                "scroll_right": "screen.open",
            },
        ),
    ]


class ServicesScreen(ConsoleScreen):
    """A few lines a service; enter opens the trial that holds it."""

    CSS_PATH = "../styles/services.tcss"

    def compose_body(self) -> ComposeResult:
        yield _Services(markup=False)

    def on_mount(self) -> None:
        super().on_mount()
        self._names: list[str] = []
        self.query_one(_Services).focus()

    def crumbs(self, view: ViewState) -> tuple[str, ...]:
        return ("services",)

    def draw(self, view: ViewState, now: datetime) -> None:
        shown = self.query_one(_Services)
        services = sorted(view.services.values(), key=lambda service: service.name)
        blocks = [_block(service, view, now, self.console.glyphs) for service in services]
        names = [service.name for service in services]
        if names != self._names:
            place = shown.highlighted or 0
            shown.set_options(Option(block) for block in blocks)
            shown.highlighted = min(place, len(names) - 1) if names else None
            self._names = names
            return
        for index, block in enumerate(blocks):
            shown.replace_option_prompt_at_index(index, block)

    def _selected(self) -> Service | None:
        place = self.query_one(_Services).highlighted
        return self.console.view.services.get(self._names[place]) if place is not None and self._names else None

    def subject(self) -> Subject:
        service = self._selected()
        if service is None:
            return Subject()
        return Subject(service.trial, service.name, "the service's unit on its host", f"{service.unit} {service.host}")

    def action_open(self) -> None:
        """Open the trial that holds the selected service."""
        service = self._selected()
        if service and service.trial:
            self.console.open_trial(service.trial)
        elif service:
            self.notify(f"No trial holds {service.name}.", markup=False)


def _block(service: Service, view: ViewState, now: datetime, glyphs: Glyphs) -> Content:
    sign, style = service_look(service, glyphs)
    trial = view.trials.get(service.trial)
    lines = [
        Content.assemble((f"{sign} {service.name}", f"bold {style}"), (f"  {service.unit} on {service.host}", MUTED)),
        Content.assemble(("    serves  ", MUTED), (service.serving or "unknown", style)),
        Content.assemble(("    trial   ", MUTED), _trial(trial, view, now, glyphs)),
        Content.assemble(
            ("    outage  ", MUTED),
            f"a trial takes {duration_or_unknown(service.expected_outage_s)}"
            if service.expected_outage_s is not None
            else duration_or_unknown(None),
            *((("   guard ", MUTED), f"acts in {guard}") if (guard := guard_words(service, now)) else ()),
        ),
        Content.assemble(("    link    ", MUTED), _link(service, now)),
        Content(""),
    ]
    return Content("\n").join(lines)


def _trial(trial: Trial | None, view: ViewState, now: datetime, glyphs: Glyphs) -> Content:
    if trial is None:
        return Content.assemble(("none", MUTED))
    sign, style = state_look(trial.state, glyphs)
    line = Content.assemble((f"{sign} {trial.state}", style), f"  {trial.name} ", (trial.id, MUTED))
    found = gauge(trial, view.details.get(trial.id), now)
    if found and found.fraction is not None:
        line = Content.assemble(line, "  ", (bar(found.fraction, _BAR, glyphs), ACCENT), f" {found.fraction:.0%}")
    if found and found.eta_s is not None and found.eta_s >= 0:
        line = Content.assemble(line, f"  {clock_words(found.eta_s)} left")
    return line


def _link(service: Service, now: datetime) -> Content:
    link = service.link
    if link.connected is None:
        return Content.assemble(("unknown", MUTED))
    age_s = seconds_between(link.at, now) or 0.0
    contact = f", last contact {short(link.since_contact_s + age_s)} ago" if link.since_contact_s is not None else ""
    if link.connected:
        return Content.assemble("connected", (contact, MUTED))
    why = f": {link.why_down}" if link.why_down else ""
    return Content.assemble((f"down{why}", BAD if link.why_down else WARN), (contact, MUTED))
