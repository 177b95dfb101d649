"""Server-sent events from bytes, however the network cut them.

The rules are those of the HTML standard's event stream: lines end with CR LF, LF or CR; a blank line ends an event;
lines that begin with a colon are comments; several data lines are joined with a newline; one space after the colon is
not part of the value.
"""

from dataclasses import dataclass

__all__ = ["Event", "EventParser", "OverlongEvent"]

MAX_EVENT_BYTES = 16 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class OverlongEvent(ValueError):
    """A line or event is longer than 16 MiB; nobody's token is."""


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatched event: its data lines joined with newlines, and its name ("" when the stream gave none)."""

    data: bytes
    name: str = ""


class EventParser:
    """An incremental parser: feed it what arrives, get the events that are complete with it.

    An event is complete with its blank line, so the time of the `feed` that returns it is the time its last byte came.
    """

    def __init__(self) -> None:
        self.consumed = 0
        self._parts: list[bytes] = []
        self._held = 0
        self._data: list[bytes] = []
        self._name = ""
        self._skip_lf = False
        self._at_start = True

    def feed(self, chunk: bytes) -> list[Event]:
        """Take bytes and return the events they complete; raises OverlongEvent."""
        self.consumed += len(chunk)
        if self._skip_lf and chunk:
            self._skip_lf = False
            if chunk[:1] == b"\n":
                chunk = chunk[1:]
        if b"\r" in chunk:
            # A CR ends its line at once; the LF of a CR LF pair may still be on its way and is dropped when it comes.
            self._skip_lf = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in chunk:
            self._hold(chunk)
            return []
        lines = chunk.split(b"\n")
        if self._parts:
            self._parts.append(lines[0])
            lines[0] = b"".join(self._parts)
        self._parts.clear()
        self._held = sum(map(len, self._data)) if self._data else 0
        tail = lines.pop()
        events: list[Event] = []
        for line in lines:
            self._line(line, events)
        if tail:
            self._hold(tail)
        return events

    def close(self) -> Event | None:
        """The stream ended: return what stands before the missing blank line, or None when nothing is left over.

        The standard drops such an event. It is returned because some servers leave out the last blank line; only the
        reader of its data can tell a whole one from a cut one.
        """
        events: list[Event] = []
        if self._parts:
            self._line(b"".join(self._parts), events)
            self._parts.clear()
        self._line(b"", events)
        return events[0] if events else None

    def _hold(self, part: bytes) -> None:
        if part:
            self._parts.append(part)
            self._held += len(part)
            if self._held > MAX_EVENT_BYTES:
                raise OverlongEvent(f"an event longer than {MAX_EVENT_BYTES} bytes")

    def _line(self, line: bytes, events: list[Event]) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                events.append(Event(self._data[0] if len(self._data) == 1 else b"\n".join(self._data), self._name))
                self._data = []
                self._held = 0
            self._name = ""
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value[1:] if value[:1] == b" " else value)
            self._held += len(value)
            if self._held > MAX_EVENT_BYTES:
                raise OverlongEvent(f"an event longer than {MAX_EVENT_BYTES} bytes")
        elif field == b"event":
            self._name = value.removeprefix(b" ").decode(errors="replace")
