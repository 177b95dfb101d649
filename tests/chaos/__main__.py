"""Random mishaps, one trial after another: `python -m tests.chaos --help`; status 1 when anything did not hold."""

import argparse
import asyncio
import random
import sys

from tests.chaos.matrix import run_matrix
from tests.chaos.random_schedules import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Random mishaps for a given time.")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (10); 0 plays one schedule")
    parser.add_argument("--seed", type=int, default=0, help="the first schedule's seed; the next ones count on")
    parser.add_argument("--matrix", action="store_true", help="every state with every fault instead, once each")
    parser.add_argument("--only", default="", help="with --matrix: cells with these words, as 'loading x power-cut'")
    parser.add_argument("--site", choices=("embedded", "systemd", "both"), default="both")
    args = parser.parse_args()
    seed = args.seed or random.SystemRandom().randrange(10**6)
    kinds = ("embedded", "systemd") if args.site == "both" else (args.site,)
    print(f"seed {seed}, sites {', '.join(kinds)}", flush=True)
    failed = asyncio.run(run_matrix(kinds, args.only) if args.matrix else run(args.minutes, seed, kinds))
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
