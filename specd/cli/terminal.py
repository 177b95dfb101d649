"""The terminal as it is: colours, Unicode and a live line only where they work."""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

__all__ = ["Terminal", "print_json"]

_STYLE = re.compile(r"\x1b\[\d+m")
_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


@dataclass(slots=True)
class Terminal:
    """One output stream; `live` says whether a line may be drawn over."""

    stream: TextIO
    colour: bool = False
    unicode: bool = False
    live: bool = False
    _drawn: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> "Terminal":
        """Look at a stream and the environment: NO_COLOR, TERM, the locale."""
        is_tty = stream.isatty() and os.environ.get("TERM", "") not in {"", "dumb"}
        encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
        unicode = encoding == "utf8" and _is_utf8(os.environ)
        return cls(stream, colour=is_tty and not os.environ.get("NO_COLOR"), unicode=unicode, live=is_tty)

    @property
    def width(self) -> int:
        """The columns that a line may use."""
        return max(shutil.get_terminal_size().columns - 1, 20)

    def style(self, text: str, name: str) -> str:
        """Return the text in a colour or weight, where colours work; nothing is said by colour alone."""
        return f"\x1b[{_COLOURS[name]}m{text}\x1b[0m" if self.colour and text else text

    def line(self, text: str = "") -> None:
        """Write a whole line; a live line makes way for it."""
        self.clear()
        self.stream.write(self._fitting(text) + "\n")
        self.stream.flush()

    def paragraph(self, text: str, hanging: int) -> None:
        """Write a line that a terminal gets broken between words, what follows indented by `hanging` columns."""
        if not self.live:
            self.line(text)
            return
        lines = [""]
        for word in re.split(r"(?<=\S)(?=\s)", text):
            if lines[-1] and _columns(lines[-1] + word) > self.width:
                lines.append(" " * hanging + word.lstrip())
            else:
                lines[-1] += word
        for line in lines:
            self.line(line)

    def draw(self, text: str) -> None:
        """Draw the live line anew, cut to the width."""
        self.stream.write("\r\x1b[2K" + self._fitting(text[: self.width]))
        self.stream.flush()
        self._drawn = True

    def clear(self) -> None:
        """Take the live line away."""
        if self._drawn:
            self.stream.write("\r\x1b[2K")
            self.stream.flush()
            self._drawn = False

    def _fitting(self, text: str) -> str:
        # Only a terminal in a plain locale can't show more than ASCII; a pipe gets what its encoding has.
        encoding = "ascii" if self.live and not self.unicode else getattr(self.stream, "encoding", None) or "utf-8"
        return text.encode(encoding, errors="replace").decode(encoding)


def _columns(text: str) -> int:
    return len(_STYLE.sub("", text))


def print_json(value: Any) -> None:
    """Write one JSON value on a line of stdout."""
    import json

    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _is_utf8(env: Mapping[str, str]) -> bool:
    """True when the user's locale is a UTF-8 one; Python itself turns an unset locale into LC_CTYPE=C.UTF-8."""
    language, kind = env.get("LANG", ""), env.get("LC_CTYPE", "")
    if kind == "C.UTF-8" and language in {"", "C", "POSIX"}:
        kind = ""
    chosen = env.get("LC_ALL", "") or kind or language
    return chosen.lower().replace("-", "").endswith("utf8")
