"""Leaving in time: whatever hangs, the shell has its terminal back within two seconds after quit."""

import os
import sys
import termios
import threading
from typing import Any

__all__ = ["Exit"]

_PATIENCE_S = 1.5
# Mouse, paste and focus reporting off, keyboard protocol popped, cursor shown, main screen, colours reset.
_SANE = (
    "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1004l\x1b[?2004l\x1b[<u\x1b[?25h\x1b[?1049l\x1b[0m"
)


class Exit:
    """Remembers the terminal's settings; once begun, ends the process by force if it does not end by itself."""

    def __init__(self) -> None:
        self._settings: list[Any] | None = None
        try:
            self._settings = termios.tcgetattr(sys.__stdin__.fileno()) if sys.__stdin__ else None
        except (termios.error, ValueError, OSError):
            self._settings = None

    def begin(self) -> None:
        """Start the clock; a thread of its own, since the loop may be what hangs."""
        timer = threading.Timer(_PATIENCE_S, self._force)
        timer.daemon = True
        timer.start()

    def _force(self) -> None:
        if sys.__stderr__ is not None and sys.__stderr__.isatty():
            os.write(sys.__stderr__.fileno(), _SANE.encode())
        if self._settings is not None and sys.__stdin__ is not None:
            termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSANOW, self._settings)
        os._exit(0)
