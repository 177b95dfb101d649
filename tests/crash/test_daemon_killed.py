"""What a daemon that was killed or stopped had promised still holds when it is back."""

import asyncio

from tests.rig import Daemon, Site


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
