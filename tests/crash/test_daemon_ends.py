"""SIGTERM: whatever hangs, the daemon is gone within seconds, says what goes on without it, and finds it again."""

import asyncio

import pytest

from tests.rig import Daemon, RemoteSite

ENDS_WITHIN_S = 5.0


@pytest.mark.host
@pytest.mark.parametrize("state", ["baseline", "restart", "loading", "benchmark", "rollback"])
async def test_a_host_that_hangs_does_not_hold_it(remote_site: RemoteSite, state: str) -> None:
    site = remote_site
    loop = asyncio.get_running_loop()
    async with Daemon(site) as daemon:
        trial = await daemon.submit()
        await daemon.reached(trial, state)
        site.host.freeze()
        try:
            started = loop.time()
            assert await asyncio.to_thread(daemon.end, 15) == 0, daemon.log_tail()
            took_s = loop.time() - started
        finally:
            site.host.thaw()
        assert took_s < ENDS_WITHIN_S
        assert f"{trial} in {state}: specd-{trial}.service on site" in daemon.log_tail()
        await daemon.start()
        shown = await daemon.settled(trial)
    assert shown["state"] == "restored", shown["reason"]
    assert len(site.starts(f"specd-{trial}.service")) == 1
    assert len(site.starts()) == 2
    assert site.answers()
    assert site.traces() == []
