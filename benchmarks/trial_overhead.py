"""What specd adds to a trial: `python -m benchmarks.trial_overhead [--site embedded|systemd] [--trials N]`.

Overhead = the wall time from the submission to `restored`, less the scripted stages of the two starts (candidate,
baseline) and less the time in which the benchmark client measured (the sum of its levels' wall times; the plan has no
warm-up). All else counts: the client's own start, stopping the engines, systemd, sshd, every commit. Each state's line
shows its wall time, what of it was scripted or measured, and the rest. On a machine that others use too everything
takes longer: the share of a core that a busy loop got between the trials says so.
"""

import argparse
import asyncio
import itertools
import statistics
import sys
from typing import Any

from benchmarks.sites import SITES, SiteMissing, core_share, open_site, spread
from specd import clock
from tests.rig import SCRIPT, Daemon, Site

TARGET_S = {"embedded": 1.5, "systemd": 3.0}
_LOADING = ("import", "config", "engine", "weights")
_COMPILING = ("compile", "capture", "startup")
_PLAN = """
[benchmarks.timed]
levels = [1, 2]
repeats = 2
requests = 4
prompts = "quick"
max_tokens = 24
warmup_requests = 0
first_token_s = 4
idle_s = 4
"""


def needed_s(shown: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of each state that belong to the engine's script or to the measurement."""
    stages: dict[str, float] = SCRIPT["stages"]
    return {
        "baseline": sum(level["wall_s"] for level in shown["baseline"]["levels"]),
        "loading": sum(stages[name] for name in _LOADING),
        "cudagraph-compile": sum(stages[name] for name in _COMPILING),
        "benchmark": sum(level["wall_s"] for level in shown["candidate"]["levels"]),
        "rollback": sum(stages.values()),
    }


def wall_s(shown: dict[str, Any]) -> dict[str, float]:
    """Return the seconds that each state took, the queue included."""
    entered = [("queued", shown["created_at"]), *((move["state"], move["at"]) for move in shown["history"])]
    return {state: clock.seconds_between(at, until) for (state, at), (_, until) in itertools.pairwise(entered)}


def _daemon(site: Site) -> Daemon:
    """Return a daemon whose guards have the lease that they have by default."""
    daemon = Daemon(site, _PLAN)
    text = daemon.config.read_text()
    start, end = text.index("[services.llm.guard]"), text.index("[benchmarks.tiny]")
    daemon.config.write_text(text[:start] + text[end:])
    return daemon


async def run_trials(site_name: str, count: int) -> tuple[list[dict[str, Any]], float]:
    """Run whole trials one after the other and return them as `show` shows them, and the share of a core that was free
    (median); raises SiteMissing."""
    found: list[dict[str, Any]] = []
    shares: list[float] = []
    async with open_site(site_name) as site, _daemon(site) as daemon:
        for number in range(count):
            shares.append(core_share())
            shown = await daemon.settled(await daemon.submit(name=f"t{number}", benchmark="timed"))
            if shown["state"] != "restored" or shown["outcome"] == "failed":
                raise RuntimeError(f"the trial ended as {shown['state']}, {shown['outcome']}: {shown['reason']}")
            found.append(shown)
    return found, statistics.median(shares)


def report(site_name: str, trials: list[dict[str, Any]], share: float) -> bool:
    """Print where the time went; returns whether the median is within the target."""
    walls, needs = [wall_s(shown) for shown in trials], [needed_s(shown) for shown in trials]
    print(f"{site_name}: {len(trials)} trials, medians in s; a busy loop got {share:.0%} of a core")
    print(f"  {'state':<18} {'wall':>7} {'needed':>7} {'added':>7}")
    for state in walls[0]:
        wall = statistics.median(each[state] for each in walls)
        need = statistics.median(each.get(state, 0.0) for each in needs)
        print(f"  {state:<18} {wall:7.3f} {need:7.3f} {wall - need:7.3f}")
    added = [sum(wall.values()) - sum(need.values()) for wall, need in zip(walls, needs, strict=True)]
    slowest = added.index(max(added))
    more = {state: seconds - needs[slowest].get(state, 0.0) for state, seconds in walls[slowest].items()}
    where = max(more, key=lambda state: more[state])
    print(f"  the slowest trial ({trials[slowest]['id']}) lost most in {where}: {more[where]:.3f} s")
    target = TARGET_S[site_name]
    whole = statistics.median(sum(each.values()) for each in walls)
    middle = statistics.median(added)
    print(f"  whole trial {whole:.2f} s; added {spread(added)}: {middle / target:.0%} of the target of {target} s")
    return middle < target


async def _main(sites: tuple[str, ...], count: int) -> bool:
    good = True
    for name in sites:
        try:
            good &= report(name, *await run_trials(name, count))
        except SiteMissing as why:
            print(f"{name}: skipped, {why}")
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", choices=SITES)
    parser.add_argument("--trials", type=int, default=5)
    options = parser.parse_args()
    sys.exit(not asyncio.run(_main((options.site,) if options.site else SITES, options.trials)))
