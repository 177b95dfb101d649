"""The dead-man's switch: when a lease runs out unrenewed, stop the candidate and start the baseline.

A guard outlives its supervisor: it is stored with the boot-time clock's moment at which it fires, so a restarted
supervisor honours what is left. After a reboot of the machine it fires at once, because nobody knows how long it took.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from specd.supervisor.service import Service

__all__ = ["Guard", "Guards"]

KILL_WAIT_S = 15.0


@dataclass(slots=True)
class Guard:
    """One trial's guard; `fires_at` is by the boot-time clock in seconds, `done` says that a fired one has acted."""

    trial: str
    candidate: str
    baseline: str
    fires_at: float
    state: str = "armed"
    done: bool = False

    @property
    def remaining_s(self) -> float:
        """Seconds until it fires, 0 once it has."""
        return max(0.0, self.fires_at - boot_time()) if self.state == "armed" else 0.0


def boot_time() -> float:
    """Return seconds since the machine's boot, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Guards:
    """All guards. `find` gives the service of a unit's name or None; `persist` stores them, and says whether it did;
    `post_sentinel` sees to it that the process that outlives ours stands."""

    def __init__(
        self, find: Callable[[str], Service | None], persist: Callable[[], bool], post_sentinel: Callable[[], None]
    ) -> None:
        self._find = find
        self._persist = persist
        self._post_sentinel = post_sentinel
        self._guards: dict[str, Guard] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._acting: dict[str, asyncio.Task[None]] = {}

    def arm(self, trial: str, candidate: str, baseline: str, lease_s: float) -> bool:
        """Arm or renew; a fired one stays fired. False when a new guard could not be stored, and then there is none."""
        known = self._guards.get(trial)
        if known is not None and known.state == "fired":
            return True
        self._guards[trial] = Guard(trial, candidate, baseline, boot_time() + lease_s)
        if not self._persist() and known is None:
            del self._guards[trial]
            return False
        if known is None:
            self._post_sentinel()
        self._watch(trial)
        return True

    def renew(self, trial: str, lease_s: float) -> Guard | None:
        """Give an armed guard a new lease; None when there is no such guard."""
        guard = self._guards.get(trial)
        if guard is not None and guard.state == "armed":
            self.arm(trial, guard.candidate, guard.baseline, lease_s)
        return self._guards.get(trial)

    def disarm(self, trial: str) -> None:
        """Take a guard away, fired or not; what a fired one has begun, it no longer goes on with."""
        self._guards.pop(trial, None)
        if (timer := self._timers.pop(trial, None)) is not None:
            timer.cancel()
        if (task := self._acting.pop(trial, None)) is not None:
            task.cancel()
        self._persist()

    @property
    def are_waiting(self) -> bool:
        """True while a guard is armed, or has fired and still acts."""
        return not all(guard.done for guard in self._guards.values())

    def get(self, trial: str) -> Guard | None:
        """Look at a guard."""
        return self._guards.get(trial)

    def as_json(self) -> list[dict[str, Any]]:
        """Return all guards for the state file."""
        return [asdict(guard) for guard in self._guards.values()]

    def restore(self, stored: list[dict[str, Any]], *, same_boot: bool) -> None:
        """Take up the guards of an earlier supervisor: what is left of a lease, and what was begun."""
        for item in stored:
            guard = Guard(**item)
            if not same_boot:
                guard.fires_at = boot_time()
            self._guards[guard.trial] = guard
            if not guard.done:
                self._watch(guard.trial)
                self._post_sentinel()

    async def close(self) -> None:
        """End timers and tasks; guards stay stored."""
        for timer in self._timers.values():
            timer.cancel()
        for task in self._acting.values():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _watch(self, trial: str) -> None:
        if (timer := self._timers.pop(trial, None)) is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[trial] = loop.call_later(self._guards[trial].remaining_s, self._due, trial)

    def _due(self, trial: str) -> None:
        guard = self._guards[trial]
        if guard.remaining_s > 0:
            self._watch(trial)
            return
        guard.state = "fired"
        self._persist()
        self._acting[trial] = asyncio.create_task(self._act(guard))

    async def _act(self, guard: Guard) -> None:
        candidate = self._find(guard.candidate)
        if candidate is not None:
            candidate.stop()
            limit_s = candidate.file.stop_timeout_s + KILL_WAIT_S
            # A process that not even SIGKILL ends must not keep the baseline down.
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await candidate.down.wait()
            candidate.clear_failure()
        baseline = self._find(guard.baseline)
        if baseline is not None:
            baseline.clear_failure()
            baseline.start()
        guard.done = True
        self._acting.pop(guard.trial, None)
        self._persist()
