"""What can befall a trial from outside, by name. A fault is a context: it has struck when its body begins, and what can
be over is over when the body has ended."""

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from tests.rig import Daemon, EmbeddedSite, RemoteSite, Site, SmallDisk

__all__ = ["CLOCK", "FAULTS", "OF_THE_DAEMON", "Scene", "faults_of", "strike"]

CLOCK = "clock"
"""Name of the file, beside the config, with the seconds by which the daemon's wall clock is off."""
STEP_S = 3600.0
_JOURNAL = "/var/log/journal"
# A journal that has no room where it belongs; in /run there is none soon.
_FILL_JOURNAL = (
    'mount -t tmpfs -o size=16k full "$1" && { dd if=/dev/zero of="$1/.filler" bs=4k 2>/dev/null; '
    "systemctl restart systemd-journald; }"
)


@dataclass(frozen=True, slots=True)
class Scene:
    """Where a fault happens: the site, the daemon beside it, the disk of its state, the trial."""

    site: Site
    daemon: Daemon
    disk: SmallDisk | None
    trial: str


Fault = Callable[[Scene], AbstractAsyncContextManager[None]]


async def strike(scene: Scene, fault: str, seconds: float) -> None:
    """Let a fault happen and last for some seconds."""
    async with FAULTS[fault](scene):
        await asyncio.sleep(seconds)


def _remote(scene: Scene) -> RemoteSite:
    assert isinstance(scene.site, RemoteSite)
    return scene.site


def _serving_unit(scene: Scene) -> str:
    """Return the unit that runs now, the candidate's first."""
    candidate = f"specd-{scene.trial}.service"
    return candidate if scene.site.is_active(candidate) else scene.site.unit


# -- the daemon, its machine


@asynccontextmanager
async def daemon_killed(scene: Scene) -> AsyncIterator[None]:
    """kill -9 of the daemon, which is started again after a while."""
    scene.daemon.kill()
    yield
    await scene.daemon.start()


@asynccontextmanager
async def daemon_frozen(scene: Scene) -> AsyncIterator[None]:
    """The daemon stands still."""
    scene.daemon.signal(signal.SIGSTOP)
    yield
    scene.daemon.signal(signal.SIGCONT)


@asynccontextmanager
async def daemon_disk_full(scene: Scene) -> AsyncIterator[None]:
    """There is no byte left for the daemon's database."""
    assert scene.disk is not None
    await asyncio.to_thread(scene.disk.fill)
    yield
    scene.disk.relieve()


@asynccontextmanager
async def database_locked(scene: Scene) -> AsyncIterator[None]:
    """Another process writes to the database."""
    other = sqlite3.connect(scene.site.directory / "state" / "specd.db", isolation_level=None, timeout=5)
    other.execute("BEGIN IMMEDIATE")
    yield
    other.execute("ROLLBACK")
    other.close()


@asynccontextmanager
async def clock_stepped(scene: Scene) -> AsyncIterator[None]:
    """The daemon's wall clock jumps an hour forward, or two back when it is ahead, and stays there."""
    file = scene.site.directory / CLOCK
    ahead = file.exists() and float(file.read_text()) > 0
    file.write_text(str(-STEP_S if ahead else STEP_S))
    yield


# -- the engine


@asynccontextmanager
async def engine_killed(scene: Scene) -> AsyncIterator[None]:
    """kill -9 of the main process of whichever unit runs."""
    await asyncio.to_thread(scene.site.signal_engine, _serving_unit(scene), signal.SIGKILL)
    yield


@asynccontextmanager
async def engine_frozen(scene: Scene) -> AsyncIterator[None]:
    """The engine stands still, then goes on."""
    unit = _serving_unit(scene)
    await asyncio.to_thread(scene.site.signal_engine, unit, signal.SIGSTOP)
    yield
    await asyncio.to_thread(scene.site.signal_engine, unit, signal.SIGCONT)


# -- the host


@asynccontextmanager
async def link_cut(scene: Scene) -> AsyncIterator[None]:
    """The host's network is gone."""
    await asyncio.to_thread(_remote(scene).host.netdown)
    yield
    await asyncio.to_thread(_remote(scene).host.netup)


@asynccontextmanager
async def packets_lost(scene: Scene) -> AsyncIterator[None]:
    """Every packet is lost, without a word."""
    await asyncio.to_thread(_remote(scene).host.drop)
    yield
    await asyncio.to_thread(_remote(scene).host.undrop)


@asynccontextmanager
async def host_frozen(scene: Scene) -> AsyncIterator[None]:
    """The host stands still as a whole."""
    await asyncio.to_thread(_remote(scene).host.freeze)
    yield
    await asyncio.to_thread(_remote(scene).host.thaw)


@asynccontextmanager
async def host_rebooted(scene: Scene) -> AsyncIterator[None]:
    """The host is restarted in order."""
    rebooting = asyncio.create_task(asyncio.to_thread(_remote(scene).host.reboot))
    yield
    await rebooting


@asynccontextmanager
async def power_cut(scene: Scene) -> AsyncIterator[None]:
    """The host, or the supervisor, is gone from one instant to the next, and comes up again."""
    if isinstance(scene.site, EmbeddedSite):
        await asyncio.to_thread(scene.site.kill_supervisor)
        yield
        scene.site.boot()
        return
    await asyncio.to_thread(_remote(scene).host.crash)
    yield
    await asyncio.to_thread(_remote(scene).host.boot)


@asynccontextmanager
async def host_disk_full(scene: Scene) -> AsyncIterator[None]:
    """There is no byte left for units, guards and claims, nor for the journal."""
    host = _remote(scene).host
    await asyncio.to_thread(host.exec, ["sh", "-c", _FILL_JOURNAL, "fill", _JOURNAL])
    await asyncio.to_thread(host.squeeze, "/run")
    yield
    await asyncio.to_thread(host.widen, "/run")
    await asyncio.to_thread(host.exec, ["umount", "--lazy", _JOURNAL])
    await asyncio.to_thread(host.systemctl, "restart", "systemd-journald")


@asynccontextmanager
async def sshd_restarted(scene: Scene) -> AsyncIterator[None]:
    """sshd and all its sessions are ended, and it is started again."""
    await asyncio.to_thread(_remote(scene).end_sessions)
    yield


@asynccontextmanager
async def journald_restarted(scene: Scene) -> AsyncIterator[None]:
    """The journal's daemon is ended and started again by systemd, as often as it is asked to."""
    await asyncio.to_thread(_remote(scene).host.systemctl, "reset-failed", "systemd-journald")
    await asyncio.to_thread(_remote(scene).host.systemctl, "restart", "systemd-journald")
    yield


@asynccontextmanager
async def systemd_reexecuted(scene: Scene) -> AsyncIterator[None]:
    """systemd executes itself anew, as a package update does."""
    await asyncio.to_thread(_remote(scene).host.systemctl, "daemon-reexec")
    yield


OF_THE_DAEMON = frozenset({"daemon-killed", "daemon-frozen"})
_ANYWHERE = (daemon_killed, daemon_frozen, database_locked, clock_stepped, engine_killed, engine_frozen, power_cut)
_REMOTE = (
    *(link_cut, packets_lost, host_frozen, host_rebooted, host_disk_full),
    *(sshd_restarted, journald_restarted, systemd_reexecuted),
)
FAULTS: dict[str, Fault] = {
    fault.__name__.replace("_", "-"): fault for fault in (*_ANYWHERE, daemon_disk_full, *_REMOTE)
}
# A kill where `leave_orphans` was called before.
FAULTS["orphans-left"] = engine_killed


def faults_of(site: Site, disk: SmallDisk | None) -> tuple[str, ...]:
    """Return the names of the faults that can happen there."""
    remote = {fault.__name__.replace("_", "-") for fault in _REMOTE}
    return tuple(
        name
        for name in FAULTS
        if (isinstance(site, RemoteSite) or name not in remote) and (disk is not None or name != "daemon-disk-full")
    )
