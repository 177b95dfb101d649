"""The dead-man's switch under a real systemd: it fires, is renewed, seen, taken away, and forgotten by a reboot."""

import asyncio
import dataclasses
import time
from collections.abc import Iterator

import pytest

from specd.errors import UnitError
from specd.services.service import GuardPlan
from specd.services.systemd import SystemdManager
from tests.host.systemd_rig import closed_hosts, manager_on, until  # noqa: F401
from tests.testhost import TestHost

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("closed_hosts")]

BASELINE = "guarded.service"
STUBBORN = "trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & while :; do sleep 1; done"


@pytest.fixture
def host(testhost: TestHost) -> Iterator[TestHost]:
    """The shared host, cleared of this module's units afterwards."""
    yield testhost
    testhost.exec(["sh", "-c", 'systemctl stop "specd-guard-*"; systemctl kill --signal=KILL "specd-*" guarded; :'])
    testhost.exec(["sh", "-c", "rm -rf /etc/systemd/system/guarded* /run/systemd/system/specd-*"])
    testhost.systemctl("disable", BASELINE, check=False)
    testhost.systemctl("daemon-reload")
    testhost.systemctl("reset-failed", check=False)


async def in_trial(
    host: TestHost, trial: str, lease_s: float, script: str = "exec sleep 1000", *, stop_timeout_s: float = 1
) -> tuple[SystemdManager, GuardPlan]:
    """Bring a host to the middle of a trial: guard armed, baseline stopped, candidate running."""
    host.write_unit(BASELINE, "[Service]\nExecStart=/bin/sleep 1000\n[Install]\nWantedBy=multi-user.target\n")
    host.systemctl("enable", "--now", BASELINE)
    manager = manager_on(host)
    base = await manager.facts(BASELINE)
    candidate = manager.render(
        base, trial=trial, installation="test", argv=("/bin/sh", "-c", script), env={}, stop_timeout_s=stop_timeout_s
    )
    await manager.install(candidate)
    plan = GuardPlan(trial=trial, candidate=candidate.name, baseline=BASELINE, lease_s=lease_s)
    await manager.arm_guard(plan)
    await manager.stop(BASELINE)
    await manager.start(candidate.name)
    return manager, plan


async def is_active(manager: SystemdManager, unit: str) -> bool:
    return (await manager.status(unit)).active == "active"


async def test_it_fires_brings_the_baseline_back_and_says_so(host: TestHost) -> None:
    manager, plan = await in_trial(host, "fires", 2.0, STUBBORN)
    armed = await manager.guard("fires")
    assert armed is not None
    assert armed.state == "armed"
    assert 1 < armed.remaining_s <= 2
    # No calendar in it: a step of the wall clock moves nothing.
    shown = host.show("specd-guard-fires.timer", "TimersCalendar", "NextElapseUSecRealtime", "TimersMonotonic")
    assert shown.get("TimersCalendar", "") == ""
    assert shown.get("NextElapseUSecRealtime", "") in {"", "0", "n/a"}
    assert "OnActiveUSec" in shown["TimersMonotonic"]
    started = time.monotonic()
    await until(lambda: is_active(manager, BASELINE), what="the baseline")
    assert 1.5 < time.monotonic() - started < 6
    # Who comes later sees it too.
    fired = await manager_on(host).guard("fires")
    assert fired is not None
    assert (fired.state, fired.remaining_s) == ("fired", 0.0)
    assert (await manager.status(plan.candidate)).is_down
    assert await manager.processes(plan.candidate) == []
    await manager.arm_guard(plan)
    assert (await manager.guard("fires")) == fired
    await manager.disarm_guard("fires")
    assert await manager.guard("fires") is None
    assert await is_active(manager, BASELINE)


async def done(manager: SystemdManager, trial: str) -> bool:
    guard = await manager.guard(trial)
    return guard is not None and guard.state == "fired" and not guard.is_acting


async def test_a_baseline_that_runs_already_is_not_disturbed(host: TestHost) -> None:
    host.write_unit(BASELINE, "[Service]\nExecStart=/bin/sleep 1000\n")
    host.systemctl("start", BASELINE)
    manager = manager_on(host)
    before = await manager.status(BASELINE)
    await manager.arm_guard(GuardPlan(trial="late", candidate="specd-late.service", baseline=BASELINE, lease_s=0.2))
    await until(lambda: done(manager, "late"), what="the guard")
    assert await manager.status(BASELINE) == before


async def test_one_that_acts_says_so_and_kills_when_systemctl_gets_no_end(host: TestHost) -> None:
    """The job's own limits on systemctl, made short: a stop that takes too long is cut off, and SIGKILL follows."""
    manager, plan = await in_trial(host, "stuck", 600.0, STUBBORN, stop_timeout_s=60)
    path = "/run/systemd/system/specd-guard-stuck.service"
    text = host.get(path).decode()
    assert "--kill-after=5 120" in text
    host.put(path, text.replace("--kill-after=5 120", "--kill-after=5 3"))
    host.systemctl("daemon-reload")
    host.systemctl("start", "--no-block", "specd-guard-stuck.service")

    async def acts() -> bool:
        guard = await manager.guard("stuck")
        return guard is not None and guard.state == "fired" and guard.is_acting

    await until(acts, what="the guard at work")
    # What is to be kept can't have its guard taken away any more, and the job goes on.
    assert not await manager.disarm_guard("stuck", fired_too=False)
    assert not await is_active(manager, BASELINE)
    await until(lambda: is_active(manager, BASELINE), what="the baseline")
    await until(lambda: done(manager, "stuck"), what="the end of the job")
    assert await manager.processes(plan.candidate) == []
    assert (await manager.status(plan.candidate)).is_down


async def test_a_renewal_in_the_instant_of_the_firing_hides_nothing(host: TestHost) -> None:
    manager, plan = await in_trial(host, "instant", 60.0)
    tight = dataclasses.replace(plan, lease_s=0.15)
    for _ in range(40):
        await manager.arm_guard(tight)
        guard = await manager.guard("instant")
        assert guard is not None
        if guard.state == "fired":
            break
    else:
        await until(lambda: done(manager, "instant"), what="the guard")
    await manager.arm_guard(tight)
    await until(lambda: is_active(manager, BASELINE), what="the baseline")
    assert (await manager.status(plan.candidate)).is_down
    assert await done(manager, "instant")


async def test_a_disarming_in_the_instant_of_the_firing_is_one_or_the_other(host: TestHost) -> None:
    manager, plan = await in_trial(host, "either", 60.0)
    for offset_s in (-0.3, -0.2, -0.1, 0.0):
        await manager.arm_guard(dataclasses.replace(plan, lease_s=0.4))
        await asyncio.sleep(0.4 + offset_s)
        if await manager.disarm_guard("either", fired_too=False):
            assert await manager.guard("either") is None
            await asyncio.sleep(0.5)
            assert await is_active(manager, plan.candidate)
            assert not await is_active(manager, BASELINE)
            continue
        await until(lambda: done(manager, "either"), what="the guard")
        await until(lambda: is_active(manager, BASELINE), what="the baseline")
        assert (await manager.status(plan.candidate)).is_down
        await manager.disarm_guard("either")
        await manager.stop(BASELINE)
        await manager.start(plan.candidate)


async def test_it_is_renewed_without_being_written_again(host: TestHost) -> None:
    manager, plan = await in_trial(host, "renewed", 1.5)
    before = host.exec(["stat", "-c", "%i %Y", "/run/systemd/system/specd-guard-renewed.timer"]).stdout
    # Often enough to run into the start limit that timers have too.
    for _ in range(12):
        await asyncio.sleep(0.3)
        await manager.arm_guard(plan)
    armed = await manager.guard("renewed")
    assert armed is not None
    assert armed.state == "armed"
    assert await is_active(manager, plan.candidate)
    assert not await is_active(manager, BASELINE)
    assert host.exec(["stat", "-c", "%i %Y", "/run/systemd/system/specd-guard-renewed.timer"]).stdout == before
    longer = GuardPlan(trial="renewed", candidate=plan.candidate, baseline=BASELINE, lease_s=600)
    await manager.arm_guard(longer)
    armed = await manager.guard("renewed")
    assert armed is not None
    assert 590 < armed.remaining_s <= 600


async def test_disarmed_it_leaves_nothing_and_does_nothing(host: TestHost) -> None:
    manager, plan = await in_trial(host, "disarmed", 1.0)
    await manager.disarm_guard("disarmed")
    await manager.disarm_guard("disarmed")
    assert await manager.guard("disarmed") is None
    assert not [path for path in host.snapshot("/run/systemd/system") if "guard" in path]
    await asyncio.sleep(1.5)
    assert await is_active(manager, plan.candidate)
    assert "specd-guard" not in host.systemctl("list-units", "--all", "--no-legend", "specd*")


async def test_how_a_candidate_ended_stays_readable_while_the_guard_is_armed(host: TestHost) -> None:
    manager, plan = await in_trial(host, "ended", 60.0, "sleep 0.2; exit 0")

    async def ended() -> bool:
        return (await manager.status(plan.candidate)).active == "inactive"

    await until(ended, what="the end")
    status = await manager.status(plan.candidate)
    assert (status.exec_code, status.exec_status, status.result) == ("exited", 0, "success")
    assert status.invocation


async def test_a_start_limit_does_not_keep_the_baseline_down(host: TestHost) -> None:
    manager, plan = await in_trial(host, "limited", 1.5)
    host.put(
        f"/etc/systemd/system/{BASELINE}.d/limit.conf",
        "[Unit]\nStartLimitIntervalSec=300\nStartLimitBurst=1\n"
        "[Service]\nExecStartPre=/bin/sh -c 'test -e /tmp/guard-mended'\n",
    )
    host.systemctl("daemon-reload")
    await manager.arm_guard(plan)
    for _ in range(2):
        host.systemctl("start", BASELINE, check=False)
    host.put("/tmp/guard-mended", "")
    await until(lambda: is_active(manager, BASELINE), what="the baseline")


async def test_a_file_of_somebody_else_is_not_taken_for_a_guard(host: TestHost) -> None:
    host.put("/run/systemd/system/specd-guard-foreign.timer", "[Timer]\nOnActiveSec=1d\n")
    plan = GuardPlan(trial="foreign", candidate="specd-foreign.service", baseline=BASELINE, lease_s=60)
    with pytest.raises(UnitError, match="no guard of specd"):
        await manager_on(host).arm_guard(plan)
    assert not host.exists("/run/systemd/system/specd-guard-foreign.service")


async def test_a_reboot_forgets_guard_and_candidate_and_the_baseline_comes_up(fresh_host: TestHost) -> None:
    manager, plan = await in_trial(fresh_host, "reboot", 600.0)
    await asyncio.to_thread(fresh_host.crash)
    await asyncio.to_thread(fresh_host.boot)
    manager = manager_on(fresh_host)
    await until(lambda: is_active(manager, BASELINE), what="the baseline")
    assert await manager.guard("reboot") is None
    assert await manager.own_units() == []
    assert not (await manager.status(plan.candidate)).exists
    await manager.arm_guard(plan)
    assert await manager.guard("reboot") is not None
