"""The verdict: is the candidate faster than the baseline, by how much, and how sure is that?

Every effect is a relative speed change: +0.10 means that the candidate is 10 % faster, whatever the metric. For times
(tpot, ttft) the speed of a request is 1 / time, and requests are paired by prompt and repeat; for output_tok_s it is
the throughput of a level, paired by repeat. effect.py says how the interval is made.

The rule, with m = log(1 + margin) and everything in log ratios, so that swapping the sides swaps the verdict:

- better or worse: the whole interval lies on one side of 0, and the estimate is beyond the margin;
- equivalent: the whole interval lies within ± m;
- inconclusive: neither, or too few pairs.

So without any real difference better and worse together come up no more often than 1 - confidence (less, as the
estimate must pass the margin too), and a difference that is real but too small to matter decides nothing.

Nothing is judged (invalid) when requests failed more often than the policy allows or a level was given up on either
side, at any level; when one side's tokens are counted and the other's estimated; when the sides used different
endpoints; or when the client's own delays are not small against what it measured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specd.bench.effect import Effect, Pair, clustered, simple
from specd.bench.limits import broken_limit
from specd.bench.plan import Level, LevelDone, Sample
from specd.bench.sequential import Look
from specd.bench.summary import percentile
from specd.bench.workload import base_id
from specd.settings import Policy

__all__ = ["METRICS", "Comparison", "Result", "compare"]

METRICS = ("tpot", "ttft", "output_tok_s")
MIN_PAIRS = 6
UNIT = "relative speed change"
_NAMES = {"tpot": "TPOT", "ttft": "TTFT", "output_tok_s": "output tok/s"}
_UNITS = {"tpot": "ms", "ttft": "ms", "output_tok_s": "tok/s"}
_CLIENT_SHARE = 0.1
_LENGTH_CHANGE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One metric at one concurrency. `estimate`, `low`, `high` as speed change; `baseline` and `candidate` are medians
    of the metric itself (ms or tok/s)."""

    concurrency: int
    metric: str
    outcome: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0
    baseline: float | None = None
    candidate: float | None = None
    reason: str = ""
    rate: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form; the load stands one level above."""
        shown = ("outcome", "estimate", "low", "high", "pairs", "baseline", "candidate", "reason")
        return {"unit": _UNITS[self.metric], **{name: getattr(self, name) for name in shown}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The verdict as a whole, and each metric at each level."""

    metric: str
    level: int
    outcome: str
    reason: str
    margin: float
    confidence: float
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0
    notes: tuple[str, ...] = ()
    look: Look | None = None
    results: tuple[Result, ...] = field(default=(), repr=False)

    def as_json(self) -> dict[str, Any]:
        """Return what is stored and shown."""
        levels: dict[tuple[float, int], dict[str, Any]] = {}
        for result in self.results:
            load = {"concurrency": result.concurrency, "rate": result.rate}
            entry = levels.setdefault((result.rate, result.concurrency), {**load, "metrics": {}})
            entry["metrics"][result.metric] = result.as_json()
        return {
            "metric": self.metric,
            "level": self.level,
            "estimate": self.estimate,
            "low": self.low,
            "high": self.high,
            "unit": UNIT,
            "margin": self.margin,
            "confidence": self.confidence,
            "pairs": self.pairs,
            "look": {"number": self.look.number, "of": self.look.of} if self.look else None,
            "outcome": self.outcome,
            "reason": self.reason,
            "notes": list(self.notes),
            "levels": [levels[load] for load in sorted(levels)],
        }


def compare(
    baseline: Sequence[LevelDone], candidate: Sequence[LevelDone], policy: Policy, look: Look | None = None
) -> Comparison:
    """Judge by the policy; never raises for what was measured, says invalid or inconclusive instead.

    `look` is which of several looks this is; without one the policy's confidence is that of the intervals.
    """
    if look is not None:
        policy = replace(policy, confidence=look.confidence)
    ours, theirs = _grouped(candidate), _grouped(baseline)
    loads = sorted({*ours} & {*theirs}, key=lambda load: (load[1], load[0]))
    results = tuple(_judge(metric, theirs[load], ours[load], policy) for load in loads for metric in METRICS)
    level = policy.level or min((concurrency for concurrency, rate in {*ours, *theirs} if not rate), default=0)
    frame: dict[str, Any] = {
        "metric": policy.metric,
        "level": level,
        "margin": policy.margin,
        "confidence": policy.confidence,
        "look": look,
    }
    decisive = next((r for r in results if (r.concurrency, r.metric) == (level, policy.metric)), None)
    flaw = _flaw(baseline, candidate, policy)
    notes = tuple(_notes(baseline, candidate))
    if decisive is None:
        reason = flaw or f"nothing to compare at concurrency {level}: it was not measured on both sides"
        return Comparison(**frame, outcome="invalid", reason=reason, notes=notes, results=results)
    others = "" if flaw else _dissent(decisive, results)
    outcome, reason = decisive.outcome, decisive.reason + others
    if outcome in {"better", "equivalent"} and (broken := broken_limit(baseline, candidate, policy)):
        outcome, reason = "worse", f"{broken}, whatever else: {reason}"
    return Comparison(
        **frame,
        outcome="invalid" if flaw else outcome,
        reason=flaw or reason,
        estimate=decisive.estimate,
        low=decisive.low,
        high=decisive.high,
        pairs=decisive.pairs,
        notes=notes,
        results=results,
    )


def _judge(metric: str, baseline: list[LevelDone], candidate: list[LevelDone], policy: Policy) -> Result:
    level = baseline[0].level
    medians = (_median(metric, baseline), _median(metric, candidate))
    frame: dict[str, Any] = {
        "concurrency": level.concurrency, "rate": level.rate, "metric": metric,
        "baseline": medians[0], "candidate": medians[1],
    }  # fmt: skip
    flaw = _mixture(metric, baseline, candidate) or _client_bound(metric, baseline, candidate)
    if flaw:
        return Result(**frame, outcome="invalid", reason=f"{flaw} at {level.name}")
    effect, pairs = _effect(metric, baseline, candidate, policy.confidence)
    place = f"in {_NAMES[metric]} at {level.name}"
    if effect is None or (metric != "output_tok_s" and pairs < MIN_PAIRS):
        reason = f"too little to judge {place}: {_count(metric, pairs)}"
        return Result(**frame, outcome="inconclusive", pairs=pairs, reason=reason)
    outcome = _verdict(effect, policy.margin)
    words = f"{_sentence(effect, policy)} {place}, {_count(metric, pairs)}"
    if outcome == "equivalent":
        words = f"no difference beyond the margin of {policy.margin * 100:g} %: {words}"
    elif outcome == "inconclusive":
        words = f"not sure enough for a margin of {policy.margin * 100:g} %: {words}"
    return Result(
        **frame,
        outcome=outcome,
        estimate=math.expm1(effect.mean),
        low=math.expm1(effect.low),
        high=math.expm1(effect.high),
        pairs=pairs,
        reason=words,
    )


def _verdict(effect: Effect, margin: float) -> str:
    limit = math.log1p(margin)
    if effect.low > 0 and effect.mean > limit:
        return "better"
    if effect.high < 0 and effect.mean < -limit:
        return "worse"
    if -limit <= effect.low and effect.high <= limit:
        return "equivalent"
    return "inconclusive"


def _effect(
    metric: str, baseline: list[LevelDone], candidate: list[LevelDone], confidence: float
) -> tuple[Effect | None, int]:
    if metric == "output_tok_s":
        before, after = _throughputs(baseline), _throughputs(candidate)
        shared = [math.log(after[repeat] / before[repeat]) for repeat in sorted({*before} & {*after})]
        return simple(shared, confidence), len(shared)
    pairs = _pairs(metric, baseline, candidate)
    return clustered(pairs, confidence), len(pairs)


def _pairs(metric: str, baseline: list[LevelDone], candidate: list[LevelDone]) -> list[Pair]:
    before, after = _times(metric, baseline), _times(metric, candidate)
    return [Pair(math.log(before[key] / after[key]), base_id(key[1]), key[0]) for key in sorted(before) if key in after]


def _times(metric: str, levels: list[LevelDone]) -> dict[tuple[int, str], float]:
    found = {}
    for sample in _good(levels):
        value = sample.tpot_ms if metric == "tpot" else sample.ttft_ms
        if value is not None and value > 0:
            found[sample.repeat, sample.prompt_id] = value
    return found


def _throughputs(levels: list[LevelDone]) -> dict[int, float]:
    found = {}
    for level in levels:
        tokens = sum(sample.tokens_out or 0 for sample in _good([level]))
        if tokens and level.wall_s > 0:
            found[level.level.repeat] = tokens / level.wall_s
    return found


def _median(metric: str, levels: list[LevelDone]) -> float | None:
    values = _throughputs(levels) if metric == "output_tok_s" else _times(metric, levels)
    return percentile(list(values.values()), 0.5) if values else None


def _mixture(metric: str, baseline: list[LevelDone], candidate: list[LevelDone]) -> str:
    kinds = {sample.exact for sample in _good([*baseline, *candidate]) if sample.ttft_ms is not None}
    if metric != "ttft" and len(kinds) > 1:
        return "some token counts are the server's and some are estimated, which can't be compared"
    return ""


def _client_bound(metric: str, baseline: list[LevelDone], candidate: list[LevelDone]) -> str:
    """Say so when the client limited a level, or its event loop was late by more than a tenth of what it measured."""
    for side, levels in (("baseline", baseline), ("candidate", candidate)):
        if bound := next((level.client_bound for level in levels if level.client_bound), ""):
            return f"client-bound: of the {side}, {bound}"
        spans = []
        for sample in _good(levels):
            if sample.ttft_ms is not None and sample.e2e_ms is not None:
                spans.append(sample.ttft_ms if metric == "ttft" else sample.e2e_ms - sample.ttft_ms)
        lag = max(level.loop_lag_p99_ms for level in levels)
        if spans and lag > _CLIENT_SHARE * percentile(spans, 0.5):
            return f"client-bound: the {side}'s client was late by {lag:.1f} ms (99th percentile)"
    return ""


def _flaw(baseline: Sequence[LevelDone], candidate: Sequence[LevelDone], policy: Policy) -> str:
    """Return what makes the whole comparison void, "" for nothing."""
    endpoints = {level.endpoint for level in (*baseline, *candidate) if level.endpoint}
    if len(endpoints) > 1:
        return "the sides were measured over different endpoints (chat and plain completions)"
    for side, levels in (("baseline", baseline), ("candidate", candidate)):
        for group in _grouped(levels).values():
            name = group[0].level.name
            stopped = next((level.stopped_early for level in group if level.stopped_early), "")
            if stopped:
                return f"the {side} was given up at {name}: {stopped}"
            samples = [sample for level in group for sample in level.samples]
            failed = [sample for sample in samples if sample.error]
            if samples and len(failed) > policy.max_error_rate * len(samples):
                share = f"{len(failed)} of {len(samples)} requests to the {side} failed at {name}"
                return f"{share} ({failed[0].error})"
    return ""


def _notes(baseline: Sequence[LevelDone], candidate: Sequence[LevelDone]) -> list[str]:
    notes = []
    samples = _good([*baseline, *candidate])
    if samples and not any(sample.exact for sample in samples):
        notes.append("the server sends no usage: token counts are estimated from the length of the text")
    lengths = [_length(baseline), _length(candidate)]
    if all(lengths) and abs(math.log(lengths[1] / lengths[0])) > math.log1p(_LENGTH_CHANGE):
        notes.append(
            f"the answers differ in length ({lengths[0]:.0f} and {lengths[1]:.0f} tokens on average):"
            " read the figures per token"
        )
    routes = {level.route for level in (*baseline, *candidate) if level.route}
    if routes - {"direct"}:
        notes.append(f"measured over {' and '.join(sorted(routes))}, which adds its own delay to TTFT")
    notes += [
        f"{side}, {level.level.name}: {note}"
        for side, levels in (("baseline", baseline), ("candidate", candidate))
        for level in levels
        for note in (*level.notes, *([f"saturated: {level.saturated}"] if level.saturated else []))
    ]
    crowds = {level.level.concurrency for level in (*baseline, *candidate) if level.in_flight < level.level.concurrency}
    if crowds:
        notes.append(
            f"fewer requests than the concurrency at {', '.join(map(str, sorted(crowds)))}: it was not reached"
        )
    return notes


def _dissent(decisive: Result, results: Sequence[Result]) -> str:
    """Say in which other levels the same metric came out the other way."""
    others = {"better": ("worse",), "worse": ("better",)}.get(decisive.outcome, ("better", "worse"))
    found = [r for r in results if r.metric == decisive.metric and r is not decisive and r.outcome in others]
    return "".join(f"; but {_change(r.estimate or 0.0)} at {Level(r.concurrency, 0, r.rate).name}" for r in found)


def _sentence(effect: Effect, policy: Policy) -> str:
    ends = (math.expm1(effect.low), math.expm1(effect.high))
    if ends[0] < 0 < ends[1]:
        interval = f"{_change(ends[0])} to {_change(ends[1])}"
    else:
        near, far = sorted(abs(end) * 100 for end in ends)
        interval = f"{near:.1f} to {far:.1f} %"
    return f"{_change(math.expm1(effect.mean))} ({policy.confidence * 100:.3g} % interval {interval})"


def _change(estimate: float) -> str:
    return f"{abs(estimate) * 100:.1f} % {'faster' if estimate >= 0 else 'slower'}"


def _count(metric: str, pairs: int) -> str:
    kind = "repeat" if metric == "output_tok_s" else "pair"
    return f"{pairs} {kind}{'' if pairs == 1 else 's'}"


def _length(levels: Sequence[LevelDone]) -> float:
    counts = [sample.tokens_out for sample in _good(levels) if sample.tokens_out]
    return sum(counts) / len(counts) if counts else 0.0


def _good(levels: Sequence[LevelDone]) -> list[Sample]:
    return [sample for level in levels for sample in level.samples if not sample.error]


def _grouped(levels: Sequence[LevelDone]) -> dict[tuple[int, float], list[LevelDone]]:
    groups: dict[tuple[int, float], list[LevelDone]] = {}
    for level in levels:
        groups.setdefault(level.level.load, []).append(level)
    return groups
