"""The few signs the console draws with, in Unicode or plain ASCII; a state is always readable without its colour."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ASCII", "UNICODE", "Glyphs", "glyphs_for"]


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of signs; every one is a single cell wide."""

    done: str
    now: str
    later: str
    skipped: str
    failed: str
    warning: str
    on: str
    off: str
    full: str
    empty: str
    ellipsis: str
    between: str
    is_unicode: bool


UNICODE = Glyphs("✓", "▶", "·", "–", "✗", "▲", "●", "○", "█", "░", "…", "›", True)
ASCII = Glyphs("+", ">", ".", "-", "x", "!", "*", "o", "#", ".", "~", ">", False)

_COERCED, _PLAIN = "C.UTF-8", ("C", "POSIX")


def glyphs_for(environ: Mapping[str, str] | None = None) -> Glyphs:
    """Return the set that this locale can show: ASCII where it names a character set other than UTF-8."""
    env = os.environ if environ is None else environ
    # The first of these that is set decides, as in setlocale(3); none at all says nothing about the terminal.
    names = ["LC_ALL", "LC_CTYPE", "LANG"]
    if env.get("LC_CTYPE") == _COERCED and env.get("LANG") in _PLAIN:
        # Python itself sets this when it starts in the plain locale; the terminal knows nothing of it.
        names.remove("LC_CTYPE")
    named = next((env[name] for name in names if env.get(name)), "")
    is_utf8 = "utf-8" in named.lower() or "utf8" in named.lower()
    return UNICODE if is_utf8 or not named else ASCII
