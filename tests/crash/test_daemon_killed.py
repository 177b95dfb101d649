"""kill -9 of the daemon in any state, then a start: the trial goes on from where the host is, nothing happens twice."""

import asyncio

import pytest

from tests.rig import Daemon, Site

# On a busy machine the client may be too late for a verdict, and says so; here only the way there counts.
MEASURED = {"worse", "inconclusive", "invalid"}
STATES = [
    *("baseline", "write-unit", "verify", "restart", "loading", "cudagraph-compile", "ready", "benchmark", "rollback"),
]


@pytest.mark.parametrize("state", STATES)
async def test_a_kill_in_each_state_is_survived(site: Site, state: str) -> None:
    before = site.fingerprint()
    async with Daemon(site) as daemon:
        trial = await daemon.submit()
        await daemon.reached(trial, state)
        daemon.kill()
        at_kill = site.invocation(f"specd-{trial}.service")
        await daemon.start()
        shown = await daemon.settled(trial)
        events = (await daemon.client.get("/v1/events.json", since=0, limit=10000))["events"]
    assert shown["state"] == "restored", shown["reason"]
    assert shown["outcome"] in MEASURED, shown["reason"]
    if at_kill and state != "rollback":
        assert shown["candidate"]["invocation"] == at_kill, "the engine was started twice"
    moves = [event for event in events if event["type"] == "TrialMoved"]
    assert [move["target"] for move in moves] == [move["state"] for move in shown["history"]]
    sources = [move["source"] for move in moves]
    assert sources[1:] == [move["target"] for move in moves][:-1], "the history has a gap"
    assert any(event["type"] == "TrialResumed" for event in events)
    assert site.answers()
    assert site.fingerprint() == before
    assert site.traces() == []


async def test_a_cancel_that_was_accepted_survives_a_kill(site: Site) -> None:
    async with Daemon(site) as daemon:
        trial = await daemon.submit()
        await daemon.reached(trial, "loading")
        await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "a test"})
        daemon.kill()
        await daemon.start()
        shown = await daemon.settled(trial)
    assert (shown["state"], shown["outcome"]) == ("restored", "cancelled")
    assert site.answers()


async def test_sigterm_leaves_a_running_load_alone(site: Site) -> None:
    async with Daemon(site) as daemon:
        trial = await daemon.submit()
        await daemon.reached(trial, "loading")
        started = asyncio.get_running_loop().time()
        assert daemon.end(15) == 0
        assert asyncio.get_running_loop().time() - started < 5
        invocation = site.invocation(f"specd-{trial}.service")
        assert invocation
        await daemon.start()
        shown = await daemon.settled(trial)
    assert shown["candidate"]["invocation"] == invocation
    assert shown["state"] == "restored"


async def test_a_second_daemon_on_the_same_state_is_refused(site: Site) -> None:
    async with Daemon(site) as daemon:
        second = daemon.command("start", timeout_s=20)
        assert second.returncode == 4
        assert str(daemon.pid) in second.stderr
        await daemon.client.health()
