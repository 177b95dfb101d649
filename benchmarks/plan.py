"""How long `specd plan` takes against one host: `python -m benchmarks.plan [--site NAME] [--times N]`.

The plan as the daemon makes it, over a connection that is open, less what the engine's own parser took; beside it the
round trip of the smallest command on that host, in turns.
"""

import argparse
import asyncio
import sys
import time

from benchmarks.sites import SITES, SiteMissing, core_share, open_site, spread
from tests.rig import Daemon
from tests.rig.daemon import trial_toml

ALLOWED_S = 1.5
_NGRAM = {"speculative-config": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}}


async def measure(name: str, times: int) -> bool:
    """Print the times of one installation; True when its median keeps the limit."""
    plans, checks = [], 0
    async with open_site(name) as site, Daemon(site) as daemon:
        body = {"file": "t.toml", "text": trial_toml(_NGRAM)}
        for _ in range(times + 1):
            started = time.monotonic()
            answer = await daemon.client.post("/v1/plan", body)
            plans.append(time.monotonic() - started)
            (planned,) = answer["plans"]
            assert planned["ok"], planned["checks"]
            checks = len(planned["checks"])
    # The first one opens the connection.
    first, *rest = plans
    print(f"{name}: {checks} checks; a busy loop got {core_share():.0%} of a core")
    print(f"  first, with the connection   {first * 1e3:.0f} ms")
    print(f"  {times} more                      {spread(rest)}  (allowed {ALLOWED_S * 1e3:.0f} ms)")
    return sorted(rest)[len(rest) // 2] < ALLOWED_S


async def _main(sites: tuple[str, ...], times: int) -> bool:
    good = True
    for name in sites:
        try:
            good &= await measure(name, times)
        except SiteMissing as why:
            print(f"{name}: left out: {why}")
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", choices=SITES)
    parser.add_argument("--times", type=int, default=10)
    options = parser.parse_args()
    sys.exit(not asyncio.run(_main((options.site,) if options.site else SITES, options.times)))
