"""How soon a daemon that was killed has its open trial again:
`python -m benchmarks.reattach [--site NAME] [--kills N]`.

A candidate that never ends its load is followed; the daemon is killed (-9) and started, many times. From the exec of
`specd start` to its API's first answer, and from there to the event that the trial was taken up, which comes after the
host was asked what is true there, and to the first stage that the trial's watch then tells.
"""

import argparse
import asyncio
import sys
import time
from typing import Any

from benchmarks.sites import SITES, SiteMissing, core_share, open_site, spread
from specd.cli.client import StreamLost
from tests.rig import Daemon

REATTACHED_S = 2.0
_HANG = {"SPECD_REHEARSAL_FAULT": "hang:weights"}


async def _event(daemon: Daemon, trial: str, since: int, kind: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            try:
                async with daemon.client.events(since, trial) as events:
                    async for event in events:
                        if event["type"] == kind:
                            return dict(event)
            except StreamLost:
                continue


async def measure(name: str, kills: int) -> bool:
    """Print the times of one installation; True when its median keeps the limit."""
    answers, attached, followed = [], [], []
    async with open_site(name) as site, Daemon(site) as daemon:
        text = daemon.config.read_text()
        daemon.config.write_text(text.replace("stall_s = 4", "stall_s = 600").replace("= 30", "= 600"))
        daemon.kill()
        await daemon.start()
        trial = await daemon.submit(env=_HANG)
        await daemon.reached(trial, "loading")
        for _ in range(kills):
            since = int((await daemon.client.health())["seq"])
            daemon.kill()
            started = time.monotonic()
            await daemon.start()
            answered = time.monotonic()
            resumed = await _event(daemon, trial, since, "TrialResumed")
            attached.append(time.monotonic() - answered)
            await _event(daemon, trial, int(resumed["seq"]), "StageProgressed")
            followed.append(time.monotonic() - answered)
            answers.append(answered - started)
        invocations = len(await asyncio.to_thread(site.starts, f"specd-{trial}.service"))
        await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "the benchmark"})
        await daemon.settled(trial)
    print(f"{name}, {kills} kills, {invocations} start of the candidate; a busy loop got {core_share():.0%} of a core")
    print(f"  exec to the API's first answer    {spread(answers)}")
    print(f"  from there to the trial taken up  {spread(attached)}  (allowed {REATTACHED_S * 1e3:.0f} ms)")
    print(f"  from there to its stage           {spread(followed)}")
    return invocations == 1 and max(attached) < REATTACHED_S


async def _main(sites: tuple[str, ...], kills: int) -> bool:
    good = True
    for name in sites:
        try:
            good &= await measure(name, kills)
        except SiteMissing as why:
            print(f"{name}: left out: {why}")
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", choices=SITES)
    parser.add_argument("--kills", type=int, default=10)
    options = parser.parse_args()
    sys.exit(not asyncio.run(_main((options.site,) if options.site else SITES, options.kills)))
