"""How soon is a start noticed? `python -m benchmarks.ready_detection [--site embedded|systemd] [--starts N]`.

The clock starts with the engine's line `Application startup complete`, at the time that the journal gives it; the
engine listens right after it. It stops when the daemon's move into `ready` was committed. Everything runs on one
machine, so both times are of one clock. Each start is a trial that measures next to nothing.
"""

import argparse
import asyncio
import sys
from datetime import datetime

from benchmarks.sites import SITES, SiteMissing, core_share, open_site, spread
from specd.bench.summary import percentile
from tests.rig import SCRIPT, Daemon

MEDIAN_S = 0.1
P99_S = 0.3
_LINE = "Application startup complete"
_PLAN = """
[benchmarks.short]
levels = [1]
repeats = 1
requests = 1
prompts = "quick"
max_tokens = 4
warmup_requests = 0
"""


async def detect_s(daemon: Daemon, number: int) -> float:
    """Run one trial with the shortest of measurements and return how long its readiness took to be seen, in s."""
    trial = await daemon.submit(name=f"t{number}", benchmark="short")
    moved = await daemon.reached(trial, "ready")
    printed = await _announced_at(daemon, trial)
    shown = await daemon.settled(trial)
    if shown["state"] != "restored":
        raise RuntimeError(f"the trial ended in {shown['state']}: {shown['reason']}")
    return datetime.fromisoformat(moved["at"]).timestamp() - printed


async def _announced_at(daemon: Daemon, trial: str) -> float:
    """Return the journal's time of the engine's line; a probe may see the server before the journal brings it."""
    async with asyncio.timeout(10):
        while True:
            for line in await daemon.client.log(trial, limit=10_000):
                if line["unit"] == f"specd-{trial}.service" and _LINE in line["text"]:
                    return float(line["at"])
            await asyncio.sleep(0.05)


async def run_starts(site_name: str, count: int) -> bool:
    """Measure and print; returns whether the targets are met. Raises SiteMissing."""
    share = core_share()
    async with open_site(site_name) as site, Daemon(site, _PLAN) as daemon:
        found = [await detect_s(daemon, number) for number in range(count)]
    share = min(share, core_share())
    middle, tail = percentile(found, 0.5), percentile(found, 0.99)
    print(
        f"{site_name}: {count} starts of {sum(SCRIPT['stages'].values()):.1f} s: {spread(found)}, p99"
        f" {tail * 1e3:.0f} ms; {middle / MEDIAN_S:.0%} of the median allowed, {tail / P99_S:.0%} of the p99"
        f" (a busy loop got {share:.0%} of a core)"
    )
    return middle < MEDIAN_S and tail < P99_S


async def _main(sites: tuple[str, ...], count: int) -> bool:
    good = True
    for name in sites:
        try:
            good &= await run_starts(name, count)
        except SiteMissing as why:
            print(f"{name}: skipped, {why}")
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", choices=SITES)
    parser.add_argument("--starts", type=int, default=50)
    options = parser.parse_args()
    sys.exit(not asyncio.run(_main((options.site,) if options.site else SITES, options.starts)))
