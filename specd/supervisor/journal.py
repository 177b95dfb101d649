"""A unit's journal: records appended to a bounded set of files, read from any cursor, followed without polling.

A record is one JSON object a line: {"seq", "at", "invocation", "pid", "stream", "text"}, and "split": true where a
longer line goes on in the next record. `stream` is stdout, stderr or manager. A record's cursor is its `seq`: it rises
over the unit's whole life, because each opening of the journal begins at the microseconds of the clock or after the
last record, whichever is later.
"""

import asyncio
import errno
import json
import os
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["LINE_LIMIT", "Journal", "Line", "LineCutter", "Reader", "sequence_of"]

LINE_LIMIT = 48 * 1024
FILE_BYTES = 8 * 2**20
OLD_FILES = 3
HELD_BYTES = 2 * 2**20
PREFIX = b'{"seq": '
TAIL_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Line:
    """One line of output, or the part of one that a record can hold (`split`: it goes on in the next)."""

    text: bytes
    split: bool = False


@dataclass(slots=True)
class LineCutter:
    """Cuts a byte stream into lines at newlines, and into parts of at most LINE_LIMIT bytes."""

    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, chunk: bytes) -> list[Line]:
        """Take bytes as they were read and return the lines that are complete."""
        self._rest += chunk
        *lines, rest = bytes(self._rest).split(b"\n")
        cut = [part for line in lines for part in self._parts(line)]
        while len(rest) > LINE_LIMIT:
            at = _character_boundary(rest, LINE_LIMIT)
            cut.append(Line(rest[:at], split=True))
            rest = rest[at:]
        self._rest = bytearray(rest)
        return cut

    def finish(self) -> list[Line]:
        """Return what stands after the last newline."""
        rest, self._rest = bytes(self._rest), bytearray()
        return [Line(rest)] if rest else []

    @staticmethod
    def _parts(line: bytes) -> Iterable[Line]:
        while len(line) > LINE_LIMIT:
            at = _character_boundary(line, LINE_LIMIT)
            yield Line(line[:at], split=True)
            line = line[at:]
        yield Line(line)


def _character_boundary(line: bytes, at: int) -> int:
    """Return the last place at or before `at` that is not inside a UTF-8 character."""
    for back in range(4):
        if line[at - back] & 0xC0 != 0x80:
            return at - back
    return at


def sequence_of(raw: bytes) -> int:
    """Return a stored record's seq; 0 for a line that is no whole record."""
    if not raw.startswith(PREFIX) or not raw.endswith(b"}\n"):
        return 0
    digits = raw[len(PREFIX) : raw.find(b",", len(PREFIX))]
    return int(digits) if digits.isdigit() else 0


class Journal:
    """The records of one unit in `directory`: NAME.jsonl and its older parts NAME.jsonl.1 and on.

    What can't be written (a full disk) is held in memory up to HELD_BYTES, is readable all the same, and is written
    when there is room again; what has to be let go is counted and said.
    """

    def __init__(self, directory: Path, name: str, *, file_bytes: int = FILE_BYTES) -> None:
        self.path = directory / f"{name}.jsonl"
        self.generation = 0
        self.held: deque[tuple[int, bytes]] = deque()
        self._file_bytes = file_bytes
        self._held_bytes = 0
        self._lost = 0
        self._fd = -1
        self._size = 0
        if self.path.exists():
            with suppress(OSError):
                self._open()
            self.close()
        self._next = self._first_sequence()
        self._waiting: set[asyncio.Event] = set()

    def append(self, stream: str, lines: Iterable[Line], *, invocation: str, pid: int, at: float) -> None:
        """Store lines as records; never raises for a disk that takes no more."""
        records: list[tuple[int, bytes]] = []
        for line in lines:
            record = {
                "seq": self._next,
                "at": round(at, 6),
                "invocation": invocation,
                "pid": pid,
                "stream": stream,
                "text": line.text.decode(errors="replace"),
            }
            if line.split:
                record["split"] = True
            records.append((self._next, json.dumps(record).encode() + b"\n"))
            self._next += 1
        if not records:
            return
        self._store(records)
        if self._lost and not self.held:
            notice = Line(f"{self._lost} records could not be stored and are lost".encode())
            self._lost = 0
            self.append("manager", [notice], invocation=invocation, pid=pid, at=at)
        for event in self._waiting:
            event.set()

    def subscribe(self, event: asyncio.Event) -> None:
        """Set `event` after each append, until `unsubscribe`."""
        self._waiting.add(event)

    def unsubscribe(self, event: asyncio.Event) -> None:
        """Forget an event."""
        self._waiting.discard(event)

    def part(self, generation: int) -> Path:
        """Return the file that holds a generation now; the current one has no suffix."""
        age = self.generation - generation
        return self.path if age == 0 else self.path.with_name(f"{self.path.name}.{age}")

    def close(self) -> None:
        """Let go of the file; the next append opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _first_sequence(self) -> int:
        last = 0
        for path in (self.path, self.part(-1)):
            with suppress(OSError), path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - TAIL_BYTES))
                last = max([last, *(sequence_of(raw) for raw in file)])
        return max(last + 1, time.time_ns() // 1000)

    def _store(self, records: list[tuple[int, bytes]]) -> None:
        self.held.extend(records)
        self._held_bytes += sum(len(raw) for _, raw in records)
        try:
            while self.held:
                self._write_some()
        except OSError:
            self._let_go()

    def _write_some(self) -> None:
        """Write held records up to the bound of the file; raises OSError when nothing more can be written."""
        self._open()
        batch = bytearray()
        count = 0
        for _, raw in self.held:
            if (batch or self._size) and self._size + len(batch) + len(raw) > self._file_bytes:
                break
            batch += raw
            count += 1
        written = os.write(self._fd, batch) if batch else 0
        if written < len(batch):
            # Never a partial record in the file: readers take whole lines only.
            os.ftruncate(self._fd, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written
        for _ in range(count):
            self._held_bytes -= len(self.held.popleft()[1])
        if self.held:
            self._rotate()

    def _open(self) -> None:
        if self._fd >= 0:
            return
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._fd).st_size
        if self._size and os.pread(self._fd, 1, self._size - 1) != b"\n":
            # A crash in the middle of a write left half a record.
            tail_at = max(0, self._size - TAIL_BYTES)
            tail = os.pread(self._fd, self._size - tail_at, tail_at)
            self._size = tail_at + tail.rfind(b"\n") + 1
            os.ftruncate(self._fd, self._size)

    def _rotate(self) -> None:
        self.close()
        for age in range(OLD_FILES, 0, -1):
            with suppress(FileNotFoundError):
                os.replace(self.part(self.generation - age + 1), self.part(self.generation - age))
        self.generation += 1

    def _let_go(self) -> None:
        while self._held_bytes > HELD_BYTES:
            self._held_bytes -= len(self.held.popleft()[1])
            self._lost += 1


class Reader:
    """Reads one journal from a cursor on, across its parts; `invocation` "" takes all."""

    def __init__(self, journal: Journal, invocation: str, after: int) -> None:
        self.position = after
        self._journal = journal
        self._wanted = f'"invocation": "{invocation}"'.encode() if invocation else b""
        self._generation = journal.generation - OLD_FILES
        self._file = self._open()

    def read(self, limit: int) -> tuple[list[bytes], bool]:
        """Return the next records, having looked at up to `limit`, and whether more may be there now."""
        found: list[bytes] = []
        for _ in range(limit):
            raw = self._next_line()
            if raw is None:
                found += [raw for seq, raw in list(self._journal.held) if self._take(seq, raw)]
                return found, False
            if self._take(sequence_of(raw), raw):
                found.append(raw)
        return found, True

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> "_Lines | None":
        try:
            return _Lines(self._journal.part(self._generation))
        except OSError:
            return None

    def _take(self, seq: int, raw: bytes) -> bool:
        if seq <= self.position:
            return False
        self.position = seq
        return self._wanted in raw[:200]

    def _next_line(self) -> bytes | None:
        """Return the next whole line, moving on to the next part where one ends; None at the end of the journal."""
        while True:
            # The current part may not exist yet, or may have been opened by nobody so far.
            if self._file is None and self._generation == self._journal.generation:
                self._file = self._open()
            raw = self._file.next() if self._file is not None else None
            if raw is not None:
                return raw
            if self._generation == self._journal.generation:
                return None
            self.close()
            self._generation = max(self._generation + 1, self._journal.generation - OLD_FILES)
            self._file = self._open()


class _Lines:
    """Whole lines of a file that grows: half a line at its end waits there for its rest."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")

    def next(self) -> bytes | None:
        """Return the next line with its newline; None when there is none now."""
        raw = self._file.readline()
        if raw.endswith(b"\n"):
            return raw
        if raw:
            self._file.seek(-len(raw), os.SEEK_CUR)
        return None

    def close(self) -> None:
        """Close the file."""
        self._file.close()
