"""A served story and the console on it, with a fixed clock and zone."""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.console import story
from tests.console.server import ApiServer
from tui.app import ConsoleApp
from tui.client import ApiClient
from tui.glyphs import UNICODE

MakeConsole = Callable[..., ConsoleApp]


@pytest.fixture(autouse=True)
def _surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times are UTC's, colours are on, and the console's files go to the test's directory."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        patch.delenv("NO_COLOR", raising=False)
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """The story's daemon, serving."""
    server = ApiServer(tmp_path / "d.sock")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def make_console(tmp_path: Path) -> MakeConsole:
    """Make a console of the daemon at the test's socket."""

    def make(**options: Any) -> ConsoleApp:
        options = {"glyphs": UNICODE, "clock": lambda: story.NOW, **options}
        return ConsoleApp(ApiClient(str(tmp_path / "d.sock")), options.pop("glyphs"), **options)

    return make
