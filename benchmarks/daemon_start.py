"""How soon a started daemon answers, and with how many past trials: `python -m benchmarks.daemon_start [--starts N]`.

From the exec of `specd start` to the first answer of /v1/health, with an empty database, with that of one trial that
was really run, and with many copies of it (its moves, events and facts); `python -c pass` takes turns with them. Then
what the list costs with that many trials, its first page and its last one.
"""

import argparse
import asyncio
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from benchmarks.daemon_idle import rss_mib
from benchmarks.sites import core_share, open_site
from tests.rig import Daemon, Site

FIRST_ANSWER_S = 0.5
PAST_TRIALS = 10_000
_PAGE = 200
_LOOKS = 5
# Shared by the copies: what belongs to a trial, less what only `show` and the log of one trial read.
_COPY = """
INSERT INTO trial SELECT printf('%s-%05d', id, n), name, service, host, spec, created_at, updated_at, state, outcome,
    reason, failure FROM trial, copy;
INSERT INTO move SELECT printf('%s-%05d', trial, n), seq, source, trigger, target, cause, at FROM move, copy;
INSERT INTO fact SELECT printf('%s-%05d', trial, n), key, value, at FROM fact, copy;
INSERT INTO event (at, trial, service, body)
    SELECT at, printf('%s-%05d', trial, n), service, body FROM event, copy WHERE trial IS NOT NULL;
"""


@dataclass
class Costs:
    """What a daemon with one database takes: seconds, each measured several times, and MiB."""

    first_answer: list[float] = field(default_factory=list)
    first_page: list[float] = field(default_factory=list)
    last_page: list[float] = field(default_factory=list)
    metrics: list[float] = field(default_factory=list)
    memory_mib: float = 0.0


def copy_trial(database: Path, count: int) -> None:
    """Fill a stopped daemon's database with copies of the one trial in it."""
    with sqlite3.connect(database) as db:
        db.execute("CREATE TEMP TABLE copy (n INTEGER)")
        db.executemany("INSERT INTO copy VALUES (?)", ((n,) for n in range(count - 1)))
        db.executescript("BEGIN;" + _COPY + "COMMIT;")
    db.close()


def interpreter_s() -> float:
    """Return the seconds that `python -c pass` takes."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.monotonic() - started


async def _first_answer_s(daemon: Daemon) -> float:
    started = time.monotonic()
    await daemon.start()
    return time.monotonic() - started


async def _look(daemon: Daemon, costs: Costs) -> None:
    """Measure what a daemon that has just started takes for its lists."""
    before = await _before_last_page(daemon)
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(daemon.socket))) as session:
        for path, seconds in (
            (f"/v1/trials?limit={_PAGE}", costs.first_page),
            (f"/v1/trials?limit={_PAGE}{before}", costs.last_page),
            ("/metrics", costs.metrics),
        ):
            for _ in range(_LOOKS):
                started = time.monotonic()
                async with session.get(f"http://specd{path}") as answer:
                    await answer.read()
                seconds.append(time.monotonic() - started)
    costs.memory_mib = rss_mib(daemon.pid)


async def _before_last_page(daemon: Daemon) -> str:
    """Return the query of the oldest trials' page; "" where there is one page only."""
    ids = [trial["id"] for trial in await daemon.client.trials(limit=PAST_TRIALS)]
    return f"&before={ids[-_PAGE - 1]}" if len(ids) > _PAGE else ""


async def measure(site: Site, starts: int) -> tuple[dict[str, Costs], list[float], float]:
    """Return the costs by database, the seconds of the interpreter alone, and the size of the large one in MiB."""
    found = {"empty": Costs(), "one trial": Costs(), f"{PAST_TRIALS} trials": Costs()}
    alone: list[float] = []
    state = site.directory / "state"
    database, kept = state / "specd.db", {name: site.directory / name for name in found}
    async with Daemon(site) as daemon:
        end: Callable[[], object] = lambda: daemon.end(signal.SIGTERM)  # noqa: E731
        await asyncio.to_thread(end)
        database.rename(kept["empty"])
        await daemon.start()
        shown = await daemon.settled(await daemon.submit())
        assert shown["state"] == "restored", shown["reason"]
        await asyncio.to_thread(end)
        await asyncio.to_thread(subprocess.run, ["cp", str(database), str(kept["one trial"])], check=True)
        await asyncio.to_thread(copy_trial, database, PAST_TRIALS)
        database.rename(kept[f"{PAST_TRIALS} trials"])
        for _ in range(starts):
            for name, costs in found.items():
                kept[name].rename(database)
                alone.append(await asyncio.to_thread(interpreter_s))
                costs.first_answer.append(await _first_answer_s(daemon))
                await _look(daemon, costs)
                await asyncio.to_thread(end)
                database.rename(kept[name])
        return found, alone, kept[f"{PAST_TRIALS} trials"].stat().st_size / 2**20


async def _main(starts: int) -> bool:
    async with open_site("embedded") as site:
        found, alone, size_mib = await measure(site, starts)
    python_s = statistics.median(alone)
    empty = found["empty"]
    print(f"{PAST_TRIALS} trials are {size_mib:.0f} MiB; `python -c pass` takes {python_s * 1e3:.0f} ms")
    print(f"{'':<14} first answer      against empty  against pass  first page  last page  /metrics  memory")
    good = True
    for name, costs in found.items():
        answer_s = statistics.median(costs.first_answer)
        good &= answer_s < FIRST_ANSWER_S
        pages = [statistics.median(each) * 1e3 for each in (costs.first_page, costs.last_page, costs.metrics)]
        print(
            f"{name:<14} {answer_s * 1e3:4.0f} ms (<{max(costs.first_answer) * 1e3:5.0f})"
            f"  {answer_s / statistics.median(empty.first_answer):11.2f} x  {answer_s / python_s:10.1f} x"
            f"  {pages[0]:7.1f} ms {pages[1]:7.1f} ms {pages[2]:6.1f} ms  {costs.memory_mib:3.0f} MiB"
        )
    print(f"(a busy loop got {core_share():.0%} of a core; allowed: {FIRST_ANSWER_S * 1e3:.0f} ms)")
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=7)
    options = parser.parse_args()
    sys.exit(not asyncio.run(_main(options.starts)))
