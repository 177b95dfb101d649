"""How often the verdict is wrong, and what looking early saves: `python -m benchmarks.verdict_errors [--runs N]`.

The real rule (specd/bench/judge.py, sequential.py) on samples that are made up, with a seed: prompts that differ by a
third and share it on both sides, repeats that drift, requests that run in bad company (correlated within a repeat), and
heavy tails. A/A shows false answers; a real difference shows how often it is found; both are judged by looking after
each repeat and by one look at the end of the fixed plan, on the same samples.
"""

import argparse
import math
import multiprocessing
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from specd.bench.judge import compare
from specd.bench.plan import Level, LevelDone, Sample
from specd.bench.sequential import SURE, look_at
from specd.settings import Policy

PROMPTS, REPEATS = 12, 5
ALLOWED = 0.05


@dataclass(frozen=True)
class World:
    """What a machine does to times, as spreads of the log: from repeat to repeat, of a single request, and how heavy
    its tail is."""

    name: str
    drift: float
    noise: float
    tail: float = 0.0


WORLDS = (
    World("quiet", drift=0.005, noise=0.02),
    World("drifting", drift=0.03, noise=0.02),
    World("heavy tails", drift=0.01, noise=0.03, tail=0.05),
    World("all of it", drift=0.03, noise=0.05, tail=0.05),
)


def side(world: World, speed: float, prompts: dict[int, float], rng: random.Random) -> list[LevelDone]:
    """Return one side's levels at concurrency 1."""
    done = []
    for repeat in range(1, REPEATS + 1):
        drift, company = rng.gauss(0, world.drift), rng.gauss(0, world.noise / 2)
        samples = []
        for number in range(PROMPTS):
            # Each repeat has prompts of its own, both sides have the same.
            own = prompts[number + PROMPTS * repeat]
            noise = rng.gauss(0, world.noise)
            if rng.random() < world.tail:
                noise += rng.expovariate(1 / 0.3)
            company = 0.5 * company + rng.gauss(0, world.noise / 2)
            tpot = 10 * math.exp(own + drift + company + noise) / speed
            samples.append(
                Sample(
                    concurrency=1, repeat=repeat, prompt_id=f"p{number + PROMPTS * repeat}", started_at=0.0,
                    ttft_ms=80.0, answer_ttft_ms=80.0, tpot_ms=tpot, e2e_ms=80 + 99 * tpot, tokens_in=50,
                    tokens_out=100, chunks=100, finish="length",
                )
            )  # fmt: skip
        done.append(
            LevelDone(
                level=Level(1, repeat), samples=tuple(samples), wall_s=10.0, metrics_before="", metrics_after="",
                loop_lag_p99_ms=0.1, endpoint="chat", counting="usage", in_flight=1, route="direct",
            )
        )  # fmt: skip
    return done


def run(job: tuple[World, float, int]) -> tuple[str, int, str]:
    """Return the sequential verdict, after how many repeats it came, and the fixed plan's verdict."""
    world, speed, seed = job
    rng = random.Random(seed)
    prompts = {number: rng.gauss(0, 0.3) for number in range(PROMPTS * (REPEATS + 2))}
    baseline, candidate = side(world, 1.0, prompts, rng), side(world, speed, prompts, rng)
    policy = Policy()
    fixed = compare(baseline, candidate, policy).outcome
    for number in range(3, REPEATS + 1):
        look = look_at(number, REPEATS, policy.confidence)
        seen = [done for done in candidate if done.level.repeat <= number]
        outcome = compare(baseline, seen, policy, look).outcome
        if outcome in SURE or number == REPEATS:
            return outcome, number, fixed
    raise AssertionError("the last look decides")


def measure(world: World, speed: float, runs: int, seed: int, map_: Callable[..., list[tuple[str, int, str]]]) -> float:
    """Print what came of one world and one difference; returns the share of false answers by looking."""
    found = map_(run, [(world, speed, seed + n) for n in range(runs)], 50)
    wrong = {"better", "worse"} if speed == 1.0 else {"worse"} if speed > 1 else {"better"}
    right = {"equivalent"} if speed == 1.0 else {"better"} if speed > 1 else {"worse"}
    looked, fixed = Counter(outcome for outcome, _, _ in found), Counter(outcome for _, _, outcome in found)
    repeats = sum(number for _, number, _ in found) / runs
    share = sum(looked[outcome] for outcome in wrong) / runs
    print(
        f"{world.name:<12} {speed - 1:+5.0%}  false {share:6.2%} (fixed {sum(fixed[o] for o in wrong) / runs:6.2%})  "
        f"found {sum(looked[o] for o in right) / runs:6.1%} (fixed {sum(fixed[o] for o in right) / runs:6.1%})  "
        f"requests {repeats / REPEATS:4.0%} of the fixed plan"
    )
    return share


def _main(runs: int, seed: int) -> bool:
    print(f"{runs} runs each, seed {seed}, {PROMPTS} prompts x {REPEATS} repeats, margin {Policy().margin:.0%}")
    good = True
    with multiprocessing.Pool() as pool:
        for world in WORLDS:
            for speed in (1.0, 1.05, 0.85):
                good &= measure(world, speed, runs, seed, pool.map) <= ALLOWED
    print(f"false answers allowed: {ALLOWED:.0%}")
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    sys.exit(not _main(options.runs, options.seed))
