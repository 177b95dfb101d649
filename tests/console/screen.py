"""What a console shows at a moment, as text."""

from collections.abc import Callable
from typing import Any

from textual.pilot import Pilot

from tests.console.server import until


def text_of(app: Any) -> str:
    """Return the screen's cells as lines of text."""
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())


async def shows(pilot: Pilot[None], *words: str) -> str:
    """Wait until the screen shows all the words; returns its text."""
    return await _until(pilot, lambda text: all(word in text for word in words), f"{words} not shown")


async def hides(pilot: Pilot[None], *words: str) -> str:
    """Wait until the screen shows none of the words; returns its text."""
    return await _until(pilot, lambda text: not any(word in text for word in words), f"{words} still shown")


async def says(pilot: Pilot[None], words: str) -> None:
    """Wait until a notice holds the words; notices wrap, so their own text is read."""
    try:
        await until(lambda: any(words in notice.message for notice in pilot.app._notifications))
    except TimeoutError:
        told = [notice.message for notice in pilot.app._notifications]
        raise AssertionError(f"{words!r} not said, but {told}") from None


async def _until(pilot: Pilot[None], test: Callable[[str], bool], complaint: str) -> str:
    try:
        await until(lambda: test(text_of(pilot.app)))
    except TimeoutError:
        told = [notice.message for notice in pilot.app._notifications]
        raise AssertionError(f"{complaint} ({told=}) in\n{text_of(pilot.app)}") from None
    return text_of(pilot.app)
