"""How much faster, and how sure: an interval for the mean of paired log ratios that are not independent.

The effect of a pair is log(speed of candidate / speed of baseline), so it is 0 for no difference and changes sign with
the sides. Pairs that share a prompt are correlated (one prompt drafts well, another badly), and pairs that share a
repeat are (both ran in the same minutes). The variance of the mean therefore is that of the two-way clustered estimator
of Cameron, Gelbach and Miller (Journal of Business & Economic Statistics 29, 2011), without the term it takes away,
which errs on the careful side (three repeats are few, and the difference of two rough variances is often negative):

    V = V_prompt + V_repeat,    V_g = G/(G-1) * sum over groups g of (sum of residuals in g)^2 / N^2

V_repeat is left out below 2 repeats, where it can't be known. The interval is mean ± t * sqrt(V) with the degrees of
freedom of Welch and Satterthwaite: V^2 / (V_prompt^2 / (prompts-1) + V_repeat^2 / (repeats-1)).
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from specd.bench.student import quantile

__all__ = ["Effect", "Pair", "clustered", "simple"]


@dataclass(frozen=True, slots=True)
class Pair:
    """One request on both sides: its effect, and what it shares with others."""

    effect: float
    prompt: str
    repeat: int


@dataclass(frozen=True, slots=True)
class Effect:
    """A mean of log ratios with its interval; `pairs` is how many there were."""

    mean: float
    low: float
    high: float
    pairs: int


def clustered(pairs: Sequence[Pair], confidence: float) -> Effect | None:
    """Return the effect over pairs by prompt and repeat; None below 2 prompts, where nothing can be said of doubt."""
    prompts = {pair.prompt for pair in pairs}
    repeats = {pair.repeat for pair in pairs}
    if len(prompts) < 2:
        return None
    mean = math.fsum(pair.effect for pair in pairs) / len(pairs)
    residuals = [pair.effect - mean for pair in pairs]
    by_prompt = _variance(residuals, (pair.prompt for pair in pairs), len(prompts))
    by_repeat = 0.0
    if len(repeats) > 1:
        by_repeat = _variance(residuals, (pair.repeat for pair in pairs), len(repeats))
    variance = by_prompt + by_repeat
    if variance == 0:
        return Effect(mean, mean, mean, len(pairs))
    doubt = by_prompt**2 / (len(prompts) - 1) + (by_repeat**2 / (len(repeats) - 1) if by_repeat else 0.0)
    return _interval(mean, variance, variance**2 / doubt, confidence, len(pairs))


def simple(effects: Sequence[float], confidence: float) -> Effect | None:
    """Return the effect over independent values (one for each repeat); None below 2."""
    count = len(effects)
    if count < 2:
        return None
    mean = math.fsum(effects) / count
    variance = math.fsum((effect - mean) ** 2 for effect in effects) / (count - 1) / count
    if variance == 0:
        return Effect(mean, mean, mean, count)
    return _interval(mean, variance, count - 1, confidence, count)


def _interval(mean: float, variance: float, df: float, confidence: float, pairs: int) -> Effect:
    half = quantile(0.5 + confidence / 2, df) * math.sqrt(variance)
    return Effect(mean, mean - half, mean + half, pairs)


def _variance(residuals: Sequence[float], groups: Iterable[Hashable], count: int) -> float:
    sums: dict[Hashable, float] = {}
    for residual, group in zip(residuals, groups, strict=True):
        sums[group] = sums.get(group, 0.0) + residual
    return count / (count - 1) * math.fsum(each * each for each in sums.values()) / len(residuals) ** 2
