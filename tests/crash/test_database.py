"""A database that can't be used, is locked or has no room: hosts are safe, and words say what to do."""

import asyncio
import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specd.cli.client import ApiError
from tests.rig import Daemon, EmbeddedSite
from tests.rig.daemon import write_trial


def _noise(path: Path) -> None:
    path.write_bytes(os.urandom(16384))


def _holes(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + b"\xff" * (len(whole) - 8192))


def _newer(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()


@pytest.mark.parametrize("harm", [_noise, _holes, _newer], ids=lambda harm: harm.__name__[1:])
async def test_a_database_that_cant_be_used_touches_no_host(
    embedded_site: EmbeddedSite, harm: Callable[[Path], None]
) -> None:
    site = embedded_site
    async with Daemon(site) as daemon:
        trial = await daemon.submit()
        await daemon.reached(trial, "loading")
        daemon.kill()
        path = site.directory / "state" / "specd.db"
        db = sqlite3.connect(path)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.close()
        candidate = site.invocation(f"specd-{trial}.service")
        harm(path)
        await daemon.start()
        health = await daemon.until_health("degraded")
        assert str(path) in health["problem"]
        assert "move" in health["problem"]
        refused = daemon.command("submit", str(write_trial(site.directory / "t.toml", {"max-num-seqs": 8})))
        assert refused.returncode == 4
        assert "no host is touched" in refused.stderr
        assert daemon.command("trials").returncode == 0
        with pytest.raises(ApiError, match="can't be used"):
            await daemon.client.post("/v1/services/llm/rollback", {"by": "a test"})
        assert site.invocation(f"specd-{trial}.service") == candidate, "the candidate was touched"
        assert not site.is_active()


async def test_a_database_locked_for_seconds_in_each_state_only_delays(embedded_site: EmbeddedSite) -> None:
    site = embedded_site
    async with Daemon(site) as daemon:
        trial = await daemon.submit()
        for state in ("baseline", "verify", "loading", "benchmark", "rollback"):
            await daemon.reached(trial, state)
            other = sqlite3.connect(site.directory / "state" / "specd.db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            await daemon.until_logged("can't be written")
            assert (await daemon.client.trial(trial))["id"] == trial, "it does not answer meanwhile"
            other.execute("ROLLBACK")
            other.close()
        shown = await daemon.settled(trial)
    assert shown["state"] == "restored"
    assert shown["outcome"] in {"worse", "inconclusive", "invalid"}, shown["reason"]
    assert len(site.starts(f"specd-{trial}.service")) == 1
    assert site.answers()
    assert site.traces() == []


@pytest.mark.parametrize("mode", ["IMMEDIATE", "EXCLUSIVE"])
async def test_a_start_waits_for_a_lock_and_takes_the_trial_up(embedded_site: EmbeddedSite, mode: str) -> None:
    site = embedded_site
    async with Daemon(site) as daemon:
        trial = await daemon.submit()
        await daemon.reached(trial, "loading")
        daemon.kill()
        other = sqlite3.connect(site.directory / "state" / "specd.db", isolation_level=None)
        other.execute(f"BEGIN {mode}")
        daemon.spawn()
        await asyncio.sleep(7)
        other.execute("ROLLBACK")
        other.close()
        shown = await daemon.until_settled(trial)
        assert (await daemon.client.health())["state"] == "ok"
    assert shown["state"] == "restored"
    assert shown["outcome"] in {"worse", "inconclusive", "invalid"}
    assert len(site.starts(f"specd-{trial}.service")) == 1
    assert site.traces() == []


@pytest.fixture
def small_disk(embedded_site: EmbeddedSite) -> Iterator[Path]:
    """The state directory on a disk of 16 MiB."""
    state = embedded_site.directory / "state"
    state.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", str(state)], check=False)
    if done.returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield state
    subprocess.run(["umount", "--lazy", str(state)], check=True)


async def test_a_full_disk_stops_new_work_and_lets_the_running_trial_end(
    embedded_site: EmbeddedSite, small_disk: Path
) -> None:
    site = embedded_site
    filler = small_disk / "filler"
    async with Daemon(site) as daemon:
        trial = await daemon.submit()
        waiting = await daemon.submit(name="second")
        await daemon.reached(trial, "loading")
        with filler.open("wb", buffering=0) as file:
            while True:
                try:
                    file.write(b"x" * 4096)
                except OSError:
                    break
        assert os.statvfs(small_disk).f_bavail == 0
        await daemon.until_state(trial, "restored")
        health = await daemon.client.health()
        assert health["state"] == "degraded"
        assert "is full" in health["problem"]
        refused = daemon.command("submit", str(write_trial(site.directory / "t.toml", {"max-num-seqs": 8})))
        assert refused.returncode == 4
        assert "is full" in refused.stderr
        assert (await daemon.client.trial(waiting))["state"] == "queued"
        assert site.answers()
        filler.unlink()
        shown = await daemon.settled(waiting)
        assert shown["state"] == "restored"
        assert (await daemon.client.health())["state"] == "ok"
    assert site.traces() == []
