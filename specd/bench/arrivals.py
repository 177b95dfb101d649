"""When each request of an open loop is due: constant, Poisson, or a recorded series played back, at a level's rate.

Everything follows from plan and level, so both sides of a comparison are asked at the same moments. A series is first
made at one request per unit of time; the level's rate, and a ramp if there is one, then stretch that to seconds.
"""

import json
import math
import random
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from specd.bench.plan import BenchPlan, Level
from specd.errors import BenchError

__all__ = ["ARRIVALS", "due_times"]

ARRIVALS = ("poisson", "constant")
_KEYS = ("timestamp", "time", "at", "ts")


def due_times(plan: BenchPlan, level: Level) -> list[float]:
    """Return when the level's requests are due, in seconds from its start, ascending; raises BenchError."""
    if plan.arrivals == "constant":
        units: Iterable[float] = range(plan.requests)
    elif plan.arrivals == "poisson":
        units = _poisson(random.Random(f"{plan.seed}/{level.rate}/{level.repeat}"), plan.requests)
    else:
        units = _replayed(_timestamps(Path(plan.arrivals).expanduser()), plan.requests)
    return [_seconds(unit, level.rate, plan.ramp_s) for unit in units]


def _poisson(rng: random.Random, count: int) -> list[float]:
    found, at = [], 0.0
    for _ in range(count):
        found.append(at)
        at += rng.expovariate(1.0)
    return found


def _replayed(times: list[float], count: int) -> list[float]:
    """Return `count` times whose mean gap is 1; a series that is too short begins again after a mean gap."""
    span = times[-1] - times[0]
    if span <= 0:
        raise BenchError("the timestamps to replay are all the same")
    mean = span / (len(times) - 1)
    units = [(at - times[0]) / mean for at in times]
    return [units[number % len(units)] + (number // len(units)) * len(units) for number in range(count)]


def _seconds(unit: float, rate: float, ramp_s: float) -> float:
    """Return the moment by which `unit` requests are due when the rate grows evenly from 0 to `rate` over `ramp_s`."""
    within_ramp = rate * ramp_s / 2
    if unit < within_ramp:
        return math.sqrt(2 * ramp_s * unit / rate)
    return (unit - within_ramp) / rate + ramp_s


def _timestamps(path: Path) -> list[float]:
    """Read a file of timestamps in any unit: one a line, a number or a JSON object with a "timestamp"."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"can't read the timestamps in {path}: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            found.append(_timestamp(line, f"{path}:{number}"))
    if len(found) < 2:
        raise BenchError(f"{path} holds {len(found)} timestamps; two are the least to replay")
    for number, (early, late) in enumerate(pairwise(found), 2):
        if late < early:
            raise BenchError(f"{path}: timestamp {number} is before the one above it")
    return found


def _timestamp(line: str, place: str) -> float:
    try:
        value: Any = json.loads(line)
    except ValueError:
        value = None
    if isinstance(value, dict):
        value = next((value[key] for key in _KEYS if key in value), None)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BenchError(f'{place}: expected a number, or an object with a "timestamp"')
    return float(value)
