"""What the daemon costs while nothing happens: `python -m benchmarks.daemon_idle [--site NAME] [--seconds N]`.

Three parts: CPU time of `specd --help`; CPU share and memory of a daemon that has a connection to its host open and no
trial; time from its start to the first answer of the API, with an empty database and with many past trials in it, which
are copies of one trial that was really run (its moves, events and facts).
"""

import argparse
import asyncio
import os
import resource
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from pathlib import Path

import aiohttp

from benchmarks.sites import SITES, SiteMissing, core_share, open_site
from tests.rig import Daemon

HELP_CPU_S = 0.2
IDLE_SHARE = 0.005
IDLE_MIB = 80
PAST_TRIALS = 10_000
_STARTS = 5
# Shared by the copies: what belongs to a trial, less what only `show` and the log of one trial read.
_COPY = """
INSERT INTO trial SELECT printf('%s-%05d', id, n), name, service, host, spec, created_at, updated_at, state, outcome,
    reason, failure FROM trial, copy;
INSERT INTO move SELECT printf('%s-%05d', trial, n), seq, source, trigger, target, cause, at FROM move, copy;
INSERT INTO fact SELECT printf('%s-%05d', trial, n), key, value, at FROM fact, copy;
INSERT INTO event (at, trial, service, body)
    SELECT at, printf('%s-%05d', trial, n), service, body FROM event, copy WHERE trial IS NOT NULL;
"""


def help_cpu_s() -> float:
    """Return the CPU seconds of `specd --help`, median of several."""
    found = []
    for _ in range(_STARTS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "specd", "--help"], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(found)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    """Return a process's resident memory in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def idle(site_name: str, seconds: float) -> bool:
    """Measure and print what an idle daemon uses; raises SiteMissing."""
    async with open_site(site_name) as site, Daemon(site) as daemon:
        await daemon.client.post("/v1/check")
        link = (await daemon.client.get("/v1/services"))["services"][0]["link"]
        # What the check left to do is done.
        await asyncio.sleep(2)
        before, started = cpu_s(daemon.pid), time.monotonic()
        await asyncio.sleep(seconds)
        share = (cpu_s(daemon.pid) - before) / (time.monotonic() - started)
        memory = rss_mib(daemon.pid)
    state = "open" if link["connected"] else "closed"
    print(
        f"{site_name}, idle for {seconds:.0f} s, link {state}: {share:.2%} of a core"
        f" ({share / IDLE_SHARE:.0%} of what is allowed), {memory:.0f} MiB ({memory / IDLE_MIB:.0%})"
    )
    return share < IDLE_SHARE and memory < IDLE_MIB


def copy_trial(database: Path, count: int) -> None:
    """Fill a stopped daemon's database with copies of the one trial in it."""
    with sqlite3.connect(database) as db:
        db.execute("CREATE TEMP TABLE copy (n INTEGER)")
        db.executemany("INSERT INTO copy VALUES (?)", ((n,) for n in range(count - 1)))
        db.executescript("BEGIN;" + _COPY + "COMMIT;")
    db.close()


async def metrics(daemon: Daemon) -> str:
    """Return the daemon's /metrics page."""
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(daemon.socket))) as session,
        session.get("http://specd/metrics") as page,
    ):
        return await page.text()


async def first_answers(daemon: Daemon) -> tuple[float, float, float, float]:
    """Start a stopped daemon several times; return the median seconds to the first answer, and of the list of trials
    and /metrics then, and its memory in MiB."""
    starts, lists, pages, memory = [], [], [], 0.0
    for _ in range(_STARTS):
        started = time.monotonic()
        await daemon.start()
        starts.append(time.monotonic() - started)
        started = time.monotonic()
        await daemon.client.trials(limit=200)
        lists.append(time.monotonic() - started)
        started = time.monotonic()
        await metrics(daemon)
        pages.append(time.monotonic() - started)
        memory = rss_mib(daemon.pid)
        await asyncio.to_thread(daemon.end, signal.SIGTERM)
    return statistics.median(starts), statistics.median(lists), statistics.median(pages), memory


async def start_up() -> None:
    """Measure and print the time to the first answer without and with many past trials."""
    async with open_site("embedded") as site, Daemon(site) as daemon:
        shown = await daemon.settled(await daemon.submit())
        assert shown["state"] == "restored", shown["reason"]
        await asyncio.to_thread(daemon.end, signal.SIGTERM)
        few = await first_answers(daemon)
        database = site.directory / "state" / "specd.db"
        await asyncio.to_thread(copy_trial, database, PAST_TRIALS)
        many = await first_answers(daemon)
        size = database.stat().st_size / 2**20
    names = ("first answer", "200 trials listed", "/metrics")
    print(f"{PAST_TRIALS} past trials ({size:.0f} MiB) against one:")
    for name, one, all_of in zip(names, few, many, strict=False):
        print(f"  {name:<18} {one * 1e3:7.0f} ms {all_of * 1e3:7.0f} ms   {all_of / one:5.2f} x")
    print(f"  {'memory':<18} {few[3]:6.0f} MiB {many[3]:6.0f} MiB  {many[3] / few[3]:5.2f} x")


async def _main(sites: tuple[str, ...], seconds: float) -> bool:
    needed = help_cpu_s()
    print(f"specd --help: {needed:.3f} s of CPU, {needed / HELP_CPU_S:.0%} of what is allowed")
    await start_up()
    good = needed < HELP_CPU_S
    for name in sites:
        try:
            good &= await idle(name, seconds)
        except SiteMissing as why:
            print(f"{name}: skipped, {why}")
    print(f"(a busy loop got {core_share():.0%} of a core)")
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", choices=SITES)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    sys.exit(not asyncio.run(_main((options.site,) if options.site else SITES, options.seconds)))
