"""The trial's side of the guard: what hangs gives way, what fails is said, nothing outlives the total deadline."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from specd import clock
from specd import companions as companions_module
from specd.companions import Companions
from specd.errors import BadAnswer, FileProblem, HostUnreachable, SpecdError
from specd.phases.context import Context
from specd.phases.guard import arm_guard, disarm_guard, fired_step, guard_json, guard_left_s, rearm_guard, renew_guard
from specd.phases.lease import Lease, lease_check
from specd.phases.step import Step
from specd.services.service import ArmedGuard, Claim, GuardPlan
from specd.settings import Deadlines, GuardSettings, ServiceSettings
from states.events import Event, GuardChanged
from states.table import State

QUICK = GuardSettings(lease_s=1.0, renew_s=0.01)
PATIENCE_S = 20.0


class OneGuard:
    """A host with one guard on it, and what was done to it."""

    def __init__(self) -> None:
        self.there: ArmedGuard | None = None
        self.leases: list[float] = []
        self.did: list[str] = []
        self.claiming: Callable[[], Awaitable[None]] | None = None
        self.looking: Callable[[], Awaitable[None]] | None = None

    async def arm_guard(self, plan: GuardPlan) -> None:
        self.did.append("arm")
        self.leases.append(plan.lease_s)
        if self.there is None or self.there.state != "fired":
            self.there = ArmedGuard(trial=plan.trial, state="armed", remaining_s=plan.lease_s)

    async def disarm_guard(self, trial: str, *, fired_too: bool = True) -> bool:
        if self.there is not None and self.there.state == "fired" and not fired_too:
            return False
        self.did.append("disarm")
        self.there = None
        return True

    async def guard(self, trial: str) -> ArmedGuard | None:
        if self.looking is not None:
            await self.looking()
        return self.there

    async def claim(self, claim: Claim, *, take: bool = False) -> Claim | None:
        if self.claiming is not None:
            await self.claiming()
        return None

    async def release_claim(self, unit: str, installation: str) -> None:
        self.did.append("release")

    def fire(self, *, is_acting: bool = False) -> None:
        self.there = ArmedGuard(trial="t", state="fired", remaining_s=0.0, is_acting=is_acting)


class Trial:
    """A context with facts in memory; `state` is what its machine is in."""

    def __init__(self, guard: GuardSettings = QUICK, deadlines: Deadlines | None = None) -> None:
        self.host = OneGuard()
        self.state = State.LOADING
        self.events: list[Event] = []
        self.facts: dict[str, Any] = {}
        service = ServiceSettings(
            name="s", host="h", unit="llm.service", guard=guard, deadlines=deadlines or Deadlines()
        )
        self.ctx = Context(
            row=cast(Any, SimpleNamespace(id="t")),
            service=service,
            real_service=service,
            bench=cast(Any, None),
            host=cast(Any, SimpleNamespace(name="gpu1")),
            manager=cast(Any, self.host),
            benchmark=cast(Any, SimpleNamespace(close=self._close)),
            store=cast(Any, self),
            bus=cast(Any, SimpleNamespace(emit=self.events.append)),
            deadline=cast(Any, None),
            machine_state=lambda: self.state,
        )
        cast(Any, self.host).candidate_name = lambda trial: f"specd-{trial}.service"
        self.installation = "i"
        self.steps: list[Step] = []

    async def _close(self) -> None: ...

    def fact(self, trial: str, key: str) -> Any:
        return self.facts.get(key)

    def put_fact(self, trial: str, key: str, value: Any) -> None:
        self.facts[key] = value

    @property
    def told(self) -> list[str]:
        """What was told of the guard's states."""
        return [event.state for event in self.events if isinstance(event, GuardChanged)]

    @property
    def notes(self) -> list[tuple[str, str]]:
        return [(event.level, event.text) for event in self.events if hasattr(event, "level")]

    def passed(self, seconds: float) -> None:
        """Let time go by since the trial's restart was entered, and since the last renewal."""
        for key in ("since.restart", "guard"):
            since = self.facts[key]["since"] if key == "guard" else self.facts[key]
            since["boot_s"] -= seconds
        self.ctx.guard_renewed_at = float("-inf")

    def interrupt(self, step: Step, *, only_in: Any = tuple(State)) -> bool:
        if self.state not in only_in:
            return False
        self.steps.append(step)
        return True


async def armed(**settings: Any) -> Trial:
    """Return a trial in its load that has armed its guard."""
    trial = Trial(**settings)
    trial.state = State.RESTART
    trial.ctx.put("since.restart", {"entry": 0, **clock.mark()})
    assert not await arm_guard(trial.ctx)
    trial.state = State.LOADING
    trial.ctx.guard_renewed_at = float("-inf")
    return trial


async def until(test: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not test():
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def quick_retry() -> Iterator[None]:
    with patch.object(companions_module, "_RETRY_S", 0.01):
        yield


async def test_past_the_total_deadline_a_candidates_lease_runs_out_whoever_renews() -> None:
    trial = await armed(guard=GuardSettings(lease_s=900, renew_s=60), deadlines=Deadlines(total_s=1000))
    for seconds in (500, 400, 90, 60):
        trial.passed(seconds)
        await renew_guard(trial.ctx)
    left = [900, 560, 160, 70, 10]
    assert trial.host.leases == pytest.approx(left, abs=5)
    trial.passed(20)
    assert not await renew_guard(trial.ctx)
    assert len(trial.host.leases) == 5, "a lease was renewed past the total deadline and its margin"
    trial.state = State.ROLLBACK
    await rearm_guard(trial.ctx)
    trial.ctx.guard_renewed_at = float("-inf")
    await renew_guard(trial.ctx)
    assert trial.host.leases[5:] == [900, 900], "on the way back nothing shortens it"


async def test_an_extension_moves_the_total_deadline_too() -> None:
    trial = await armed(guard=GuardSettings(lease_s=900, renew_s=60), deadlines=Deadlines(total_s=1000))
    trial.passed(1000)
    trial.ctx.put("extended.loading", 600.0)
    await renew_guard(trial.ctx)
    assert trial.host.leases[1] == pytest.approx(660, abs=5)
    assert trial.ctx.candidate_left_s() == pytest.approx(600, abs=5)


async def test_one_that_has_fired_is_told_once_and_ends_the_candidate() -> None:
    trial = await armed()
    trial.host.fire()
    assert await renew_guard(trial.ctx)
    assert await renew_guard(trial.ctx)
    trial.state = State.RESTART
    assert await arm_guard(trial.ctx), "what a guard has ended is not begun again"
    assert trial.host.did == ["arm"]
    assert trial.told == ["armed", "fired"]


async def test_on_the_way_back_it_is_armed_afresh_but_not_cut_short_in_its_work() -> None:
    trial = await armed()
    trial.state = State.ROLLBACK
    trial.host.fire(is_acting=True)
    await rearm_guard(trial.ctx)
    assert not await renew_guard(trial.ctx)
    assert trial.host.did == ["arm"]
    trial.host.fire()
    trial.ctx.guard_renewed_at = float("-inf")
    assert not await renew_guard(trial.ctx)
    assert trial.host.did == ["arm", "disarm", "arm"]
    assert trial.told == ["armed", "fired", "armed"]


async def test_what_has_fired_is_not_taken_away_from_a_candidate_to_be_kept() -> None:
    trial = await armed()
    trial.host.fire(is_acting=True)
    assert not await disarm_guard(trial.ctx, fired_too=False)
    assert trial.facts["guard"]["state"] == "fired"
    assert trial.told == ["armed", "fired"]


async def test_a_renewal_that_hangs_gives_way_to_the_trials_own_work() -> None:
    trial = await armed()
    hanging = asyncio.Event()

    async def hang() -> None:
        hanging.set()
        await asyncio.Event().wait()

    trial.host.looking = hang
    companions = Companions(trial.ctx, trial.interrupt)
    await companions.enter(State.RESTART)
    async with asyncio.timeout(PATIENCE_S):
        await hanging.wait()
        trial.host.looking = None
        assert await disarm_guard(trial.ctx)
    assert trial.host.there is None
    await until(lambda: trial.ctx.renewal is not None and trial.ctx.renewal.done())
    assert trial.steps == []
    await companions.leave()
    assert trial.host.did == ["arm", "disarm"], "a renewal has crossed the disarming"


@pytest.mark.parametrize("trouble", [HostUnreachable("no answer"), BadAnswer("no JSON")])
async def test_failing_renewals_are_said_with_the_time_that_is_left(trouble: SpecdError) -> None:
    trial = await armed(guard=GuardSettings(lease_s=900, renew_s=0.01))

    async def fail() -> None:
        raise trouble

    trial.host.looking = fail
    companions = Companions(trial.ctx, trial.interrupt)
    await companions.enter(State.RESTART)
    await until(lambda: len(trial.notes) == 1)
    trial.facts["guard"]["since"]["boot_s"] -= 600
    await until(lambda: len(trial.notes) == 2)
    trial.facts["guard"]["since"]["boot_s"] -= 600
    await until(lambda: len(trial.notes) == 3)
    trial.host.looking = None
    await until(lambda: len(trial.notes) == 4)
    await companions.leave()
    levels, words = zip(*trial.notes, strict=True)
    assert levels == ("warning", "warning", "warning", "info")
    assert all("guard on gpu1 could not be renewed" in text and trouble.what in text for text in words[:3])
    assert "brings the baseline back in 15 min 00 s" in words[0]
    assert "brings the baseline back in 4 min 59 s" in words[1] or "in 5 min 00 s" in words[1]
    assert "its lease has run out" in words[2]
    assert trial.steps == []


async def test_a_claim_that_cant_be_written_does_not_keep_the_guard_from_its_renewal() -> None:
    trial = await armed()
    trial.ctx.claim_is_ours = True

    async def full() -> None:
        raise FileProblem("no space", path="/run/x", reason="no-space")

    trial.host.claiming = full
    companions = Companions(trial.ctx, trial.interrupt)
    await companions.enter(State.RESTART)
    await until(lambda: "renewed" in trial.told)
    await companions.leave()


async def test_a_firing_that_comes_with_a_rollback_is_no_end_of_the_renewals() -> None:
    trial = await armed()
    companions = Companions(trial.ctx, trial.interrupt)

    async def moved() -> None:
        trial.state = State.ROLLBACK

    trial.host.fire()
    trial.host.looking = moved
    await companions.enter(State.RESTART)
    await until(lambda: trial.host.did == ["arm", "disarm", "arm"])
    await companions.leave()
    assert trial.steps == []


def test_the_step_of_a_fired_guard_says_what_it_did() -> None:
    step = fired_step()
    assert step.failure is not None
    assert step.failure.kind == "guard"


async def test_what_is_left_is_shown_by_a_clock_that_no_step_moves() -> None:
    trial = await armed(guard=GuardSettings(lease_s=900, renew_s=60))
    guard = trial.facts["guard"]
    guard["since"]["boot_s"] -= 100
    guard["until"] = "2001-01-01T00:00:00.000Z"
    assert guard_left_s(guard) == pytest.approx(800, abs=5)
    shown = guard_json(guard)
    assert shown is not None
    assert set(shown) == {"state", "until", "lease_s", "remaining_s"}
    assert guard_json({"state": "fired", "at": "x"}) == {"state": "fired", "at": "x"}
    assert guard_json(None) is guard_left_s(None) is None
    # Stored by a daemon that kept no instant.
    assert guard_left_s({"state": "armed", "until": "2001-01-01T00:00:00.000Z", "lease_s": 9}) == 0


@pytest.mark.parametrize(
    ("lease_s", "is_local", "status"),
    [
        (900, False, "passed"),
        (104, False, "warning"),
        (105, False, "passed"),
        (14, True, "warning"),
        (15, True, "passed"),
    ],
)
def test_a_lease_too_short_for_a_dead_link_and_a_stop_is_warned_of(lease_s: float, is_local: bool, status: str) -> None:
    guard = GuardSettings(lease_s=lease_s, renew_s=5)
    check = lease_check(ServiceSettings(name="s", host="h", unit="u.service", guard=guard), is_local=is_local)
    assert check.status.value == status
    assert ("lease_s of" in check.fix) is (status == "warning")


def test_nothing_is_said_of_a_guard_that_is_not_armed() -> None:
    trial = Trial()
    lease = Lease(trial.ctx)
    lease.not_renewed(HostUnreachable("no answer"))
    lease.renewed()
    assert trial.notes == []
