"""What the daemon costs while nothing happens: `python -m benchmarks.daemon_idle [--site NAME] [--seconds N]`.

Two parts: CPU time of `specd --help`; CPU share and memory of a daemon that has a connection to its host open and no
trial.
"""

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.sites import SITES, SiteMissing, core_share, open_site
from tests.rig import Daemon

HELP_CPU_S = 0.2
IDLE_SHARE = 0.005
IDLE_MIB = 80
_STARTS = 5


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


async def _main(sites: tuple[str, ...], seconds: float) -> bool:
    needed = help_cpu_s()
    print(f"specd --help: {needed:.3f} s of CPU, {needed / HELP_CPU_S:.0%} of what is allowed")
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
