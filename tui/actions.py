"""Every action of the console, once: key bindings, footer, help page and command palette derive from this table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from textual.binding import Binding, BindingType

__all__ = ["ACTIONS", "Action", "Scope", "actions_of", "bindings_of", "key_words"]


class Scope(Enum):
    """Where an action works; the value is the help page's heading."""

    EVERYWHERE = "Everywhere"
    TRIALS = "List of trials"
    SERVICES = "Services"
    TRIAL = "One trial"
    MOVING = "Moving in lists and texts"
    CONFIRM = "Question"


@dataclass(frozen=True, slots=True)
class Action:
    """An action: `name` as Textual calls it, its keys (the first is shown), a word for the footer, a sentence.

    `steers` marks those that ask the daemon to change something: refused in a read-only console.
    """

    scope: Scope
    name: str
    keys: tuple[str, ...]
    label: str
    sentence: str
    in_footer: bool = False
    in_palette: bool = True
    steers: bool = False
    priority: bool = False


_E, _T, _S, _O, _M, _C = Scope.EVERYWHERE, Scope.TRIALS, Scope.SERVICES, Scope.TRIAL, Scope.MOVING, Scope.CONFIRM

ACTIONS: tuple[Action, ...] = (
    Action(_T, "open", ("enter", "l", "right"), "open", "Open the selected trial", in_footer=True),
    Action(_T, "filter", ("/",), "filter", "Filter the trials as you type; escape clears", in_footer=True),
    Action(_S, "open", ("enter", "l", "right"), "open", "Open the trial that holds the service", in_footer=True),
    Action(_O, "next_pane", ("tab", "]"), "pane", "Show the next of log, result, checks, changes", in_footer=True),
    Action(_O, "previous_pane", ("shift+tab", "["), "previous pane", "Show the previous pane"),
    Action(_O, "follow", ("space", "f"), "follow", "Pause the log, or follow it again", in_footer=True),
    Action(_E, "cancel", ("c",), "cancel", "Cancel the trial; the baseline comes back", in_footer=True, steers=True),
    Action(_E, "rollback", ("R",), "rollback", "Bring the service's baseline back now", in_footer=True, steers=True),
    Action(_E, "extend", ("+", "="), "extend", "Give the running state 30 more minutes", in_footer=True, steers=True),
    Action(_E, "show_trials", ("1",), "trials", "Go to the list of trials"),
    Action(_E, "show_services", ("2",), "services", "Go to the services", in_footer=True),
    Action(_E, "back", ("escape", "backspace"), "back", "Go back, close a question, clear a filter"),
    Action(_E, "copy", ("y",), "copy", "Copy what is selected: an id, or a failure's words"),
    Action(_E, "next_theme", ("T",), "theme", "Change the theme: dark, light, high contrast"),
    Action(_E, "save_screen", ("ctrl+s",), "screenshot", "Save this screen as an SVG file"),
    Action(_E, "refresh", ("ctrl+l",), "refresh", "Ask the daemon for everything again and redraw"),
    Action(_E, "help", ("?",), "help", "Show every key and what it does", in_footer=True),
    Action(_E, "command_palette", ("ctrl+p", ":"), "palette", "Find any action by its name", in_palette=False),
    Action(_E, "quit", ("q", "ctrl+q"), "quit", "Leave the console; trials go on", in_footer=True),
    Action(_E, "quit", ("ctrl+c",), "quit", "Leave the console from anywhere", in_palette=False, priority=True),
    Action(_M, "scroll_down", ("j", "down"), "down", "One line down", in_palette=False),
    Action(_M, "scroll_up", ("k", "up"), "up", "One line up", in_palette=False),
    Action(_M, "page_down", ("ctrl+d", "pagedown"), "page down", "One page down", in_palette=False),
    Action(_M, "page_up", ("ctrl+u", "pageup"), "page up", "One page up", in_palette=False),
    Action(_M, "scroll_home", ("g", "home"), "top", "To the first line", in_palette=False),
    Action(_M, "scroll_end", ("G", "end"), "bottom", "To the last line", in_palette=False),
    Action(_M, "scroll_left", ("h", "left"), "left", "To the left in long lines", in_palette=False),
    Action(_M, "scroll_right", ("l", "right"), "right", "To the right in long lines", in_palette=False),
    Action(_C, "yes", ("y",), "yes", "Do it", in_palette=False),
    Action(_C, "no", ("n", "escape", "q"), "no", "Do nothing and go back", in_palette=False),
)


def actions_of(*scopes: Scope) -> list[Action]:
    """Return the actions of some scopes in the table's order."""
    return [action for action in ACTIONS if action.scope in scopes]


def bindings_of(*scopes: Scope, on: str = "", names: Mapping[str, str] | None = None) -> list[BindingType]:
    """Return the key bindings of some scopes; only the first key of an action is shown in the footer.

    `on` is Textual's namespace of the actions ("screen", "app"); `names` what a widget calls some of them itself.
    """
    found: list[BindingType] = []
    for action in actions_of(*scopes):
        name = (names or {}).get(action.name, action.name)
        found += _bindings(action, f"{on}.{name}" if on else name)
    return found


def _bindings(action: Action, name: str) -> Iterable[BindingType]:
    for place, key in enumerate(action.keys):
        yield Binding(
            _NAMES_OF_KEYS.get(key, key),
            name,
            action.label,
            show=action.in_footer and place == 0,
            key_display=key_words(key),
            tooltip=action.sentence,
            priority=action.priority,
        )


_NAMES_OF_KEYS = {
    "/": "slash",
    "+": "plus",
    "=": "equals_sign",
    "?": "question_mark",
    ":": "colon",
    "[": "left_square_bracket",
    "]": "right_square_bracket",
}
_WORDS_OF_KEYS = {"escape": "esc", "pagedown": "pgdn", "pageup": "pgup", "backspace": "bksp"}


def key_words(key: str) -> str:
    """Return a key as help and footer write it."""
    return _WORDS_OF_KEYS.get(key, key.replace("ctrl+", "^").replace("shift+", "s-"))
