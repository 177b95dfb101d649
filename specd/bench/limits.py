"""Figures that must not get worse, whatever the deciding one does: [services.NAME.policy.limits]."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specd.bench.plan import LevelDone, Sample
from specd.bench.summary import percentile
from specd.settings import Policy

__all__ = ["broken_limit"]

_LEAST = 6


def _p95(key: str) -> Callable[[Sequence[Sample]], float | None]:
    def read(samples: Sequence[Sample]) -> float | None:
        values = [value for sample in samples if not sample.error and (value := getattr(sample, key)) is not None]
        return percentile(values, 0.95) if len(values) >= _LEAST else None

    return read


# Milliseconds, all of them; a limit is how much longer they may take.
_TIMES: Mapping[str, tuple[str, Callable[[Sequence[Sample]], float | None]]] = {
    "ttft_p95": ("TTFT (95th percentile)", _p95("ttft_ms")),
    "tpot_p95": ("TPOT (95th percentile)", _p95("tpot_ms")),
    "e2e_p95": ("the whole answer (95th percentile)", _p95("e2e_ms")),
}


def broken_limit(baseline: Sequence[LevelDone], candidate: Sequence[LevelDone], policy: Policy) -> str:
    """Return in words the first limit that the candidate breaks at any level, "" for none."""
    limits: Mapping[str, Any] = policy.limits
    for load in sorted({done.level.load for done in candidate}):
        sides = [
            [sample for done in levels if done.level.load == load for sample in done.samples]
            for levels in (baseline, candidate)
        ]
        name = next(done.level.name for done in candidate if done.level.load == load)
        if not all(sides):
            continue
        if (most := limits.get("error_rate")) is not None:
            before, after = (sum(1 for sample in side if sample.error) / len(side) for side in sides)
            if after - before > float(most):
                return (
                    f"{after:.1%} of the requests failed at {name}, {before:.1%} before (limit {float(most):.1%} more)"
                )
        for key, (title, read) in _TIMES.items():
            if (most := limits.get(key)) is None:
                continue
            early, late = read(sides[0]), read(sides[1])
            if early and late and late / early - 1 > float(most):
                return f"{title} takes {late / early - 1:.0%} longer at {name} (limit {float(most):.0%})"
    return ""
