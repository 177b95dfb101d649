"""What an operator may do to a candidate by hand: each has its own words, and the baseline comes back."""

import asyncio
from collections.abc import Callable

import pytest

from tests.host.test_trial_mishaps import host, site  # noqa: F401
from tests.host.trial_site import QUICK, HostSite, noted
from tests.rig import Daemon
from tests.testhost import TestHost

pytestmark = pytest.mark.host

HANGING = {"SPECD_REHEARSAL_FAULT": "hang:weights"}


def stop(host: TestHost, unit: str) -> None:  # noqa: F811
    host.systemctl("stop", unit)


def restart(host: TestHost, unit: str) -> None:  # noqa: F811
    host.systemctl("restart", unit)


def remove(host: TestHost, unit: str) -> None:  # noqa: F811
    host.exec(["rm", f"/run/systemd/system/{unit}"])
    host.systemctl("daemon-reload")


@pytest.mark.parametrize(
    ("act", "state", "words"),
    [
        # An engine that loads swallows SIGTERM, so that systemd ends it by SIGKILL: that is not the news.
        (stop, "loading", "was stopped by someone else on site"),
        (stop, "benchmark", "was stopped by someone else on site"),
        (restart, "loading", "was started again by someone else"),
    ],
)
async def test_a_candidate_that_somebody_ends(
    site: HostSite,  # noqa: F811
    act: Callable[[TestHost, str], None],
    state: str,
    words: str,
) -> None:
    before = site.fingerprint()
    async with Daemon(site, QUICK) as daemon:
        trial = await daemon.submit(benchmark="quick", env=HANGING if state == "loading" else {})
        await daemon.reached(trial, state)
        await asyncio.to_thread(act, site.host, f"specd-{trial}.service")
        shown = await daemon.settled(trial)
    assert (shown["state"], shown["outcome"], shown["class"]) == ("restored", "failed", "operator"), shown["reason"]
    assert f"specd-{trial}.service {words}" in shown["reason"]
    assert site.answers()
    assert site.fingerprint() == before
    assert site.traces() == []


async def test_a_unit_file_that_somebody_removes_ends_nothing(site: HostSite) -> None:  # noqa: F811
    async with Daemon(site, QUICK) as daemon:
        trial = await daemon.submit(benchmark="quick")
        await daemon.reached(trial, "loading")
        await asyncio.to_thread(remove, site.host, f"specd-{trial}.service")
        shown = await daemon.settled(trial)
    assert shown["state"] == "restored", shown["reason"]
    assert shown["outcome"] not in {"failed", "cancelled"}, shown["reason"]
    assert site.answers()
    assert site.traces() == []


async def test_a_baseline_that_somebody_masks_is_theirs_until_they_unmask_it(site: HostSite) -> None:  # noqa: F811
    unit_file = "/etc/systemd/system/llm.service"
    async with Daemon(site, QUICK) as daemon:
        trial = await daemon.submit(benchmark="quick", env=HANGING)
        await daemon.reached(trial, "loading")
        site.host.exec(["mv", unit_file, "/root/llm.service"])
        site.host.systemctl("mask", "llm.service")
        await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "a test"})
        shown = await daemon.settled(trial)
        assert shown["state"] == "rollback-failed", shown["reason"]
        assert any("llm.service" in note and "masked" in note and "unmask it" in note for note in await noted(daemon))
        site.host.exec(["mv", "--force", "/root/llm.service", unit_file])
        site.host.systemctl("daemon-reload")
        await daemon.client.post("/v1/services/llm/rollback", {"by": "a test"})
        await daemon.reached(trial, "restored")
    assert site.answers()
    assert site.traces() == []
