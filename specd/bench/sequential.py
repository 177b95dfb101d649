"""Looking while it is measured: when the answer may be taken as sure, without more false ones than a single look gives.

After each repeat the samples so far are judged. Each look may be wrong with a part of the error that the policy allows
(1 - confidence). The parts follow the spending function of Lan and DeMets (Biometrika 70, 1983) in the shape of
O'Brien and Fleming, alpha(t) = 2 - 2 Phi(z / sqrt(t)) with t the share of the repeats that is done: early looks need
strong evidence and cost the last one little. They add up to the whole, so that by Bonferroni's inequality the error
over all looks is at most 1 - confidence, however the looks depend on each other.

The first look comes after three repeats: two tell too little of how one repeat differs from another.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from specd.bench.plan import LevelDone

__all__ = ["SURE", "Look", "complete_repeats", "look_at"]

_FIRST = 3
SURE = frozenset({"better", "worse", "equivalent"})


@dataclass(frozen=True, slots=True)
class Look:
    """The `number`th repeat's look of `of`, and the confidence that its intervals need."""

    number: int
    of: int
    confidence: float

    @property
    def is_last(self) -> bool:
        """True when nothing more will be measured."""
        return self.number >= self.of


def look_at(repeats_done: int, of: int, confidence: float) -> Look | None:
    """Return the look that is due after so many repeats; None while it is too early for one."""
    number = min(repeats_done, of)
    if number < min(_FIRST, of):
        return None
    before = _spent(number - 1, of, confidence) if number > _FIRST else 0.0
    return Look(number, of, 1 - (_spent(number, of, confidence) - before))


def complete_repeats(levels: Sequence[LevelDone], loads: int) -> int:
    """Return how many repeats have all their `loads` levels."""
    counts: dict[int, int] = {}
    for done in levels:
        counts[done.level.repeat] = counts.get(done.level.repeat, 0) + 1
    complete = [repeat for repeat, count in counts.items() if count >= loads]
    return len(complete)


def _spent(repeats: int, of: int, confidence: float) -> float:
    """Return how much of the allowed error may be spent by a look after so many repeats."""
    normal = NormalDist()
    z = normal.inv_cdf(0.5 + confidence / 2)
    return 2 - 2 * normal.cdf(z / math.sqrt(repeats / of))
