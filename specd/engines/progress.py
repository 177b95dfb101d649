"""How far a start is, when it will be done, and when anything last moved: from whatever evidence there is.

Pure: it is told what was observed and when, and reads no clock. All times are monotonic seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from specd.engines.engine import Observation, Stage

__all__ = ["Estimate", "Estimator", "Reading"]

# CPU time that idle threads use up; less than this share of one core is no movement.
_CPU_NOISE = 0.02
_CPU_NOISE_S = 0.2
# Memory that heartbeats and logging move about.
_MEMORY_NOISE_BYTES = 8 * 2**20
_GPU_NOISE_MIB = 4
# Reading ends before the stage does: what follows is moving and packing what was read.
_READ_CAP = 0.98
# Without an exact count nothing says that a stage is over.
_GUESS_CAP = 0.97
_PLACE = {stage: place for place, stage in enumerate(Stage.ORDER)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What can be read from outside at one moment, summed over the unit's processes; None where the host won't tell."""

    at: float
    read_bytes: int | None = None
    rss_bytes: int | None = None
    cpu_s: float | None = None
    gpu_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """How far the present stage is: `fraction` 0..1 (None: unknown), `source` the evidence in words, `moved_at` when
    anything last moved.

    `eta_s` are the seconds to the end of the whole start; where `eta_is_whole` is false, for want of a history, to the
    end of this stage only. None: unknown. `overall` is the share of the whole start by the history's times, None
    without one.
    """

    stage: str
    fraction: float | None
    eta_s: float | None
    source: str
    moved_at: float
    eta_is_whole: bool = True
    overall: float | None = None


@dataclass(slots=True)
class _StageProgress:
    """One stage: when it began, its exact count if the log gave one, and the most that was ever shown."""

    began: float
    base: Reading | None = None
    count: tuple[float, float] | None = None
    shown: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Evidence:
    fraction: float
    source: str


class Estimator:
    """Follows one start.

    `history` holds the seconds that each stage took in this service's earlier starts (typical values);
    `weights_bytes` the size of what is loaded, 0 if not known yet (the log may tell).
    """

    def __init__(self, started: float, *, history: Mapping[str, float] | None = None, weights_bytes: int = 0) -> None:
        self._started = started
        self._history = {stage: seconds for stage, seconds in (history or {}).items() if seconds > 0}
        self._weights_bytes = weights_bytes
        self._stage = Stage.LAUNCH
        self._progress = _StageProgress(started)
        self._last: Reading | None = None
        self._moved_base: Reading | None = None
        self._moved_at = started
        self._took: dict[str, float] = {}
        self._is_finished = False
        self._overall = 0.0

    @property
    def stage(self) -> str:
        """The stage that the start is in."""
        return self._stage

    @property
    def took_s(self) -> Mapping[str, float]:
        """Seconds that each stage so far left took: what a later start's history is made of."""
        return dict(self._took)

    def observe(self, seen: Observation, at: float) -> None:
        """Take what a log line says."""
        size = seen.facts.get("checkpoint_bytes")
        if isinstance(size, int) and size > 0:
            self._weights_bytes = size
        if not seen.stage or seen.stage not in _PLACE:
            return
        if _PLACE[seen.stage] > _PLACE[self._stage]:
            self._enter(seen.stage, at)
        if seen.stage != self._stage:
            return
        if seen.done is not None and seen.total:
            self._count(seen.done, seen.total, at)
        if seen.finished:
            self._moved_at = at
            self._is_finished = self._stage == Stage.SERVER

    def read(self, reading: Reading) -> None:
        """Take a reading from outside."""
        self._last = reading
        if self._progress.base is None:
            self._progress.base = reading
        if self._moved_base is None:
            self._moved_base = reading
        elif _has_moved(self._moved_base, reading):
            self._moved_base = reading
            self._moved_at = reading.at

    def estimate(self, now: float) -> Estimate:
        """Say how far it is at this moment; within a stage the fraction never goes back."""
        progress = self._progress
        evidence = self._evidence(now)
        fraction: float | None = progress.shown or None
        source = self._sign_of_life()
        if evidence is not None:
            progress.shown = max(progress.shown, min(evidence.fraction, 1.0))
            fraction, source = progress.shown, evidence.source
        return Estimate(
            stage=self._stage,
            fraction=fraction,
            eta_s=self._eta(now, fraction),
            source=source,
            moved_at=self._moved_at,
            eta_is_whole=self._is_finished or bool(self._history),
            overall=self._share(fraction),
        )

    def _enter(self, stage: str, at: float) -> None:
        self._took[self._stage] = at - self._progress.began
        self._stage = stage
        self._progress = _StageProgress(at, base=self._last)
        self._moved_at = at

    def _count(self, done: float, total: float, at: float) -> None:
        progress = self._progress
        if progress.count is not None and progress.count[1] == total and done <= progress.count[0]:
            return
        progress.count = (done, total)
        self._moved_at = at

    def _evidence(self, now: float) -> _Evidence | None:
        """Return the best evidence for this stage: an exact count, what was read, memory, CPU time, history."""
        if self._is_finished:
            return _Evidence(1.0, "the server is up")
        if self._progress.count is not None:
            done, total = self._progress.count
            words = {Stage.WEIGHTS: "shards", Stage.CAPTURE: "graph captures"}.get(self._stage, "steps")
            counted = _Evidence(done / total, f"{words} {done:.0f}/{total:.0f}")
            if done >= total and self._stage == Stage.WEIGHTS:
                # Every shard is in, but packing and profiling follow silently: only the usual time tells.
                usual = self._from_history(now)
                fraction = max(usual.fraction, 0.5) if usual else _GUESS_CAP
                source = f"{counted.source}, {usual.source}" if usual else f"{counted.source}, not yet over"
                return _Evidence(fraction, source)
            usual = self._from_history(now)
            if self._stage == Stage.CAPTURE and done < total and usual and usual.fraction > counted.fraction:
                # Such a bar is redrawn with carriage returns: the journal has only what ended, not where it is.
                return _Evidence(usual.fraction, f"{counted.source}, {usual.source}")
            inside = self._outside()
            if inside is None or inside.fraction <= counted.fraction:
                return counted
            # Within one huge shard the count stands still and reading goes on; it may also run ahead of the count.
            return _Evidence(min(inside.fraction, (done + 0.95) / total), f"{counted.source}, {inside.source}")
        return self._outside() or self._from_history(now)

    def _outside(self) -> _Evidence | None:
        if self._stage != Stage.WEIGHTS or not self._weights_bytes:
            return None
        last, base = self._last, self._progress.base
        if last is None or base is None:
            return None
        total = self._weights_bytes
        candidates: list[_Evidence] = []
        if last.read_bytes is not None and base.read_bytes is not None:
            done = last.read_bytes - base.read_bytes
            candidates.append(_Evidence(min(done / total, _READ_CAP), f"bytes read {_part(done, total)}"))
        if last.gpu_mib is not None and base.gpu_mib is not None:
            done = (last.gpu_mib - base.gpu_mib) * 2**20
            candidates.append(_Evidence(min(done / total, _READ_CAP), f"GPU memory {_part(done, total)}"))
        if last.rss_bytes is not None and base.rss_bytes is not None:
            done = last.rss_bytes - base.rss_bytes
            candidates.append(_Evidence(min(done / total, _GUESS_CAP), f"memory {_part(done, total)}"))
        # Weights in the page cache are never read from the disk, so the one that has moved most knows most.
        best = max(candidates, key=lambda evidence: evidence.fraction, default=None)
        return best if best is not None and best.fraction > 0.005 else None

    def _from_history(self, now: float) -> _Evidence | None:
        usual = self._history.get(self._stage)
        if usual is None:
            return None
        passed = now - self._progress.began
        # Past its usual time a stage goes on creeping towards the end without reaching it.
        fraction = passed / usual * 0.9 if passed < usual else 1 - 0.1 * usual / passed
        return _Evidence(min(fraction, _GUESS_CAP), f"history: this stage took {usual:.0f} s before")

    def _sign_of_life(self) -> str:
        """Say what moves where nothing tells how far it is."""
        last, base = self._last, self._progress.base
        if last is not None and base is not None and last.cpu_s is not None and base.cpu_s is not None:
            # Compilers come and go, and take what they used with them.
            self._progress.cpu_s = used = max(self._progress.cpu_s, last.cpu_s - base.cpu_s)
            if used > _CPU_NOISE_S:
                return f"CPU time: {used:.0f} s in this stage"
        return "nothing yet"

    def _eta(self, now: float, fraction: float | None) -> float | None:
        if self._is_finished:
            return 0.0
        here = self._left_here(now, fraction)
        return None if here is None else here + self._later()

    def _share(self, fraction: float | None) -> float | None:
        """Return the share of the whole start, each stage weighted by its usual time; it never goes back."""
        total = sum(self._history.values())
        if self._is_finished or not total:
            return 1.0 if self._is_finished else None
        here = self._history.get(self._stage, 0.0)
        earlier = total - here - self._later()
        self._overall = max(self._overall, min((earlier + here * (fraction or 0.0)) / total, _GUESS_CAP))
        return self._overall

    def _later(self) -> float:
        """Return the usual seconds of the stages after this one."""
        return sum(seconds for stage, seconds in self._history.items() if _PLACE.get(stage, -1) > _PLACE[self._stage])

    def _left_here(self, now: float, fraction: float | None) -> float | None:
        """Return the seconds this stage still takes, by its own pace or, before it has one, by history."""
        passed = now - self._progress.began
        by_pace = passed * (1 - fraction) / fraction if fraction and fraction > 0.03 and self._has_pace() else None
        usual = self._history.get(self._stage)
        by_history = max(usual - passed, 0.05 * usual) if usual is not None else None
        if by_pace is None:
            return by_history
        if by_history is None or fraction is None:
            return by_pace
        # The further it is, the more its own pace says.
        return by_pace * fraction + by_history * (1 - fraction)

    def _has_pace(self) -> bool:
        """True where the share still says how fast this stage goes; evidence at its cap tells nothing any more."""
        count = self._progress.count
        if count is not None and count[0] >= count[1]:
            return False
        outside = self._outside()
        if count is not None and count[0] > 0:
            return True
        return outside is not None and outside.fraction < _GUESS_CAP


def _has_moved(before: Reading, after: Reading) -> bool:
    """True when anything moved by more than noise; a value that falls has moved too."""
    if before.cpu_s is not None and after.cpu_s is not None:
        used = after.cpu_s - before.cpu_s
        if used < 0 or used > max(_CPU_NOISE_S, _CPU_NOISE * (after.at - before.at)):
            return True
    return (
        _differs(before.read_bytes, after.read_bytes, 4096)
        or _differs(before.rss_bytes, after.rss_bytes, _MEMORY_NOISE_BYTES)
        or _differs(before.gpu_mib, after.gpu_mib, _GPU_NOISE_MIB)
    )


def _differs(before: int | None, after: int | None, noise: int) -> bool:
    return before is not None and after is not None and abs(after - before) > noise


def _part(done: int, total: int) -> str:
    """Return both in GiB; what is above the total belongs to something else."""
    return f"{_gib(min(done, total))} of {_gib(total)} GiB"


def _gib(count: int) -> str:
    gib = max(count, 0) / 2**30
    return f"{gib:.0f}" if gib >= 10 else f"{gib:.1f}"
