"""One connection to a host, through its hops: how it comes about, how its end is noticed, what its failures mean."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import asyncssh

from specd.errors import HostError, HostUnreachable, LoginRefused
from specd.hosts.ssh.gate import SessionGate
from specd.hosts.ssh.hops import HopPlan, plan
from specd.hosts.ssh.host_keys import KnownHosts, rejection
from specd.hosts.ssh.proxy import Proxy
from specd.settings import HostSettings

__all__ = ["Connection", "connect"]

_CLOSE_S = 2.0
# asyncssh gives up after one interval more than it counts unanswered requests.
_UNANSWERED = 2


class Connection:
    """An open connection to a host and what it leads through; `way` closes all that."""

    def __init__(
        self, ssh: asyncssh.SSHClientConnection, watch: "_Client", way: contextlib.AsyncExitStack, sessions: SessionGate
    ) -> None:
        self.ssh = ssh
        self.sessions = sessions
        self._watch = watch
        self._way = way

    @property
    def is_open(self) -> bool:
        """Whether it is not known to be lost."""
        return not self._watch.is_lost and not self.ssh.is_closed()

    async def close(self) -> None:
        """Close it and its hops, within seconds whatever the other side does."""
        self._watch.on_lost = None
        await self._way.aclose()


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
    async with contextlib.AsyncExitStack() as way:
        tunnel: asyncssh.SSHClientConnection | None = None
        for number, hop in enumerate(hops):
            dial = _Dial(settings, hop, _where(settings, hops, number), files, tunnel)
            tunnel = await dial.through(way)
        assert tunnel is not None
        # The connection is its transport's protocol: what comes in passes here, answers to keepalive requests too.
        vars(tunnel)["data_received"] = _hearing(tunnel.data_received, heard)
        dial.client.on_lost = on_lost
        return Connection(tunnel, dial.client, way.pop_all(), SessionGate())


def _hearing(receive: Callable[..., None], heard: Callable[[], None]) -> Callable[..., None]:
    def received(*arguments: Any) -> None:
        heard()
        receive(*arguments)

    return received


class _Dial:
    """The attempt to log in to one hop."""

    def __init__(
        self,
        settings: HostSettings,
        hop: HopPlan,
        where: str,
        files: Sequence[Path],
        tunnel: asyncssh.SSHClientConnection | None,
    ) -> None:
        self.client = _Client()
        self._settings = settings
        self._hop = hop
        self._where = where
        self._files = files
        self._tunnel = tunnel

    async def through(self, way: contextlib.AsyncExitStack) -> asyncssh.SSHClientConnection:
        """Log in; `way` gets what has to be closed later. Raises HostError."""
        hop, settings = self._hop, self._settings
        known = await asyncio.to_thread(KnownHosts, hop.known_hosts)
        proxy = Proxy(hop.proxy_command) if hop.proxy_command and self._tunnel is None else None
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                if proxy is not None:
                    way.push_async_callback(proxy.end)
                    await proxy.start()
                opened = await self._open(known, proxy)
        except (asyncssh.HostKeyNotVerifiable, asyncssh.KeyExchangeFailed) as problem:
            raise await self._distrust(known, problem) from problem
        except (asyncssh.Error, OSError, ValueError) as problem:
            words = f" (its ProxyCommand says: {proxy.words})" if proxy and proxy.words else ""
            raise _failure(problem, self._where + words, hop, settings) from problem
        way.push_async_callback(_close, opened)
        return opened

    async def _open(self, known: KnownHosts, proxy: Proxy | None) -> asyncssh.SSHClientConnection:
        hop, settings = self._hop, self._settings
        options: dict[str, Any] = {}
        if hop.identities is not None:
            options["client_keys"] = list(hop.identities)
        if proxy is not None:
            options["sock"] = proxy.socket
        return await asyncssh.connect(
            hop.hop.alias,
            hop.hop.port or (),
            username=hop.hop.user or (),
            tunnel=self._tunnel,
            proxy_command=None,
            config=[str(file) for file in self._files],
            known_hosts=known.trusted,
            client_factory=lambda: self.client,
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

    async def _distrust(self, known: KnownHosts, problem: asyncssh.DisconnectError) -> HostError:
        shown = self.client.shown_key
        if isinstance(problem, asyncssh.KeyExchangeFailed):
            if "host key" not in problem.reason.lower():
                what = f"no key exchange with {self._where}: {problem.reason}"
                return HostUnreachable(what, host=self._settings.name)
            shown = await self._shown_key()
        hop = self._hop
        rejected = rejection(self._where, known, hop.key_name, hop.port, shown, problem.reason)
        rejected.host = self._settings.name
        return rejected

    async def _shown_key(self) -> asyncssh.SSHKey | None:
        """Ask for the key of a host that has none of the known types, for the message only: nothing is logged in to."""
        with contextlib.suppress(asyncssh.Error, OSError, ValueError):
            async with asyncio.timeout(self._settings.connect_timeout_s):
                return await asyncssh.get_server_host_key(
                    self._hop.host, self._hop.port, tunnel=self._tunnel, config=None
                )
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
        keys = ", ".join(hop.identities or ()) or "the usual ones of ~/.ssh"
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
    words = str(problem)
    if isinstance(problem, OSError) and problem.errno is not None:
        # A resolver's numbers are below zero and have their own words.
        words = os.strerror(problem.errno) if problem.errno > 0 else problem.strerror or words
    return HostUnreachable(f"{where} can't be reached: {words or type(problem).__name__}", host=host)


async def _close(connection: asyncssh.SSHClientConnection) -> None:
    connection.close()
    try:
        async with asyncio.timeout(_CLOSE_S):
            await connection.wait_closed()
    except TimeoutError:
        connection.abort()
