"""What SQLite leaves unsaid: whether commits in a write-ahead log were lost to damage.

SQLite takes the first frame with a wrong checksum for the torn end of a log and goes on without what follows. That is
right after a power cut. When whole commits follow it, or noise, then commits that were synced are gone, and a daemon
that went on would act on a past that is not true any more.

Frames carry two salts, which change whenever the log begins anew; the first one is counted up then.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Seen", "damage_since", "look"]

_HEADER, _FRAME = 32, 24
_MAGIC = {0x377F0682: "<", 0x377F0683: ">"}
_MOST_FRAMES = 16_384
_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Seen:
    """A log as it lay there: its salts, the frames that end a commit of it, and those that are nobody's."""

    salts: bytes = b""
    commits: tuple[int, ...] = ()
    noise: tuple[int, ...] = ()
    is_headless: bool = False


def look(log: Path) -> Seen:
    """Read the marks of a log before SQLite does; one that is missing or was never begun has none."""
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Seen()
    try:
        header = os.pread(descriptor, _HEADER, 0)
        if len(header) < _HEADER or not any(header):
            return Seen()
        magic, _, page_size, times_begun, first_salt = struct.unpack(">5I", header[:20])
        order = _MAGIC.get(magic, "")
        if not order or _checksum(header[:24], order) != struct.unpack(">2I", header[24:]):
            return Seen(is_headless=True)
        commits, noise = [], []
        for number in range(1, _MOST_FRAMES + 1):
            frame = os.pread(descriptor, _FRAME, _HEADER + (number - 1) * (_FRAME + page_size))
            if len(frame) < _FRAME:
                break
            if frame[8:16] == header[16:24]:
                # The size of the database after it stands in the last frame of each commit only.
                commits += [number] if any(frame[4:8]) else []
            elif any(frame) and (first_salt - struct.unpack(">I", frame[8:12])[0]) & _MASK > times_begun:
                noise.append(number)
        return Seen(header[16:24], tuple(commits), tuple(noise))
    finally:
        os.close(descriptor)


def damage_since(seen: Seen, index: Path) -> str:
    """Return in words what of a log was lost when SQLite read it into its `index` (the -shm file); "" for nothing."""
    if seen.is_headless:
        return "its write-ahead log begins with noise, so what was committed last is lost"
    try:
        with index.open("rb") as file:
            known = file.read(40)
    except FileNotFoundError:
        return ""
    if len(known) < 40 or known[32:40] != seen.salts:
        # It was begun anew meanwhile, which is done only once everything in it is in the database.
        return ""
    (read,) = struct.unpack("=I", known[16:20])
    lost = [number for number in seen.commits if number > read]
    # One commit alone may be the torn end of what was never acknowledged; a second one began after that was synced.
    if len(lost) > 1 or any(number > read for number in seen.noise):
        return f"its write-ahead log is damaged after frame {read}: what was committed after that is lost"
    return ""


def _checksum(content: bytes, order: str) -> tuple[int, int]:
    first = second = 0
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & _MASK
        second = (second + odd + first) & _MASK
    return first, second
