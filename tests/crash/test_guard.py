"""The dead-man's switch: it brings the baseline back without specd, and specd, when it is back, says so."""

import asyncio
import json
import os
import signal
from typing import Any

import aiohttp
import pytest

from tests.rig import SCRIPT, Daemon, EmbeddedSite, RemoteSite, Site
from tests.supervised import is_alive

SHORT = {"lease_s = 30": "lease_s = 4", "renew_s = 2": "renew_s = 1"}
# Steps so slow that no delay of a busy machine makes the numbers void, and so different that the verdict is sure.
SLOW, FAST = ({"SPECD_REHEARSAL": json.dumps({**SCRIPT, "base_step_ms": step})} for step in (24.0, 12.0))
KEEP = """
[services.llm.policy]
after_better = "keep"
[benchmarks.small]
levels = [1]
repeats = 2
requests = 4
prompts = "quick"
max_tokens = 12
warmup_requests = 1
first_token_s = 4
"""
HANG = {"SPECD_REHEARSAL_FAULT": "hang:weights"}


def with_words(daemon: Daemon, changes: dict[str, str]) -> None:
    """Change words of the daemon's config before it starts."""
    text = daemon.config.read_text()
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    daemon.config.write_text(text)


async def events_of(daemon: Daemon, kind: str) -> list[dict[str, Any]]:
    """Return all events of a kind that the daemon has told."""
    events = (await daemon.client.get("/v1/events.json", since=0, limit=10000))["events"]
    return [event for event in events if event["type"] == kind]


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


async def test_one_that_fires_while_a_rollback_is_left_alone_only_helps_it(embedded_site: EmbeddedSite) -> None:
    site, invocation = embedded_site, embedded_site.invocation()
    daemon = Daemon(site)
    with_words(daemon, {**SHORT, "stop_timeout_s = 2.0": "stop_timeout_s = 8.0"})
    async with daemon:
        trial = await daemon.submit(env={"SPECD_REHEARSAL_FAULT": "ignore-sigterm,hang:weights"})
        await daemon.reached(trial, "loading")
        await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "a test"})
        await daemon.reached(trial, "rollback")
        daemon.kill()
        await baseline_is_back(site, invocation)
        serving = site.invocation()
        await daemon.start()
        shown = await daemon.settled(trial)
        told = [event["state"] for event in await events_of(daemon, "GuardChanged")]
    assert (shown["state"], shown["outcome"]) == ("restored", "cancelled"), shown["reason"]
    assert "fired" in told
    assert told[-1] == "disarmed"
    assert site.invocation() == serving
    assert len(site.starts()) == 2
    assert site.traces() == []


async def test_with_daemon_and_supervisor_killed_the_baseline_is_back_at_once(embedded_site: EmbeddedSite) -> None:
    """Long before the lease runs out: what stands beside the supervisor starts another one."""
    site, invocation = embedded_site, embedded_site.invocation()
    daemon = Daemon(site)
    with_words(daemon, {"lease_s = 30": "lease_s = 600"})
    async with daemon:
        trial = await daemon.submit(env=HANG)
        await daemon.reached(trial, "loading")
        daemon.kill()
        supervisor = int((site.units / "supervisor.pid").read_text())
        os.kill(supervisor, signal.SIGKILL)
        async with asyncio.timeout(20):
            while is_alive(supervisor):
                await asyncio.sleep(0.02)
        await baseline_is_back(site, invocation)
        serving = site.invocation()
        await daemon.start()
        shown = await daemon.settled(trial)
    assert (shown["state"], shown["outcome"], shown["class"]) == ("restored", "failed", "reboot"), shown["reason"]
    assert site.invocation() == serving
    assert site.traces() == []


async def test_the_time_left_is_shown(embedded_site: EmbeddedSite) -> None:
    daemon = Daemon(embedded_site)
    async with daemon:
        trial = await daemon.submit(env=HANG)
        await daemon.reached(trial, "loading")
        shown = await daemon.client.trial(trial)
        services = (await daemon.client.get("/v1/services"))["services"]
        text = daemon.command("show", trial).stdout
        line = aiohttp.UnixConnector(str(daemon.socket))
        async with aiohttp.ClientSession("http://specd", connector=line) as session, session.get("/metrics") as page:
            metrics = await page.text()
        await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "a test"})
        await daemon.settled(trial)
        ended = daemon.command("show", trial).stdout
    for guard in (shown["guard"], services[0]["guard"]):
        assert guard["state"] == "armed"
        assert 0 < guard["remaining_s"] <= 30
        assert "since" not in guard
    assert "it brings the baseline back in" in text
    assert "it brings the baseline back in" not in ended
    left = [line for line in metrics.splitlines() if line.startswith("specd_guard_remaining_seconds{")]
    assert [0 < float(line.split()[-1]) <= 30 for line in left] == [True]


async def test_a_candidate_that_hangs_since_its_verdict_is_not_kept(embedded_site: EmbeddedSite) -> None:
    """It runs and nothing is left to measure: only a token tells whether there is something to keep."""
    site, points = embedded_site, embedded_site.directory / "points"
    site.set_baseline_environment(**SLOW)
    site.ask("stop", unit=site.unit)
    site.ask("start", unit=site.unit)
    site.wait_until_serving()
    daemon = Daemon(site, KEEP)
    daemon.environment = {"SPECD_FAILPOINTS": str(points), "SPECD_FAILPOINT_KILL": "commit move kept before"}
    async with daemon:
        trial = await daemon.submit({"max-num-seqs": 64}, env=FAST, benchmark="small")
        async with asyncio.timeout(90):
            while daemon.is_running:
                assert not points.exists() or "commit move restored after" not in points.read_text(), "no such verdict"
                await asyncio.sleep(0.1)
        site.signal_engine(f"specd-{trial}.service", signal.SIGSTOP)
        daemon.environment = {}
        await daemon.start()
        shown = await daemon.settled(trial)
    assert (shown["state"], shown["outcome"]) == ("restored", "failed"), shown["reason"]
    assert "no token when it was to be kept" in shown["reason"]
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
