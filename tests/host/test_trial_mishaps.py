"""What can befall a host in the middle of a trial: a reboot, an operator's edit, a restart by somebody else."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.trial_site import QUICK, HostSite, noted, put_engine, serve_words, short_lease, unit_text
from tests.rig import Daemon
from tests.testhost import TestHost

pytestmark = pytest.mark.host

# A second start within the hour would be refused, by anybody who does not clear it.
TEXT = "[Unit]\nStartLimitIntervalSec=3600\nStartLimitBurst=1\n{}"


@pytest.fixture(scope="module")
def host(swept: None) -> Iterator[TestHost]:
    """A host with the engine and no service yet."""
    made = TestHost.create()
    try:
        made.boot()
        put_engine(made)
        yield made
    finally:
        made.destroy()


@pytest.fixture
def site(host: TestHost, tmp_path: Path) -> Iterator[HostSite]:
    """A service as it should be."""
    made = HostSite(tmp_path, host, {"llm.service": TEXT.format(unit_text(serve_words(host), "Restart=on-failure"))})
    try:
        yield made
    finally:
        made.remove()


@pytest.mark.parametrize("state", ["loading", "benchmark"])
async def test_a_reboot_brings_the_baseline_up_and_the_trial_to_its_end(site: HostSite, state: str) -> None:
    before, invocation = site.fingerprint(), site.invocation()
    async with Daemon(site, QUICK) as daemon:
        fault = {"SPECD_REHEARSAL_FAULT": "hang:weights"} if state == "loading" else {}
        trial = await daemon.submit(benchmark="quick", env=fault)
        await daemon.reached(trial, state)
        await asyncio.to_thread(site.host.reboot)
        shown = await daemon.settled(trial)
    assert shown["state"] == "restored", (shown["reason"], shown["history"])
    assert shown["outcome"] == "failed", shown["reason"]
    assert site.answers()
    assert site.invocation() not in {"", invocation}
    assert site.fingerprint() == before
    assert site.traces() == []


async def test_an_edit_of_the_baseline_without_a_reload_does_not_keep_it_away(site: HostSite) -> None:
    async with Daemon(site, QUICK) as daemon:
        trial = await daemon.submit(benchmark="quick")
        await daemon.reached(trial, "loading")
        edited = TEXT.format(unit_text(serve_words(site.host), "Restart=on-failure", "# edited in mid-trial"))
        site.host.put("/etc/systemd/system/llm.service", edited)
        site.host.put("/etc/systemd/system/llm.service.d/new.conf", "[Service]\nNice=1\n")
        shown = await daemon.settled(trial)
        notes = await noted(daemon)
    site.host.exec(["rm", "-r", "/etc/systemd/system/llm.service.d"])
    assert shown["state"] == "restored", (shown["reason"], shown["history"])
    assert shown["outcome"] not in {"failed", "cancelled"}, shown["reason"]
    assert any("changed by someone else" in note and "as systemd had read it before" in note for note in notes), notes
    assert site.answers()
    assert site.traces() == []


async def test_a_network_that_is_away_longer_than_the_lease(site: HostSite) -> None:
    before, invocation = site.fingerprint(), site.invocation()
    async with Daemon(site, QUICK) as daemon:
        short_lease(daemon, lease_s=4, renew_s=1)
        daemon.config.write_text(
            daemon.config.read_text().replace("[hosts.site]", "[hosts.site]\nkeepalive_s = 1\nconnect_timeout_s = 2")
        )
        await daemon.start()
        # On another port, the candidate would not even be in the baseline's way.
        trial = await daemon.submit({"port": 8101}, benchmark="quick", env={"SPECD_REHEARSAL_FAULT": "hang:weights"})
        await daemon.reached(trial, "loading")
        await asyncio.to_thread(site.host.netdown)
        await asyncio.to_thread(site.wait_until_serving)
        assert site.invocation() not in {"", invocation}
        restored = site.invocation()
        await asyncio.to_thread(site.host.netup)
        shown = await daemon.settled(trial)
    assert (shown["state"], shown["outcome"], shown["class"]) == ("restored", "failed", "guard"), shown["reason"]
    assert site.invocation() == restored
    assert site.fingerprint() == before
    assert site.traces() == []


async def test_a_candidate_on_another_port_and_an_operator_who_starts_the_baseline(site: HostSite) -> None:
    before = site.fingerprint()
    async with Daemon(site, QUICK) as daemon:
        trial = await daemon.submit({"port": 8101}, benchmark="quick")
        await daemon.reached(trial, "ready")
        site.host.systemctl("reset-failed", "llm", check=False)
        site.host.systemctl("start", "--no-block", "llm")
        shown = await daemon.settled(trial)
    by_hand = site.invocation()
    assert shown["state"] == "restored", (shown["reason"], shown["history"])
    assert site.answers()
    assert site.invocation() == by_hand
    assert site.fingerprint() == before
    assert site.traces() == []
    # Two engines on one machine: the numbers count for nothing.
    assert (shown["outcome"], shown["class"]) == ("invalid", "disturbed"), shown["reason"]
    assert "llm.service was started by someone else" in shown["reason"]
