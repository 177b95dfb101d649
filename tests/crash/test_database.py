"""A database that can't be used, is locked or has no room: hosts are safe, and words say what to do."""

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specd.cli.client import ApiError
from tests.rig import Daemon, EmbeddedSite
from tests.rig.daemon import write_trial
from tests.rig.small_disk import SmallDisk


def _checkpoint(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def _noise(path: Path) -> None:
    _checkpoint(path)
    path.write_bytes(os.urandom(16384))


def _holes(path: Path) -> None:
    _checkpoint(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + b"\xff" * (len(whole) - 8192))


def _newer(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()


def _log(path: Path) -> None:
    """What was committed last is gone; the file itself is sound."""
    log = path.with_name(f"{path.name}-wal")
    whole = bytearray(log.read_bytes())
    half = len(whole) // 2
    whole[half : half + 5000] = os.urandom(5000)
    log.write_bytes(whole)


@pytest.mark.parametrize("harm", [_noise, _holes, _newer, _log], ids=lambda harm: harm.__name__[1:])
async def test_a_database_that_cant_be_used_touches_no_host(
    embedded_site: EmbeddedSite, harm: Callable[[Path], None]
) -> None:
    site = embedded_site
    async with Daemon(site) as daemon:
        trial = await daemon.submit()
        await daemon.reached(trial, "loading")
        daemon.kill()
        path = site.directory / "state" / "specd.db"
        candidate = site.invocation(f"specd-{trial}.service")
        harm(path)
        await daemon.start()
        health = await daemon.until_health("degraded")
        assert str(path) in health["problem"]
        assert "move" in health["problem"]
        refused = daemon.command("submit", str(write_trial(site.directory / "t.toml", {"max-num-seqs": 8})))
        assert refused.returncode == 4
        assert "no host is touched" in refused.stderr
        listed = daemon.command("trials")
        assert listed.returncode == 0
        assert "can't be used" in listed.stderr
        with pytest.raises(ApiError, match="can't be used") as answer:
            await daemon.client.post("/v1/services/llm/rollback", {"by": "a test"})
        assert answer.value.status == 503
        assert site.invocation(f"specd-{trial}.service") == candidate, "the candidate was touched"
        assert not site.is_active()


async def test_a_file_that_is_taken_away_from_a_running_daemon_ends_what_it_does(embedded_site: EmbeddedSite) -> None:
    site = embedded_site
    path = site.directory / "state" / "specd.db"
    async with Daemon(site) as daemon:
        trial = await daemon.submit()
        watching = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "specd", "--config", str(daemon.config), "watch", trial),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            await daemon.reached(trial, "loading")
            candidate = site.invocation(f"specd-{trial}.service")
            path.rename(path.with_name("elsewhere.db"))
            await daemon.until_health("degraded")
            await daemon.until_logged("daemon.degraded", before=0)
            assert f"{trial} in " in daemon.log_tail(), "it does not say what it leaves behind"
            assert watching.stdout is not None
            async with asyncio.timeout(20):
                while b"removed or replaced while it was in use" not in await watching.stdout.readline():
                    pass
        finally:
            watching.kill()
            await watching.wait()
        assert (await daemon.client.trial(trial))["id"] == trial
        assert site.invocation(f"specd-{trial}.service") == candidate, "the candidate was touched"
        assert await asyncio.to_thread(daemon.end, signal.SIGTERM) == 0
        assert any(trial in line for line in daemon.log_tail().splitlines() if "daemon.stopping" in line)
        path.with_name("elsewhere.db").rename(path)
        await daemon.start()
        shown = await daemon.until_settled(trial)
    assert shown["state"] == "restored", shown["reason"]
    assert site.traces() == []


async def _slowest_answer_s(daemon: Daemon, seconds: float) -> float:
    """Ask again and again for some seconds; return how long the slowest answer took."""
    loop = asyncio.get_running_loop()
    slowest, until = 0.0, loop.time() + seconds
    while loop.time() < until:
        asked = loop.time()
        await daemon.client.health()
        slowest = max(slowest, loop.time() - asked)
        await asyncio.sleep(0.02)
    return slowest


async def test_a_database_locked_for_seconds_in_each_state_only_delays(embedded_site: EmbeddedSite) -> None:
    site = embedded_site
    async with Daemon(site) as daemon:
        trial = await daemon.submit()
        for state in ("baseline", "verify", "loading", "benchmark", "rollback"):
            await daemon.reached(trial, state)
            other = sqlite3.connect(site.directory / "state" / "specd.db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            await daemon.until_logged("trial.not-stored")
            assert (await daemon.client.trial(trial))["id"] == trial, "it does not answer meanwhile"
            if state == "loading":
                submitting = asyncio.create_task(daemon.submit(name="second"))
                assert await _slowest_answer_s(daemon, seconds=3) < 1.5
                assert not submitting.done(), "it was answered before it was stored"
            other.execute("ROLLBACK")
            other.close()
        shown = await daemon.settled(trial)
        assert (await daemon.client.trial(await submitting))["name"] == "second"
        await daemon.client.post(f"/v1/trials/{await submitting}/cancel", {"by": "a test"})
        await daemon.settled(await submitting)
        log = await daemon.client.log(trial, limit=10_000)
        stored = [line["text"] for line in log if line["unit"] == f"specd-{trial}.service"]
        written = site.lines(f"specd-{trial}.service", site.starts(f"specd-{trial}.service")[0])
        assert stored == written[: len(stored)]
        assert any("Application startup complete" in line for line in stored)
    assert shown["state"] == "restored"
    assert shown["outcome"] in {"worse", "inconclusive", "invalid"}, shown["reason"]
    assert len(site.starts(f"specd-{trial}.service")) == 1
    assert site.answers()
    assert site.traces() == []


@pytest.mark.parametrize("mode", ["NORMAL", "EXCLUSIVE"])
async def test_a_start_waits_for_a_lock_and_takes_the_trial_up(embedded_site: EmbeddedSite, mode: str) -> None:
    site = embedded_site
    async with Daemon(site) as daemon:
        trial = await daemon.submit()
        await daemon.reached(trial, "loading")
        daemon.kill()
        other = sqlite3.connect(site.directory / "state" / "specd.db", isolation_level=None)
        other.execute(f"PRAGMA locking_mode = {mode}")
        other.execute("BEGIN IMMEDIATE")
        daemon.spawn()
        # One that only writes keeps nobody from reading, so the daemon starts and its trial waits.
        await daemon.until_logged("daemon.database-locked" if mode == "EXCLUSIVE" else "trial.not-stored")
        other.execute("ROLLBACK")
        other.close()
        shown = await daemon.until_settled(trial)
        assert (await daemon.client.health())["state"] == "ok"
    assert shown["state"] == "restored"
    assert shown["outcome"] in {"worse", "inconclusive", "invalid"}
    assert len(site.starts(f"specd-{trial}.service")) == 1
    assert site.traces() == []


async def test_a_start_that_waits_for_a_lock_ends_when_told(embedded_site: EmbeddedSite) -> None:
    async with Daemon(embedded_site) as daemon:
        await asyncio.to_thread(daemon.end, signal.SIGTERM)
        other = sqlite3.connect(embedded_site.directory / "state" / "specd.db", isolation_level=None)
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        daemon.spawn()
        await daemon.until_logged("daemon.database-locked")
        assert await asyncio.to_thread(daemon.end, signal.SIGTERM) == 0
        other.close()


@pytest.fixture
def small_disk(embedded_site: EmbeddedSite) -> Iterator[SmallDisk]:
    """The state directory on a disk of its own."""
    try:
        disk = SmallDisk(embedded_site.directory / "state")
    except OSError as error:
        pytest.skip(f"mounting needs root: {error}")
    yield disk
    disk.close()


async def test_a_full_disk_stops_new_work_and_lets_the_running_trial_end(
    embedded_site: EmbeddedSite, small_disk: SmallDisk
) -> None:
    site = embedded_site
    async with Daemon(site) as daemon:
        trial = await daemon.submit()
        waiting = await daemon.submit(name="second")
        await daemon.reached(trial, "loading")
        small_disk.fill()
        assert os.statvfs(small_disk.path).f_bavail == 0
        await daemon.until_state(trial, "benchmark")
        daemon.kill()
        await daemon.start()
        await daemon.until_state(trial, "restored")
        health = await daemon.client.health()
        assert health["state"] == "degraded"
        assert "is full" in health["problem"]
        refused = daemon.command("submit", str(write_trial(site.directory / "t.toml", {"max-num-seqs": 8})))
        assert refused.returncode == 4
        assert "is full" in refused.stderr
        assert (await daemon.client.trial(waiting))["state"] == "queued"
        assert site.answers()
        assert daemon.log.read_text().count("watch.lines-held") < 5, "it is said more than once for each unit"
        small_disk.relieve()
        shown = await daemon.settled(waiting)
        assert shown["state"] == "restored"
        assert (await daemon.client.health())["state"] == "ok"
    assert len(site.starts(f"specd-{trial}.service")) == 1
    assert site.traces() == []


async def test_a_disk_without_any_room_leaves_the_way_back_to_the_guard(
    embedded_site: EmbeddedSite, small_disk: SmallDisk
) -> None:
    site = embedded_site
    daemon = Daemon(site)
    daemon.config.write_text(daemon.config.read_text().replace("lease_s = 30", "lease_s = 6"))
    async with daemon:
        trial = await daemon.submit()
        await daemon.reached(trial, "loading")
        small_disk.fill()
        await daemon.until_logged("store.disk-full", before=0)
        small_disk.fill()
        async with asyncio.timeout(60):
            while not (site.is_active() and await asyncio.to_thread(site.answers)):
                await asyncio.sleep(0.2)
        assert (await daemon.client.trial(trial))["state"] not in {"restored", "rollback"}
        assert (await daemon.client.health())["state"] == "degraded"
        small_disk.relieve()
        shown = await daemon.until_settled(trial)
    assert (shown["state"], shown["outcome"], shown["class"]) == ("restored", "failed", "guard")
    assert site.traces() == []
