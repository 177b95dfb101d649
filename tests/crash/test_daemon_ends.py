"""SIGTERM: whatever hangs, the daemon is gone within seconds, says what goes on without it, and finds it again."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from tests.rig import Daemon, EmbeddedSite, RemoteSite

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


async def test_a_loop_that_is_blocked_does_not_hold_it(embedded_site: EmbeddedSite) -> None:
    """A read that never ends, as from a dead network file system."""
    site = embedded_site
    pipe = site.directory / "key"
    os.mkfifo(pipe)
    daemon = Daemon(site)
    config = daemon.config.read_text()
    daemon.config.write_text(config.replace("drain_s = 1.0", f'drain_s = 1.0\napi_key_file = "{pipe}"'))
    async with daemon:
        await daemon.submit()
        never_written = await _writer(pipe)
        try:
            started = asyncio.get_running_loop().time()
            assert await asyncio.to_thread(daemon.end, 15) == 0
            assert asyncio.get_running_loop().time() - started < ENDS_WITHIN_S + 1
        finally:
            os.close(never_written)
        assert "daemon.cut-short" in daemon.log_tail()


async def _writer(pipe: Path) -> int:
    """Return the pipe's end for writing as soon as somebody reads from the other one."""
    async with asyncio.timeout(30):
        while True:
            try:
                return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
            await asyncio.sleep(0.05)
