"""The dead-man's switch: it brings the baseline back without specd, and specd, when it is back, says so."""

import asyncio
import signal

import pytest

from tests.rig import Daemon, RemoteSite, Site

SHORT = {"lease_s = 30": "lease_s = 4", "renew_s = 2": "renew_s = 1"}
HANG = {"SPECD_REHEARSAL_FAULT": "hang:weights"}


def with_words(daemon: Daemon, changes: dict[str, str]) -> None:
    """Change words of the daemon's config before it starts."""
    text = daemon.config.read_text()
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    daemon.config.write_text(text)


async def baseline_is_back(site: Site, not_this: str) -> None:
    """Wait until another start of the baseline serves."""
    async with asyncio.timeout(40):
        while site.invocation() in {"", not_this} or not await asyncio.to_thread(site.answers):
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("state", ["restart", "loading", "cudagraph-compile", "ready", "benchmark"])
async def test_it_fires_when_specd_is_gone_in_any_state(embedded_site: Site, state: str) -> None:
    await _fires(embedded_site, state)


@pytest.mark.host
@pytest.mark.parametrize("state", ["restart", "ready"])
async def test_it_fires_on_a_host_of_its_own(remote_site: Site, state: str) -> None:
    await _fires(remote_site, state)


async def _fires(site: Site, state: str) -> None:
    before, invocation = site.fingerprint(), site.invocation()
    daemon = Daemon(site)
    with_words(daemon, SHORT)
    async with daemon:
        trial = await daemon.submit()
        await daemon.reached(trial, state)
        async with asyncio.timeout(20):
            while site.is_active():
                await asyncio.sleep(0.05)
        daemon.kill()
        await baseline_is_back(site, invocation)
        serving = site.invocation()
        await daemon.start()
        shown = await daemon.settled(trial)
    assert (shown["state"], shown["outcome"], shown["class"]) == ("restored", "failed", "guard"), shown["history"][-2:]
    assert site.invocation() == serving, "a baseline that served was started again"
    assert len(site.starts()) == 2
    assert len(site.starts(f"specd-{trial}.service")) <= 1
    assert site.fingerprint() == before
    assert site.answers()
    assert site.traces() == []


async def test_a_trial_that_outlives_its_total_deadline_is_rolled_back_in_words(site: Site) -> None:
    daemon = Daemon(site)
    with_words(daemon, {"rollback_stall_s = 10": "rollback_stall_s = 10\ntotal_s = 5", "_stall_s = 4": "_stall_s = 25"})
    async with daemon:
        trial = await daemon.submit(env=HANG)
        shown = await daemon.settled(trial)
    assert (shown["state"], shown["outcome"]) == ("restored", "failed")
    assert "total of 5 s" in shown["reason"]
    assert site.answers()
    assert site.traces() == []


async def test_a_daemon_that_hangs_cant_hold_the_candidate(site: Site) -> None:
    """Its renewals stop: a frozen process is as good as a dead one."""
    invocation = site.invocation()
    daemon = Daemon(site)
    with_words(daemon, SHORT)
    async with daemon:
        trial = await daemon.submit(env=HANG)
        await daemon.reached(trial, "loading")
        daemon.signal(signal.SIGSTOP)
        try:
            await baseline_is_back(site, invocation)
        finally:
            daemon.signal(signal.SIGCONT)
        shown = await daemon.settled(trial)
    assert (shown["state"], shown["outcome"], shown["class"]) == ("restored", "failed", "guard"), shown["reason"]
    assert len(site.starts()) == 2
    assert site.traces() == []


@pytest.mark.host
async def test_the_lease_on_the_host_never_outlives_the_total_deadline_by_much(remote_site: RemoteSite) -> None:
    site = remote_site
    daemon = Daemon(site)
    with_words(
        daemon, {"lease_s = 30": "lease_s = 900", "rollback_stall_s = 10": "rollback_stall_s = 10\ntotal_s = 20"}
    )
    async with daemon:
        trial = await daemon.submit(env=HANG)
        await daemon.reached(trial, "loading")
        timer = site.host.get(f"/run/systemd/system/specd-guard-{trial}.timer").decode()
        lease_s = float(timer.partition("OnActiveSec=")[2].partition("s")[0])
        await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "a test"})
        await daemon.settled(trial)
    assert 20 < lease_s < 85


@pytest.mark.host
async def test_a_candidate_that_will_not_stop_is_killed_by_the_guard(remote_site: RemoteSite) -> None:
    site, invocation = remote_site, remote_site.invocation()
    daemon = Daemon(site)
    with_words(daemon, SHORT)
    async with daemon:
        trial = await daemon.submit(env={"SPECD_REHEARSAL_FAULT": "ignore-sigterm,hang:weights"})
        await daemon.reached(trial, "loading")
        daemon.kill()
        await baseline_is_back(site, invocation)
        await daemon.start()
        shown = await daemon.settled(trial)
    assert shown["class"] == "guard"
    assert site.traces() == []


@pytest.mark.host
async def test_a_host_that_reboots_with_the_daemon_away_serves_the_baseline_by_itself(remote_site: RemoteSite) -> None:
    site, before = remote_site, remote_site.fingerprint()
    async with Daemon(site) as daemon:
        trial = await daemon.submit(env=HANG)
        await daemon.reached(trial, "loading")
        daemon.kill()
        site.host.crash()
        await asyncio.to_thread(site.host.boot)
        await asyncio.to_thread(site.wait_until_serving)
        assert site.traces() == [], "a reboot leaves nothing of a trial"
        serving = site.invocation()
        await daemon.start()
        shown = await daemon.settled(trial)
    assert (shown["state"], shown["outcome"]) == ("restored", "failed"), shown["reason"]
    assert "reboot" in shown["reason"]
    assert site.invocation() == serving
    assert site.fingerprint() == before
    assert site.traces() == []
