"""An armed guard acts whatever becomes of the supervisor; its sentinel stands for that, and leaves nothing behind."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from specd.errors import HostUnreachable
from specd.services.service import GuardPlan
from tests.supervised import DEAF, SLEEPER, Rig, is_alive


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


def sentinel_of(rig: Rig) -> int:
    return int((rig.directory / "sentinel.pid").read_text())


async def sentinel_after(rig: Rig, before: int = 0) -> int:
    """Wait until a sentinel stands that is not `before`; return its pid."""
    async with asyncio.timeout(20):
        while True:
            with suppress(FileNotFoundError, ValueError):
                if (pid := sentinel_of(rig)) != before and is_alive(pid):
                    return pid
            await asyncio.sleep(0.02)


async def test_a_killed_sentinel_has_a_successor_that_does_its_work(rig: Rig) -> None:
    rig.write("base", SLEEPER)
    rig.boot()
    await rig.manager.arm_guard(GuardPlan(trial="t", candidate="cand.service", baseline="base.service", lease_s=600))
    first = await sentinel_after(rig)
    os.kill(first, signal.SIGKILL)
    second = await sentinel_after(rig, first)
    rig.crash()
    await rig.back()
    # The one that has started the supervisor is not its child; its end is noticed all the same.
    os.kill(second, signal.SIGKILL)
    third = await sentinel_after(rig, second)
    await rig.manager.disarm_guard("t")
    rig.wait_gone(third)
    await rig.end_any()
    rig.boot()
    assert await rig.manager.guard("t") is None


async def test_what_has_fired_is_not_disarmed_for_a_candidate_to_be_kept(rig: Rig) -> None:
    rig.write("base", SLEEPER)
    rig.write("cand", DEAF, stop_timeout_s=1)
    rig.boot()
    await rig.manager.start("cand.service")
    await rig.printed("cand.service", "up")
    await rig.manager.arm_guard(GuardPlan(trial="t", candidate="cand.service", baseline="base.service", lease_s=0.1))
    await rig.until("cand.service", lambda status: status.active == "deactivating")
    acting = await rig.manager.guard("t")
    assert acting is not None
    assert (acting.state, acting.is_acting) == ("fired", True)
    assert not await rig.manager.disarm_guard("t", fired_too=False)
    await rig.until("base.service", lambda status: status.active == "active")
    fired = await rig.manager.guard("t")
    assert fired is not None
    assert not fired.is_acting
    assert await rig.manager.disarm_guard("t")


async def test_a_killed_supervisor_is_started_again_while_a_guard_is_armed_and_honours_it(rig: Rig) -> None:
    rig.write("base", SLEEPER)
    rig.write("cand", DEAF, stop_timeout_s=0.2)
    rig.boot()
    await rig.manager.start("cand.service")
    armed_at = time.monotonic()
    await rig.manager.arm_guard(GuardPlan(trial="t", candidate="cand.service", baseline="base.service", lease_s=2.0))
    rig.crash()
    await rig.back()
    await rig.until("base.service", lambda status: status.active == "active")
    assert time.monotonic() - armed_at > 2
    fired = await rig.manager.guard("t")
    assert fired is not None
    assert fired.state == "fired"
    sentinel = sentinel_of(rig)
    async with asyncio.timeout(10):
        while is_alive(sentinel):
            await asyncio.sleep(0.05)
    await rig.end_any()
    rig.boot()
    assert await rig.manager.guard("t") == fired


async def test_a_supervisor_that_hangs_over_a_lease_is_killed(rig: Rig) -> None:
    rig.write("base", SLEEPER)
    pid = rig.boot()
    await rig.manager.arm_guard(GuardPlan(trial="t", candidate="cand.service", baseline="base.service", lease_s=1.0))
    os.kill(pid, signal.SIGSTOP)
    async with asyncio.timeout(40):
        while is_alive(pid):
            await asyncio.sleep(0.1)
    await rig.back()
    await rig.until("base.service", lambda status: status.active == "active")


async def test_a_supervisor_that_was_ended_in_order_stays_away_and_no_sentinel_is_left(rig: Rig) -> None:
    rig.write("base", SLEEPER)
    rig.boot()
    await rig.manager.arm_guard(GuardPlan(trial="t", candidate="cand.service", baseline="base.service", lease_s=600))
    sentinel = await sentinel_after(rig)
    rig.end()
    async with asyncio.timeout(10):
        while is_alive(sentinel):
            await asyncio.sleep(0.05)
    with pytest.raises(HostUnreachable):
        await rig.manager.guard("t")


async def test_after_a_reboot_of_the_machine_a_guard_fires_at_once(rig: Rig) -> None:
    rig.write("base", SLEEPER)
    rig.boot()
    await rig.manager.arm_guard(GuardPlan(trial="t", candidate="cand.service", baseline="base.service", lease_s=600))
    os.kill(await sentinel_after(rig), signal.SIGKILL)
    rig.crash()
    state = json.loads((rig.directory / "state.json").read_text())
    (rig.directory / "state.json").write_text(json.dumps(state | {"boot": "another"}))
    rig.boot()
    await rig.until("base.service", lambda status: status.active == "active")
