"""Following a log by line numbers: nothing twice, nothing silently left out, no flood."""

import asyncio
from typing import Any

from tui.client import Away
from tui.logtail import LogPage, LogTail, lines_of


class StoredLog:
    """A log in a store, as the API reads it; `grow` adds lines, `is_away` breaks the connection."""

    def __init__(self, lines: int = 0) -> None:
        self.count = lines
        self.is_away = False
        self.reads = 0

    def grow(self, lines: int) -> None:
        self.count += lines

    async def read(self, trial: str, after: int, limit: int) -> list[dict[str, Any]]:
        self.reads += 1
        if self.is_away:
            raise Away("gone")
        first = max(0, self.count + after if after < 0 else after)
        return [{"n": n, "text": f"line {n}"} for n in range(first + 1, min(first + limit, self.count) + 1)]


async def follow(log: StoredLog, until: int, then: Any = None) -> list[LogPage]:
    """Follow until line `until` was told; `then` is called after each page."""
    pages: list[LogPage] = []
    done = asyncio.Event()

    def tell(page: LogPage) -> None:
        pages.append(page)
        if then is not None:
            then(page)
        if page.lines[-1] == f"line {until}":
            done.set()

    task = asyncio.create_task(LogTail(log.read, "t", tell).run())
    try:
        async with asyncio.timeout(10):
            await done.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return pages


def told(pages: list[LogPage]) -> list[str]:
    return [line for page in pages for line in page.lines]


async def test_a_short_log_is_told_from_its_first_line() -> None:
    pages = await follow(StoredLog(3), 3)
    assert pages == [LogPage(("line 1", "line 2", "line 3"))]


async def test_lines_that_come_are_told_once_each() -> None:
    log = StoredLog(2)
    pages = await follow(log, 12, lambda page: log.grow(5) if log.count < 12 else None)
    assert told(pages) == [f"line {n}" for n in range(1, 13)]


async def test_a_long_history_begins_near_its_end_and_says_what_is_left_out() -> None:
    pages = await follow(StoredLog(2_000_000), 2_000_000)
    assert pages[0].skipped == 1_998_000
    assert told(pages) == [f"line {n}" for n in range(1_998_001, 2_000_001)]


async def test_a_flood_is_skipped_and_counted() -> None:
    log = StoredLog(10)
    flooded = False

    def flood(_: LogPage) -> None:
        nonlocal flooded
        if not flooded:
            flooded = True
            log.grow(1_000_000)

    pages = await follow(log, 1_000_010, flood)
    assert sum(page.skipped for page in pages) + len(told(pages)) == 1_000_010
    assert log.reads < 20


async def test_an_absence_is_waited_out() -> None:
    log = StoredLog(1)
    log.is_away = True
    asyncio.get_running_loop().call_later(0.1, setattr, log, "is_away", False)
    assert told(await follow(log, 1)) == ["line 1"]


def test_a_bar_that_was_drawn_over_is_shown_as_last_drawn_and_harmless() -> None:
    assert lines_of([{"text": "\r 10%\r\x1b[31m 62%\x1b[0m\n"}, {"text": None}, {}]) == (" 62%", "", "")


def test_a_line_of_five_megabytes_is_cut_and_says_so() -> None:
    (line,) = lines_of([{"text": "x" * 5_000_000}])
    assert line == "x" * 4000 + " (4996000 more characters)"
