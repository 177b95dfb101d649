"""`specd rehearse` on a real host: a stand-in goes through the trial, the baseline serves on untouched."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.trial_site import QUICK, HostSite, noted, put_engine, serve_words, unit_text
from tests.rig import Daemon
from tests.rig.daemon import trial_toml
from tests.testhost import TestHost

pytestmark = pytest.mark.host


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
    made = HostSite(tmp_path, host, {"llm.service": unit_text(serve_words(host))})
    try:
        yield made
    finally:
        made.remove()


def trial_file(site: HostSite) -> str:
    """Write a trial file and return its path."""
    path = site.directory / "t.toml"
    path.write_text(trial_toml({"max-num-seqs": 8}, benchmark="quick", env={"SOME_KEY": "a value"}))
    return str(path)


async def untouched(site: HostSite, before: dict[str, str], invocation: str) -> None:
    assert site.invocation() == invocation
    assert site.answers()
    assert site.fingerprint() == before
    await asyncio.to_thread(site.wait_until_clean)
    ports = site.host.exec(["ss", "-H", "-ltn"]).stdout
    assert len([line for line in ports.splitlines() if ":22 " not in line]) == 1, ports


async def test_a_whole_rehearsal(site: HostSite) -> None:
    before, invocation = site.fingerprint(), site.invocation()
    async with Daemon(site, QUICK) as daemon:
        done = await asyncio.to_thread(daemon.command, "rehearse", trial_file(site), "--wait", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        (shown,) = json.loads(done.stdout)["trials"]
        assert not await noted(daemon)
        planned = await asyncio.to_thread(daemon.command, "plan", "--rehearsal", trial_file(site))
        assert planned.returncode == 0, planned.stdout
    assert shown["rehearsal"] is True
    assert shown["state"] == "restored", shown["reason"]
    assert shown["baseline"]["unit"] == f"specd-rehearsal-{shown['id']}.service"
    await untouched(site, before, invocation)


@pytest.mark.parametrize("state", ["baseline", "loading"])
async def test_a_rehearsal_that_is_cancelled_after_a_kill(site: HostSite, state: str) -> None:
    before, invocation = site.fingerprint(), site.invocation()
    async with Daemon(site, QUICK) as daemon:
        done = await asyncio.to_thread(daemon.command, "rehearse", trial_file(site))
        trial = done.stdout.strip()
        await daemon.reached(trial, state)
        await asyncio.sleep(0.7)
        daemon.kill()
        await daemon.start()
        await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "a test"})
        shown = await daemon.settled(trial)
    assert shown["outcome"] == "cancelled", shown["reason"]
    await untouched(site, before, invocation)
