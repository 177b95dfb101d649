"""The console: takes updates in, shows screens, carries out actions."""

import asyncio
import getpass
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar

from textual.app import SystemCommand
from textual.screen import Screen
from textual.timer import Timer
from textual.worker import Worker, WorkerState

from tui.actions import ACTIONS, Scope, actions_of, bindings_of
from tui.client import ApiClient, Away, Refused
from tui.clipboard import save_copy
from tui.console import Console
from tui.feed import Feed
from tui.glyphs import Glyphs
from tui.leave import Exit
from tui.model import ViewState, reduce_all
from tui.place import state_directory
from tui.questions import Question, Refusal, cancel_question, rollback_question
from tui.screens.base import ConsoleScreen, Subject
from tui.screens.confirm import ConfirmScreen
from tui.screens.help import HelpScreen
from tui.screens.services import ServicesScreen
from tui.screens.trial import TrialScreen
from tui.screens.trials import TrialsScreen
from tui.themes import THEME_NAMES, THEMES
from tui.updates import Update
from tui.words import clean, clock_time, moment

__all__ = ["ConsoleApp"]

_DRAW_EVERY_S = 0.2
_EXTENSION_MIN = 30
_FEED_AGAIN_S = 1.0


class ConsoleApp(Console):
    """A pure client of one daemon; what it shows is the reducer's state and nothing else."""

    CSS_PATH = "styles/app.tcss"
    TITLE = "specd"
    BINDINGS = bindings_of(Scope.EVERYWHERE)
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {"trials": TrialsScreen, "services": ServicesScreen}
    DEFAULT_MODE = "trials"

    def __init__(
        self,
        client: ApiClient,
        glyphs: Glyphs,
        *,
        theme: str = "",
        read_only: bool = False,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        leaving: Exit | None = None,
    ) -> None:
        super().__init__(client, glyphs, clock)
        for known in THEMES:
            self.register_theme(known)
        self.theme = theme or THEME_NAMES[0]
        self.read_only = read_only
        # Over SSH every frame of an animation is a delay.
        self.animation_level = "none"
        self.set_reactive(Console.view, ViewState(address=clean(client.address)))
        self.feed = Feed(client, self.take, self.complain, self._timestamp)
        self._leaving = leaving
        self._pending: list[Update] = []
        self._drawing: Timer | None = None

    # -- updates

    def on_mount(self) -> None:
        self.set_class(not self.glyphs.is_unicode, "-ascii")
        self.set_interval(1.0, self._tick)
        self._run_feed()

    def _run_feed(self) -> None:
        self.run_worker(self._follow(), name="feed", group="feed", exclusive=True, exit_on_error=False)

    async def _follow(self) -> None:
        async with self.client:
            await self.feed.run()

    def _timestamp(self) -> str:
        return self.clock().isoformat()

    def _tick(self) -> None:
        self.now = self.clock()

    def take(self, update: Update) -> None:
        """Take an update in; a burst is drawn once."""
        self._pending.append(update)
        if self._drawing is None:
            self._drawing = self.set_timer(_DRAW_EVERY_S if self.view.is_known else 0.02, self._apply)

    def _apply(self) -> None:
        self._drawing = None
        pending, self._pending = self._pending, []
        self.now = self.clock()
        self.view = reduce_all(self.view, pending)

    def complain(self, words: str) -> None:
        """Show an error in words."""
        self.notify(clean(words), severity="error", timeout=12, markup=False)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state is not WorkerState.ERROR:
            return
        self.complain(f"The console's {event.worker.name} failed and begins anew: {event.worker.error!r}")
        if event.worker.name == "feed":
            self.set_timer(_FEED_AGAIN_S, self._run_feed)

    # -- screens

    @property
    def subject(self) -> Subject:
        """What the keys act upon: that of the topmost screen that has one."""
        screen = next((screen for screen in reversed(self.screen_stack) if isinstance(screen, ConsoleScreen)), None)
        return screen.subject() if screen else Subject()

    def want(self, trial: str) -> None:
        self.feed.want(trial)

    def open_trial(self, trial: str) -> None:
        self.push_screen(TrialScreen(trial))

    async def action_show_trials(self) -> None:
        """Go to the list of trials."""
        await self._show_mode("trials")

    async def action_show_services(self) -> None:
        """Go to the services."""
        await self._show_mode("services")

    async def _show_mode(self, mode: str) -> None:
        await self.switch_mode(mode)
        while len(self.screen_stack) > 1:
            await self.pop_screen()
        self.feed.want("")

    async def action_back(self) -> None:
        """Undo the innermost thing."""
        screen = self.screen
        if isinstance(screen, ConsoleScreen) and screen.go_back():
            return
        if len(self.screen_stack) > 1:
            await self.pop_screen()
            self.feed.want("")
        elif self.current_mode != self.DEFAULT_MODE:
            await self._show_mode(self.DEFAULT_MODE)

    def action_help(self) -> None:
        """Show every key."""
        self.push_screen(HelpScreen())

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Return the palette's commands: the actions that make sense on this screen."""
        scopes = {TrialsScreen: Scope.TRIALS, ServicesScreen: Scope.SERVICES, TrialScreen: Scope.TRIAL}
        own = scopes.get(type(screen))
        for action in actions_of(Scope.EVERYWHERE, *([own] if own else [])):
            if action.in_palette and not (action.steers and self.read_only):
                name = action.name if action.scope is Scope.EVERYWHERE else f"screen.{action.name}"
                title = action.label[0].upper() + action.label[1:]
                yield SystemCommand(title, action.sentence, partial(self._run_named, name))

    def _run_named(self, name: str) -> None:
        self.call_later(self.run_action, name)

    # -- steering

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Grey out what a read-only console must not do."""
        return None if self.read_only and action in _STEERING else True

    def action_cancel(self) -> None:
        """Cancel the selected trial, after a question."""
        self._ask(cancel_question(self.view, self.subject.trial), self.client.cancel)

    def action_rollback(self) -> None:
        """Bring the selected service's baseline back, after a question."""
        held = [service.name for service in self.view.services.values() if service.trial]
        # Where only one service can be meant, it need not be selected.
        service = held[0] if len(held) == 1 else self.subject.service
        self._ask(rollback_question(self.view, service), self.client.rollback)

    def _ask(self, question: Question | Refusal, request: Callable[[str, str], Awaitable[Any]]) -> None:
        if isinstance(question, Refusal):
            self.notify(question.words, severity="warning", markup=False)
            return

        def answered(is_yes: bool | None) -> None:
            if is_yes:
                self.run_worker(
                    self._steer(request(question.target, _who()), f"{question.yes}: asked"),
                    name="request",
                    exit_on_error=False,
                )

        self.push_screen(ConfirmScreen(question), answered)

    async def _steer(self, request: Awaitable[Any], done: str) -> Any:
        try:
            answer = await request
        except (Away, Refused) as why:
            self.complain(f"Not done: {why}.{self._serving_words()}")
            return None
        self.notify(done, markup=False)
        self.feed.refresh()
        return answer

    def _serving_words(self) -> str:
        service = self.view.services.get(self.subject.service)
        return f" {service.name} serves {service.serving}." if service and service.serving else ""

    def action_extend(self) -> None:
        """Give the running state of the selected trial more time."""
        trial = self.view.trials.get(self.subject.trial)
        if trial is None:
            self.notify("No trial is selected.", severity="warning", markup=False)
            return
        self.run_worker(self._extend(trial.id, trial.state), name="request", exit_on_error=False)

    async def _extend(self, trial: str, state: str) -> None:
        try:
            answer = await self.client.extend(trial, _EXTENSION_MIN)
        except (Away, Refused) as why:
            self.complain(f"Not extended: {why}.{self._serving_words()}")
            return
        until = clock_time(moment(answer.get("deadline_at")))
        self.notify(f"{state} may last until {until or 'later'}", markup=False)

    # -- the rest

    def action_copy(self) -> None:
        """Copy what is selected to the terminal's clipboard and to a file."""
        subject = self.subject
        if not subject.copy_text:
            self.notify("Nothing is selected.", severity="warning", markup=False)
            return
        self.copy_to_clipboard(subject.copy_text)
        self.run_worker(self._save_copy(subject), name="copy", exit_on_error=False)

    async def _save_copy(self, subject: Subject) -> None:
        try:
            path = await asyncio.to_thread(save_copy, state_directory(), subject.copy_text)
        except OSError as error:
            self.complain(f"Copied to the terminal's clipboard only: {error}")
            return
        self.notify(f"Copied {subject.copy_name}; also in {path}", markup=False)

    def action_next_theme(self) -> None:
        """Change to the next theme."""
        self.theme = THEME_NAMES[(THEME_NAMES.index(self.theme) + 1) % len(THEME_NAMES)]
        self.notify(f"theme: {self.theme}", timeout=2, markup=False)

    def action_save_screen(self) -> None:
        """Save the screen as SVG."""
        self.run_worker(self._save_screen(self.export_screenshot()), name="screenshot", exit_on_error=False)

    async def _save_screen(self, svg: str) -> None:
        path = state_directory() / f"screen-{self.clock().strftime('%Y%m%d-%H%M%S')}.svg"
        try:
            await asyncio.to_thread(_write, path, svg)
        except OSError as error:
            self.complain(f"The screen could not be saved: {error}")
            return
        self.notify(f"Saved {path}", markup=False)

    def action_refresh(self) -> None:
        """Ask for everything again and redraw."""
        self.feed.refresh()
        self.refresh(repaint=True, layout=True)

    async def action_quit(self) -> None:
        """Leave; the trials go on."""
        if self._leaving is not None:
            self._leaving.begin()
        self.workers.cancel_all()
        self.exit()


_STEERING = frozenset(action.name for action in ACTIONS if action.steers)


def _who() -> str:
    try:
        return f"{getpass.getuser()} at the console"
    except (KeyError, OSError):
        return "the console"


def _write(path: Any, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(text)
