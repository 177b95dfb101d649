"""A real terminal for a real program: a tmux of its own, driven by keys, read as text."""

import asyncio
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path


class Tmux:
    """One tmux server with one window; what it runs ends with it."""

    def __init__(self, directory: Path, width: int = 120, height: int = 40) -> None:
        self._socket = directory / "tmux.sock"
        self._size = (width, height)

    def start(self, argv: list[str], env: dict[str, str]) -> None:
        """Run a command in the window; when it ends, the window says LEFT and its status, and stays."""
        words = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
        line = f"env {words} {shlex.join(argv)}; echo LEFT $?; stty -a | grep -o -- '-*echo '; exec cat"
        width, height = map(str, self._size)
        self._run("-f", "/dev/null", "new-session", "-d", "-x", width, "-y", height, "sh", "-c", line)

    def stop(self) -> None:
        """End the server and all it runs."""
        subprocess.run(["tmux", "-S", str(self._socket), "kill-server"], capture_output=True, check=False)

    def press(self, *keys: str) -> None:
        """Send keys by tmux's names."""
        self._run("send-keys", "-t", ":0", *keys)

    def resize(self, width: int, height: int) -> None:
        """Change the window's size."""
        self._run("resize-window", "-t", ":0", "-x", str(width), "-y", str(height))

    def text(self) -> str:
        """Return what the window shows."""
        return self._run("capture-pane", "-p", "-t", ":0")

    async def shows(self, *words: str, within_s: float = 30.0) -> str:
        """Wait until the window shows all the words; returns its text."""
        return await self.until(lambda text: all(word in text for word in words), f"{words}", within_s)

    async def until(self, test: Callable[[str], bool], what: str, within_s: float = 30.0) -> str:
        """Wait until the window's text passes a test; returns the text."""
        try:
            async with asyncio.timeout(within_s):
                while not test(text := self.text()):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"not shown: {what}\n{self.text()}") from None
        return text

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self._socket), "-u", *words], capture_output=True, text=True, check=True, timeout=10
        )
        return done.stdout
