"""The real console in a real terminal, against a real daemon, from submit to the restored baseline."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.rehearsal import ROOT, TRIAL, rehearsal_daemon
from tests.console.terminal import Tmux

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (apt install tmux)")


def console_argv(socket: Path) -> list[str]:
    """Return the installed console's command line; from a checkout that is not installed, its module's."""
    script = Path(sys.executable).parent / "specd-tui"
    program = [str(script)] if script.exists() else [sys.executable, "-m", "tui"]
    return [*program, "--socket", str(socket)]


def surroundings(directory: Path, **more: str) -> dict[str, str]:
    """Return a plain terminal's environment."""
    return {
        "LANG": "C.UTF-8",
        "TERM": "screen-256color",
        "PYTHONPATH": str(ROOT),
        "PATH": os.environ["PATH"],
        "XDG_STATE_HOME": str(directory / "state-of-console"),
        **more,
    }


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Tmux]:
    """A terminal of 120 by 40."""
    tmux = Tmux(tmp_path)
    yield tmux
    tmux.stop()


@pytest.mark.timeout(180)
async def test_an_operator_follows_a_trial_and_brings_the_baseline_back(terminal: Tmux, tmp_path: Path) -> None:
    async with rehearsal_daemon(tmp_path) as client:
        terminal.start(console_argv(tmp_path / "run/d.sock"), surroundings(tmp_path))
        await terminal.shows("connected", "kimi on here", "the baseline llm.service", "No trials yet.")
        (trial,) = await client.submit("trials.toml", TRIAL)
        await terminal.shows("ngram-5-4", trial["id"])
        terminal.press("Enter")
        await terminal.shows(f"specd › trials › ngram-5-4 {trial['id']}", "kimi on here · llm.service")
        await terminal.shows("✓ baseline", "✓ verify", "▶ loading", "now serving: nothing yet", "guard acts in")
        text = await terminal.until(lambda text: "% " in text and "read from:" in text, "progress")
        assert "outage" in text
        terminal.press("R")
        text = await terminal.shows("Bring the baseline back now?", "unknown: no earlier start")
        for fact in ("kimi", "here", "llm.service", f"ngram-5-4 ({trial['id']}), in "):
            assert fact in text
        terminal.press("y")
        await terminal.shows("▶ rollback")
        await terminal.shows("✓ restored", "the baseline serves, proven", "CANCELLED", within_s=60)
        await terminal.shows("now serving: the baseline llm.service", "outage was")
        terminal.resize(80, 24)
        await terminal.shows("the baseline serves, proven")
        terminal.press("q")
        await terminal.shows("LEFT 0", within_s=2.0)
        assert (await client.trial(trial["id"]))["state"] == "restored"


async def test_without_a_daemon_the_console_waits_in_words_and_leaves(terminal: Tmux, tmp_path: Path) -> None:
    terminal.start(console_argv(tmp_path / "none.sock"), surroundings(tmp_path, NO_COLOR="1", LANG="C", COLUMNS="80"))
    text = await terminal.shows("! daemon away", "there is no socket at")
    assert max(map(len, text.splitlines())) > 100
    terminal.press("?")
    await terminal.shows("Everywhere", "Bring the service's baseline back now")
    terminal.press("Escape")
    # A key right after escape would be one with the alt key.
    await terminal.until(lambda text: "Everywhere" not in text, "help closed")
    terminal.press("q")
    text = await terminal.shows("LEFT 0", within_s=2.0)
    assert "-echo" not in text


_HANGS = """
import sys, threading, time
import asyncio
import tui.app
async def hang(self):
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            time.sleep(60)
tui.app.ConsoleApp._follow = hang
from tui.__main__ import main
sys.exit(main(["--socket", "/nowhere"]))
"""


async def test_quit_gives_the_shell_back_whatever_hangs(terminal: Tmux, tmp_path: Path) -> None:
    terminal.start([sys.executable, "-c", _HANGS], surroundings(tmp_path))
    await terminal.shows("connecting")
    terminal.press("q")
    text = await terminal.shows("LEFT 0", within_s=2.5)
    assert "connecting" not in text
    await terminal.until(lambda text: "echo" in text and "-echo" not in text, "an echoing terminal")
