"""What can befall a trial from outside, by name, on either site. Each returns once it has happened and is over."""

import asyncio
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.rig import Daemon, EmbeddedSite, RemoteSite, Site

__all__ = ["FAULTS", "Scene", "faults_of"]


@dataclass(frozen=True, slots=True)
class Scene:
    """Where a fault happens: the site, the daemon beside it, the trial; `seconds` is how long a lasting one lasts."""

    site: Site
    daemon: Daemon
    trial: str
    seconds: float


Fault = Callable[[Scene], Awaitable[None]]


def remote(scene: Scene) -> RemoteSite:
    """Return the site as the systemd host that it is."""
    assert isinstance(scene.site, RemoteSite)
    return scene.site


async def daemon_killed(scene: Scene) -> None:
    """kill -9 of the daemon, which is started again after a while."""
    scene.daemon.kill()
    await asyncio.sleep(scene.seconds)
    await scene.daemon.start()


async def daemon_frozen(scene: Scene) -> None:
    """The daemon stands still."""
    scene.daemon.signal(signal.SIGSTOP)
    await asyncio.sleep(scene.seconds)
    scene.daemon.signal(signal.SIGCONT)


async def database_locked(scene: Scene) -> None:
    """Another process writes to the database."""
    other = sqlite3.connect(scene.site.directory / "state" / "specd.db", isolation_level=None, timeout=5)
    other.execute("BEGIN IMMEDIATE")
    await asyncio.sleep(scene.seconds)
    other.execute("ROLLBACK")
    other.close()


def serving_unit(scene: Scene) -> str:
    """Return the unit that runs now, the candidate's first."""
    candidate = f"specd-{scene.trial}.service"
    return candidate if scene.site.is_active(candidate) else scene.site.unit


async def engine_killed(scene: Scene) -> None:
    """kill -9 of the main process of whichever unit runs."""
    await asyncio.to_thread(scene.site.signal_engine, serving_unit(scene), signal.SIGKILL)


async def engine_frozen(scene: Scene) -> None:
    """The engine stands still, then goes on."""
    unit = serving_unit(scene)
    await asyncio.to_thread(scene.site.signal_engine, unit, signal.SIGSTOP)
    await asyncio.sleep(scene.seconds)
    await asyncio.to_thread(scene.site.signal_engine, unit, signal.SIGCONT)


async def link_cut(scene: Scene) -> None:
    """The host's network is gone."""
    await asyncio.to_thread(remote(scene).host.netdown)
    await asyncio.sleep(scene.seconds)
    await asyncio.to_thread(remote(scene).host.netup)


async def packets_lost(scene: Scene) -> None:
    """Every packet is lost, without a word."""
    await asyncio.to_thread(remote(scene).host.drop)
    await asyncio.sleep(scene.seconds)
    await asyncio.to_thread(remote(scene).host.undrop)


async def host_frozen(scene: Scene) -> None:
    """The host stands still as a whole."""
    await asyncio.to_thread(remote(scene).host.freeze)
    await asyncio.sleep(scene.seconds)
    await asyncio.to_thread(remote(scene).host.thaw)


async def host_rebooted(scene: Scene) -> None:
    """The host is restarted in order."""
    await asyncio.to_thread(remote(scene).host.reboot)


async def power_cut(scene: Scene) -> None:
    """The host, or the supervisor, is gone from one instant to the next, and comes up again."""
    if isinstance(scene.site, EmbeddedSite):
        await asyncio.to_thread(scene.site.crash)
        return
    await asyncio.to_thread(remote(scene).host.crash)
    await asyncio.sleep(min(1.0, scene.seconds))
    await asyncio.to_thread(remote(scene).host.boot)


async def sshd_restarted(scene: Scene) -> None:
    """sshd and all its sessions are ended, and it is started again."""
    await asyncio.to_thread(remote(scene).end_sessions)


async def journald_restarted(scene: Scene) -> None:
    """The journal's daemon is ended and started again by systemd."""
    await asyncio.to_thread(remote(scene).host.systemctl, "restart", "systemd-journald")


async def systemd_reexecuted(scene: Scene) -> None:
    """systemd executes itself anew, as a package update does."""
    await asyncio.to_thread(remote(scene).host.systemctl, "daemon-reexec")


FAULTS: dict[str, Fault] = {
    fault.__name__.replace("_", "-"): fault
    for fault in (
        *(daemon_killed, daemon_frozen, database_locked, engine_killed, engine_frozen, power_cut),
        *(link_cut, packets_lost, host_frozen, host_rebooted, sshd_restarted, journald_restarted, systemd_reexecuted),
    )
}
_ANYWHERE = ("daemon-killed", "daemon-frozen", "database-locked", "engine-killed", "engine-frozen", "power-cut")


def faults_of(site: Site) -> tuple[str, ...]:
    """Return the names of the faults that a site knows."""
    return tuple(FAULTS) if isinstance(site, RemoteSite) else _ANYWHERE
