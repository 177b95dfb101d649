"""How each screen looks, at two sizes and in each theme, with time standing still.

`pytest tests/console --snapshot-update` takes new pictures; look at them before they are committed.
"""

import asyncio
import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from tests.console import story
from tests.console.conftest import MakeConsole
from tests.console.screen import shows, text_of
from tests.console.server import ApiServer, until

Compare = Callable[..., bool]
_STILL = 20
SIZES = [(80, 24), (120, 40)]
SCREENS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "trials": ([], ("max-seqs-64",)),
    "services": (["2"], ("last contact",)),
    "running": (["j", "enter"], ("38/61", "outage 13m27s")),
    "result": (["j", "j", "enter"], ("WORSE",)),
    "failure": (["j", "j", "j", "enter"], ("kv-cache",)),
    "checks": (["j", "enter", "tab", "tab"], ("to mend it",)),
    "changes": (["j", "enter", "tab", "tab", "tab"], ("TRITON_MLA",)),
    "cancel": (["j", "c"], ("Cancel this trial?",)),
    "rollback": (["j", "R"], ("Bring the baseline back now?",)),
    "help": (["question_mark"], ("Everywhere",)),
}


@pytest.fixture(autouse=True)
def _no_loop_left_open() -> Iterator[None]:
    """The loop that pytest-asyncio leaves for later is replaced by the picture's own, so nobody else would close it."""
    left = None
    with contextlib.suppress(RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        left = asyncio.get_event_loop_policy().get_event_loop()
    yield
    if left is not None and not left.is_running():
        left.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ApiServer]:
    """The story's daemon in a thread of its own: the picture is taken in a loop of its own, too."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = ApiServer(tmp_path / "d.sock")
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    yield server
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def steps(screen: str) -> Callable[[Pilot[None]], Any]:
    """Return what brings the console to a screen and waits until it shows."""
    keys, words = SCREENS[screen]

    async def go(pilot: Pilot[None]) -> None:
        await shows(pilot, "connected", "max-seqs-64", "? help")
        await until(lambda: pilot.app.focused is not None)
        for key in keys:
            await pilot.press(key)
        await shows(pilot, *words)
        if "enter" in keys and pilot.app.size.width > 110:
            await shows(pilot, "Resolved architecture")
        await _settled(pilot)

    return go


async def _settled(pilot: Pilot[None]) -> None:
    """Wait until the footer is there, something has the focus, and nothing has changed for a while."""
    pictures: list[str] = []

    def is_still() -> bool:
        pictures.append(text_of(pilot.app) + repr(pilot.app.focused))
        return len(pictures) > _STILL and len({*pictures[-_STILL:]}) == 1

    await until(lambda: pilot.app.focused is not None)
    if not pilot.app.screen.is_modal:
        await shows(pilot, "? help")
    await until(is_still)
    await pilot.pause()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("screen", SCREENS)
def test_screens_look_as_accepted(
    served: ApiServer, make_console: MakeConsole, snap_compare: Compare, screen: str, size: tuple[int, int]
) -> None:
    assert snap_compare(make_console(), terminal_size=size, run_before=steps(screen))


@pytest.mark.parametrize("theme", ["light", "high-contrast"])
def test_themes_look_as_accepted(
    served: ApiServer, make_console: MakeConsole, snap_compare: Compare, theme: str
) -> None:
    assert snap_compare(make_console(theme=theme), terminal_size=(120, 40), run_before=steps("result"))


def test_what_needs_a_person_looks_loud(served: ApiServer, make_console: MakeConsole, snap_compare: Compare) -> None:
    served.change(story.LOADING, state="rollback-failed", progress=None)
    served.services[0]["serving"] = "unknown: the baseline is not proven"
    assert snap_compare(make_console(), terminal_size=(80, 24), run_before=steps("trials"))
