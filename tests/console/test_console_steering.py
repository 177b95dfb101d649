"""Cancel, rollback, extend, copy, quit: what is asked, what is sent, and what is said when it is refused."""

import base64
import time
from pathlib import Path

import pytest

from tests.console import story
from tests.console.conftest import MakeConsole
from tests.console.screen import hides, says, shows, text_of
from tests.console.server import ApiServer, until

CANCEL = f"/v1/trials/{story.LOADING}/cancel"


async def test_cancel_asks_and_sends_on_yes(server: ApiServer, make_console: MakeConsole) -> None:
    async with make_console().run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, "eagle3-k2")
        await pilot.press("j", "c")
        text = await shows(pilot, "Cancel this trial?")
        for fact in ("gpu1", "vllm-kimi.service", "nothing yet", "about 1h03m", f"eagle3-k2 ({story.LOADING})"):
            assert fact in text
        assert server.asked == []
        await pilot.press("y")
        await until(lambda: server.asked)
        path, body = server.asked[0]
        assert path == CANCEL
        assert body["by"].endswith("the console")
        await says(pilot, "cancel the trial: asked")


@pytest.mark.parametrize("key", ["n", "escape", "q", "enter"])
async def test_no_sends_nothing_and_is_where_the_cursor_is(
    server: ApiServer, make_console: MakeConsole, key: str
) -> None:
    async with make_console().run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, "eagle3-k2")
        await pilot.press("j", "c")
        await shows(pilot, "Cancel this trial?")
        await pilot.press(key)
        await hides(pilot, "Cancel this trial?")
        assert server.asked == []
        assert pilot.app.is_running


async def test_yes_can_be_reached_by_arrows(server: ApiServer, make_console: MakeConsole) -> None:
    async with make_console().run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, "eagle3-k2")
        await pilot.press("j", "c")
        await shows(pilot, "Cancel this trial?")
        await pilot.press("left", "enter")
        await until(lambda: server.asked)
        assert server.asked[0][0] == CANCEL


@pytest.mark.parametrize("way", [[], ["2"], ["enter"], ["j", "j", "enter", "space"]])
async def test_rollback_is_one_key_and_one_confirmation_from_anywhere(
    server: ApiServer, make_console: MakeConsole, way: list[str]
) -> None:
    server.services[1]["trial"] = None
    async with make_console().run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, "max-seqs-64")
        await pilot.press(*way, "R")
        text = await shows(pilot, "Bring the baseline back now?")
        for fact in ("kimi", "gpu1", "vllm-kimi.service", "nothing yet", "about 1h03m"):
            assert fact in text
        await pilot.press("y")
        await until(lambda: server.asked)
        assert server.asked[0][0] == "/v1/services/kimi/rollback"


async def test_with_several_services_held_rollback_means_the_selected_one(
    server: ApiServer, make_console: MakeConsole
) -> None:
    async with make_console().run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, "max-seqs-64")
        await pilot.press("G", "R")
        await shows(pilot, "Bring the baseline back now?", "vllm-qwen.service", "unknown: no earlier start")
        await pilot.press("y")
        await until(lambda: server.asked)
        assert server.asked[0][0] == "/v1/services/qwen/rollback"


async def test_nothing_to_roll_back_says_what_serves(server: ApiServer, make_console: MakeConsole) -> None:
    for service in server.services:
        service.update(trial=None, serving=f"the baseline {service['unit']}")
    async with make_console().run_test(size=(120, 24), notifications=True) as pilot:
        await shows(pilot, "max-seqs-64")
        await pilot.press("R")
        await says(pilot, "No trial holds qwen; there is nothing to roll back. Now serving: the baseline vllm-qwen")
        assert server.asked == []


async def test_a_refusal_is_said_in_the_daemons_words_with_what_serves(
    server: ApiServer, make_console: MakeConsole
) -> None:
    server.refusal = {"code": "refused", "message": "too \x1b[1mlate[/b]", "exit_code": 4}
    async with make_console().run_test(size=(120, 24), notifications=True) as pilot:
        await shows(pilot, "eagle3-k2")
        await pilot.press("j", "c", "y")
        await says(pilot, "Not done: too late[/b]. kimi serves nothing yet.")
        await pilot.press("plus")
        await says(pilot, "Not extended: too late[/b].")


async def test_extend_gives_half_an_hour_and_says_until_when(server: ApiServer, make_console: MakeConsole) -> None:
    async with make_console().run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, "eagle3-k2")
        await pilot.press("j", "plus")
        await says(pilot, "loading may last until 14:19:00")
        assert server.asked == [(f"/v1/trials/{story.LOADING}/extend", {"minutes": 30})]


@pytest.mark.parametrize("key", ["c", "R", "plus"])
async def test_a_read_only_console_changes_nothing(server: ApiServer, make_console: MakeConsole, key: str) -> None:
    async with make_console(read_only=True).run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, "eagle3-k2")
        await pilot.press("j", key, "y")
        await pilot.press("colon", *"roll")
        await shows(pilot, "No matches found")
        assert "Bring" not in text_of(pilot.app)
        assert server.asked == []


async def test_copy_reaches_the_clipboard_and_a_file_that_is_named(
    server: ApiServer, make_console: MakeConsole, tmp_path: Path
) -> None:
    app = make_console()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await shows(pilot, "eagle3-k2")
        await pilot.press("j", "y")
        await says(pilot, "Copied the trial's id")
        copied = tmp_path / "state/specd-tui/copied.txt"
        assert copied.read_text() == story.LOADING + "\n"
        assert app.clipboard == story.LOADING
        await pilot.press("j", "j", "enter")
        await shows(pilot, "[result failed]", "✗ kv-cache")
        await pilot.press("y")
        await says(pilot, "Copied why it failed")
        assert copied.read_text().startswith("kv-cache: the GPU memory does not suffice for the KV cache\n(EngineCore")
        await says(pilot, str(copied))


async def test_copying_writes_the_terminals_clipboard_sequence(
    server: ApiServer, make_console: MakeConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_console()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, "eagle3-k2")
        written: list[str] = []
        assert app._driver is not None
        monkeypatch.setattr(app._driver, "write", written.append)
        await pilot.press("j", "y")
        code = base64.b64encode(story.LOADING.encode()).decode()
        assert f"\x1b]52;c;{code}\a" in written


async def test_a_screen_is_saved_as_svg(server: ApiServer, make_console: MakeConsole, tmp_path: Path) -> None:
    async with make_console().run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, "eagle3-k2")
        await pilot.press("ctrl+s")
        await says(pilot, "Saved")
        (saved,) = (tmp_path / "state/specd-tui").glob("*.svg")
        assert saved.read_text().startswith("<svg")


@pytest.mark.parametrize("key", ["q", "ctrl+q", "ctrl+c"])
async def test_quit_leaves_at_once(server: ApiServer, make_console: MakeConsole, key: str) -> None:
    app = make_console()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await shows(pilot, "eagle3-k2")
        begun = time.monotonic()
        await pilot.press(key)
        await until(lambda: not app.is_running, within_s=2.0)
        assert time.monotonic() - begun < 2.0


async def test_a_part_that_fails_is_said_and_begins_anew(
    server: ApiServer, make_console: MakeConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_console()
    real, failed = app.feed.run, False

    async def fails_once() -> None:
        nonlocal failed
        if not failed:
            failed = True
            raise RuntimeError("a [fault] of ours")
        await real()

    monkeypatch.setattr(app.feed, "run", fails_once)
    async with app.run_test(size=(120, 24), notifications=True) as pilot:
        await says(pilot, "The console's feed failed and begins anew: RuntimeError('a [fault] of ours')")
        await shows(pilot, "connected", "eagle3-k2")


async def test_requests_to_a_daemon_that_is_gone_say_so(server: ApiServer, make_console: MakeConsole) -> None:
    async with make_console().run_test(size=(120, 24), notifications=True) as pilot:
        await shows(pilot, "eagle3-k2")
        await server.stop()
        await shows(pilot, "daemon away")
        await pilot.press("j", "c", "y")
        await says(pilot, "Not done: there is no socket")
        assert server.asked == []
