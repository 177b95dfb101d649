"""The pace of a start: a stage takes its scripted time, does visible work meanwhile, and fails half-way on request."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import BinaryIO

from .faults import Faults

_TICK_S = 0.05
_CHUNK = 1 << 20


class StageDeath(Exception):
    """A scripted death in a stage."""

    def __init__(self, stage: str, status: int) -> None:
        super().__init__(stage)
        self.stage = stage
        self.status = status


class Pace:
    """Walks through one stage on an absolute schedule; `nap` sleeps and notices what ends the process meanwhile."""

    def __init__(
        self,
        stage: str,
        seconds: float,
        faults: Faults,
        nap: Callable[[float], None],
        report_oom: Callable[[str], None],
        work: Callable[[float], None] | None = None,
    ) -> None:
        self._stage = stage
        self._seconds = seconds
        self._fault = faults.at(stage)
        self._nap = nap
        self._report_oom = report_oom
        self._work = work
        self._began = time.monotonic()
        self._reached = 0.0

    def until(self, fraction: float) -> None:
        """Return when that share of the stage has passed; raises StageDeath, or never returns after hang and oom."""
        if self._fault is not None and self._reached < 0.5 <= fraction:
            self._advance(0.5)
            self._fail(*self._fault)
        self._advance(fraction)

    def elapsed_s(self) -> float:
        """Return the time since the stage began, in seconds."""
        return time.monotonic() - self._began

    def _advance(self, fraction: float) -> None:
        self._reached = fraction
        end = self._began + fraction * self._seconds
        while True:
            now = time.monotonic()
            if self._work is not None and self._seconds > 0:
                self._work(min(fraction, (now - self._began) / self._seconds))
            if now >= end:
                return
            self._nap(min(_TICK_S if self._work else end - now, end - now))

    def _fail(self, kind: str, argument: str) -> None:
        if kind == "die":
            raise StageDeath(self._stage, int(argument) if argument else 1)
        if kind == "oom":
            self._report_oom(self._stage)
        while True:
            self._nap(3600)


class CheckpointReader:
    """Reads the checkpoint and keeps memory, so that a silent load is still seen from outside.

    Reads the files it is given, or zeros where there are none; `total` and `held` are bytes.
    """

    def __init__(self, paths: list[str], total: int, held: int) -> None:
        self._paths = paths or ["/dev/zero"]
        self._total = total
        self._held_target = held
        self._read = 0
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._file: BinaryIO | None = None

    def advance(self, fraction: float) -> None:
        """Read and hold up to that share of the whole."""
        while self._read < fraction * self._total:
            self._read_chunk()
        while self._held_bytes < fraction * self._held_target:
            # Not zeros: untouched zero pages would not count as resident.
            size = min(_CHUNK, self._held_target - self._held_bytes)
            self._held.append(b"\x01" * size)
            self._held_bytes += size

    def _read_chunk(self) -> None:
        if self._file is None:
            self._file = open(self._paths.pop(0), "rb", buffering=0)  # noqa: SIM115 (closed at its end, below)
        size = min(_CHUNK, self._total - self._read)
        count = len(self._file.read(size))
        self._read += count
        if count == 0:
            self._file.close()
            self._file = None
            if not self._paths:
                self._read = self._total


class Burner:
    """Uses a share of one processor, as compiling does, so that CPU time moves too."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._last = time.monotonic()

    def advance(self, _fraction: float) -> None:
        """Burn the share of the time since the last call (at most a twentieth of a second)."""
        now = time.monotonic()
        until = now + min(now - self._last, _TICK_S) * self._share
        self._last = now
        while time.monotonic() < until:
            sum(range(200))
