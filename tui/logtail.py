"""Follows one trial's log by its line numbers: the latest lines, then what comes; skips what no eye could read."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tui.client import Away, Refused
from tui.words import clean

__all__ = ["LogPage", "LogTail"]

_PAGE = 1000
_FIRST_LINES = 2000
_FAST_S = 0.05
_SLOW_S = 0.5
_AWAY_S = 1.0
_FULL_PAGES_BEFORE_SKIP = 4
_LONGEST_LINE = 4000

Read = Callable[[str, int, int], Awaitable[list[dict[str, Any]]]]


@dataclass(frozen=True, slots=True)
class LogPage:
    """New lines, oldest first; `skipped` is how many came before them that are not on the screen but in the store."""

    lines: tuple[str, ...]
    skipped: int = 0


class LogTail:
    """Reads a trial's log through `read(trial, after, limit)` and tells pages in order."""

    def __init__(self, read: Read, trial: str, tell: Callable[[LogPage], None]) -> None:
        self._read = read
        self._trial = trial
        self._tell = tell
        self._after = 0
        self._is_begun = False

    async def run(self) -> None:
        """Follow until cancelled; while the daemon is away, wait for it."""
        full_pages = 0
        wait_s = _FAST_S
        while True:
            try:
                is_full, has_lines = await self._step(skip=full_pages >= _FULL_PAGES_BEFORE_SKIP)
            except (Away, Refused):
                await asyncio.sleep(_AWAY_S)
                continue
            full_pages = full_pages + 1 if is_full else 0
            # Twenty batches a second at most while lines come; a quiet log is asked less and less often.
            wait_s = _FAST_S if has_lines else min(wait_s * 1.5, _SLOW_S)
            await asyncio.sleep(wait_s)

    async def _step(self, skip: bool) -> tuple[bool, bool]:
        is_jump = skip or not self._is_begun
        records = await self._read(self._trial, -_FIRST_LINES if is_jump else self._after, _PAGE)
        numbered = [(n, record) for record in records if isinstance(n := record.get("n"), int) and n > self._after]
        self._is_begun = True
        if not numbered:
            return False, False
        skipped = numbered[0][0] - self._after - 1
        self._after = numbered[-1][0]
        self._tell(LogPage(lines_of([record for _, record in numbered]), max(skipped, 0)))
        return len(records) >= _PAGE, True


def lines_of(records: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Return log records as harmless lines; a record may hold a bar drawn over and over, its last drawing counts."""
    return tuple(_line(str(record.get("text") or "")) for record in records)


def _line(text: str) -> str:
    last = text.rstrip("\r\n").rpartition("\r")[2]
    if len(last) <= _LONGEST_LINE:
        return clean(last)
    return f"{clean(last[:_LONGEST_LINE])} ({len(last) - _LONGEST_LINE} more characters)"
