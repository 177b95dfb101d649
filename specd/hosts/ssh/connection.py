"""One connection to a host, through its hops: how it comes about, how its end is noticed, what its failures mean."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import asyncssh

from specd.errors import HostError, HostUnreachable, LoginRefused
from specd.hosts.ssh.gate import SessionGate
from specd.hosts.ssh.hops import HopPlan, plan
from specd.hosts.ssh.host_keys import KnownHosts, rejection
from specd.settings import HostSettings

__all__ = ["Connection", "connect"]

_CLOSE_S = 2.0
# asyncssh gives up after one interval more than it counts unanswered requests.
_UNANSWERED = 2


class Connection:
    """An open connection to a host and those of the hops it leads through."""

    def __init__(self, hops: Sequence[asyncssh.SSHClientConnection], watch: "_Client") -> None:
        self._hops = list(hops)
        self._watch = watch
        self.ssh = self._hops[-1]
        self.sessions = SessionGate()

    @property
    def is_open(self) -> bool:
        """Whether it is not known to be lost."""
        return not self._watch.is_lost and not self.ssh.is_closed()

    @property
    def why_lost(self) -> str:
        """What ended it."""
        return self._watch.why

    async def close(self) -> None:
        """Close it and its hops, within seconds whatever the other side does."""
        self._watch.on_lost = None
        await _close(self._hops)


class _Client(asyncssh.SSHClient):
    """What asyncssh tells about a connection."""

    def __init__(self) -> None:
        self.on_lost: Callable[[str], None] | None = None
        self.shown_key: asyncssh.SSHKey | None = None
        self.is_lost = False
        self.why = ""

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Note a key that is not trusted, for the message."""
        self.shown_key = key
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.why = str(exc) if exc else "closed"
        if self.on_lost:
            self.on_lost(self.why)


async def connect(settings: HostSettings, *, on_lost: Callable[[str], None], heard: Callable[[], None]) -> Connection:
    """Connect through all hops; raises HostUnreachable, HostKeyRejected, LoginRefused, each naming the hop."""
    hops, files = await plan(settings)
    opened: list[asyncssh.SSHClientConnection] = []
    try:
        for number, hop in enumerate(hops):
            where = _where(settings, hops, number)
            known = await asyncio.to_thread(KnownHosts, hop.known_hosts)
            client = _Client()
            tunnel = opened[-1] if opened else None
            try:
                async with asyncio.timeout(settings.connect_timeout_s):
                    opened.append(await _open(hop, files, settings, known, client, tunnel))
            except asyncssh.HostKeyNotVerifiable as problem:
                raise rejection(where, known, hop.key_name, hop.port, client.shown_key, problem.reason) from problem
            except asyncssh.KeyExchangeFailed as problem:
                if "host key" not in problem.reason.lower():
                    what = f"no key exchange with {where}: {problem.reason}"
                    raise HostUnreachable(what, host=settings.name) from problem
                shown = await _shown_key(hop, tunnel, settings)
                raise rejection(where, known, hop.key_name, hop.port, shown, problem.reason) from problem
            except (asyncssh.Error, OSError, ValueError) as problem:
                raise _failure(problem, where, hop, settings) from problem
    except BaseException:
        with contextlib.suppress(TimeoutError):
            await _close(opened)
        raise
    # The connection is the transport's protocol object: what it receives passes through here, keepalive answers too.
    last = opened[-1]
    vars(last)["data_received"] = _hearing(last.data_received, heard)
    client.on_lost = on_lost
    return Connection(opened, client)


def _hearing(receive: Callable[..., None], heard: Callable[[], None]) -> Callable[..., None]:
    def received(*arguments: Any) -> None:
        heard()
        receive(*arguments)

    return received


async def _open(
    hop: HopPlan,
    files: Sequence[Path],
    settings: HostSettings,
    known: KnownHosts,
    client: _Client,
    tunnel: asyncssh.SSHClientConnection | None,
) -> asyncssh.SSHClientConnection:
    options: dict[str, Any] = {}
    if hop.identities:
        options["client_keys"] = list(hop.identities)
    if tunnel is not None or not hop.proxy_command:
        options["proxy_command"] = None
    else:
        # The user's own configuration, which ssh gives to a shell as well.
        options["proxy_command"] = ["/bin/sh", "-c", f"exec {hop.proxy_command}"]
    return await asyncssh.connect(
        hop.hop.alias,
        hop.hop.port or (),
        username=hop.hop.user or (),
        tunnel=tunnel,
        config=[str(file) for file in files],
        known_hosts=known.trusted,
        client_factory=lambda: client,
        ignore_encrypted=True,
        keepalive_interval=settings.keepalive_s,
        keepalive_count_max=_UNANSWERED,
        connect_timeout=None,
        login_timeout=settings.connect_timeout_s,
        agent_forwarding=False,
        x11_forwarding=False,
        command=None,
        **options,
    )


async def _shown_key(
    hop: HopPlan, tunnel: asyncssh.SSHClientConnection | None, settings: HostSettings
) -> asyncssh.SSHKey | None:
    """Ask for the key of a host that has none of the types we know, for the message only: nothing is logged in to."""
    with contextlib.suppress(asyncssh.Error, OSError, ValueError):
        async with asyncio.timeout(settings.connect_timeout_s):
            return await asyncssh.get_server_host_key(hop.host, hop.port, tunnel=tunnel, config=None)
    return None


def _where(settings: HostSettings, hops: Sequence[HopPlan], number: int) -> str:
    hop = hops[number]
    place = f"{hop.user}@{hop.host}:{hop.port}"
    if number == len(hops) - 1:
        through = f" through {hops[number - 1].hop}" if number else ""
        return f"{settings.name} ({place}{through})"
    return f"hop {hop.hop} ({place}, {number + 1} of {len(hops) - 1} to {settings.name})"


def _failure(problem: Exception, where: str, hop: HopPlan, settings: HostSettings) -> HostError:
    host = settings.name
    refused = isinstance(problem, asyncssh.PermissionDenied) or (
        isinstance(problem, asyncssh.DisconnectError) and "authentication" in problem.reason.lower()
    )
    if refused:
        keys = ", ".join(hop.identities) or "the usual ones of ~/.ssh"
        step = (
            f"keys offered: those of the agent, if one runs, and {keys}, if readable without a passphrase; "
            f"try: ssh {hop.hop}"
        )
        return LoginRefused(f"{where} accepts none of our keys for user {hop.user}", host=host, next_step=step)
    if isinstance(problem, TimeoutError):
        return HostUnreachable(f"{where} did not answer within {settings.connect_timeout_s:g} s", host=host)
    if isinstance(problem, asyncssh.ChannelOpenError):
        return HostUnreachable(f"{where} can't be reached from there: {problem.reason}", host=host)
    if isinstance(problem, ValueError):
        return HostError(f"the ssh configuration for {where} can't be used: {problem}", host=host)
    words = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
    return HostUnreachable(f"{where} can't be reached: {words or type(problem).__name__}", host=host)


async def _close(opened: Sequence[asyncssh.SSHClientConnection]) -> None:
    for connection in reversed(opened):
        connection.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await connection.wait_closed()
        except TimeoutError:
            connection.abort()
