"""An SSH server in this process, which runs real commands of this machine, and a link to it that can be cut."""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
from asyncio.streams import FlowControlMixin
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import asyncssh

from specd.settings import HostSettings

_ALIASES = itertools.count(1)


@dataclass
class SshServer:
    """One server; what it does can be changed while it runs."""

    directory: Path
    alias: str
    host_key: asyncssh.SSHKey
    client_key: asyncssh.SSHKey
    port: int = 0
    user: str = "operator"
    banner: str = ""
    shell: str = "/bin/sh"
    max_sessions: int = 100
    allows_forwarding: bool = True
    jump: "SshServer | None" = None
    open_sessions: int = 0
    most_sessions: int = 0
    refused_sessions: int = 0
    connections: list[asyncssh.SSHServerConnection] = field(default_factory=list)
    forwards: list[tuple[str, int]] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def known_hosts(self) -> Path:
        return self.directory / f"{self.alias}.known_hosts"

    @property
    def identity(self) -> Path:
        return self.directory / f"{self.alias}.key"

    @property
    def config(self) -> Path:
        return self.directory / f"{self.alias}.config"

    def trust(self, key: asyncssh.SSHKey | None, port: int = 0) -> None:
        """Make `key` what the client knows of this server; None: nothing."""
        line = f"[127.0.0.1]:{port or self.port} {public_line(key)}\n" if key else ""
        self.known_hosts.write_text("# trusted\n" + line)

    def write_config(self, extra: str = "", port: int = 0) -> None:
        """Write the client's configuration for this server."""
        self.config.write_text(
            f"Host {self.alias}\n  HostName 127.0.0.1\n  Port {port or self.port}\n  User {self.user}\n"
            f"  IdentityFile {self.identity}\n  IdentitiesOnly yes\n  UserKnownHostsFile {self.known_hosts}\n"
            f"  GlobalKnownHostsFile /dev/null\n{extra}"
        )

    def settings(self, **changes: object) -> HostSettings:
        """Return the settings of a host that is this server."""
        given: dict[str, object] = {"name": "gpu1", "ssh": self.alias, "ssh_config": str(self.config)}
        return HostSettings(**(given | changes))  # type: ignore[arg-type]

    def cut(self) -> None:
        """Drop every connection without a word."""
        for connection in self.connections:
            connection.abort()
        self.connections.clear()


def public_line(key: asyncssh.SSHKey) -> str:
    return " ".join(key.export_public_key().decode().split()[:2])


class _Server(asyncssh.SSHServer):
    def __init__(self, model: SshServer, serve: Callable[..., Awaitable[None]]) -> None:
        self._model = model
        self._serve = serve

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._model.connections.append(conn)

    def begin_auth(self, username: str) -> bool:
        self._model.logins.append(username)
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == self._model.user and key == self._model.client_key.convert_to_public()

    def session_requested(self) -> "asyncssh.SSHServerProcess[bytes] | bool":
        model = self._model
        if model.open_sessions >= model.max_sessions:
            model.refused_sessions += 1
            return False
        model.open_sessions += 1
        model.most_sessions = max(model.most_sessions, model.open_sessions)
        return asyncssh.SSHServerProcess(self._serve, None, 3, False)

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        self._model.forwards.append((dest_host, dest_port))
        return self._model.allows_forwarding


async def _serve(model: SshServer, process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Run the command as sshd does: by the user's shell, in a session of its own, with pipes, whole output first.

    When the client closes the channel only the pipes are closed: the command itself is left alone.
    """
    script = f"{model.banner}\n{process.command}"
    child = subprocess.Popen(
        [model.shell, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, bufsize=0,
    )  # fmt: skip
    model.children.append(child)
    assert child.stdin is not None
    pumps = [asyncio.create_task(_pump_input(process, child.stdin))]
    pumps += [asyncio.create_task(_pump_output(child.stdout, process.stdout))]
    pumps += [asyncio.create_task(_pump_output(child.stderr, process.stderr))]
    closed = asyncio.create_task(process.wait_closed())
    ended = asyncio.gather(asyncio.to_thread(child.wait), *pumps[1:])
    try:
        await asyncio.wait([ended, closed], return_when=asyncio.FIRST_COMPLETED)
        if not closed.done():
            if child.returncode < 0:
                process.exit_with_signal(signal.Signals(-child.returncode).name.removeprefix("SIG"))
            else:
                process.exit(child.returncode)
        await closed
    finally:
        for task in (*pumps, closed):
            task.cancel()
        model.open_sessions -= 1
        await asyncio.gather(*pumps, ended, closed, return_exceptions=True)


async def _pump_input(process: asyncssh.SSHServerProcess[bytes], sink: IO[bytes]) -> None:
    transport, protocol = await asyncio.get_running_loop().connect_write_pipe(FlowControlMixin, sink)
    writer = asyncio.StreamWriter(transport, protocol, None, asyncio.get_running_loop())
    try:
        with contextlib.suppress(OSError, asyncssh.Error):
            while received := await process.stdin.read(2**16):
                writer.write(received)
                await writer.drain()
    finally:
        writer.close()


async def _pump_output(source: IO[bytes] | None, sink: asyncssh.SSHWriter[bytes]) -> None:
    assert source is not None
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, source)
    try:
        with contextlib.suppress(OSError, asyncssh.Error):
            while received := await reader.read(2**16):
                sink.write(received)
                await sink.drain()
    finally:
        transport.close()


@contextlib.asynccontextmanager
async def ssh_server(directory: Path, *, jump: SshServer | None = None) -> AsyncIterator[SshServer]:
    """Run a server on loopback with keys and a client configuration of its own."""
    alias = f"server{next(_ALIASES)}"
    host_key, client_key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    model = SshServer(directory, alias, host_key, client_key, jump=jump)
    client_key.write_private_key(str(model.identity))
    model.identity.chmod(0o600)

    serving: set[asyncio.Task[None]] = set()

    async def serve(process: asyncssh.SSHServerProcess[bytes]) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        await _serve(model, process)
        serving.discard(task)

    listener = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=lambda: _Server(model, serve),
        server_host_keys=[host_key],
        encoding=None,
    )
    model.port = listener.get_port()
    model.trust(host_key)
    extra = f"  ProxyJump {jump.alias}\n{jump.config.read_text()}" if jump else ""
    model.write_config(extra)
    try:
        yield model
    finally:
        listener.close()
        model.cut()
        await listener.wait_closed()
        for child in model.children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await asyncio.to_thread(child.wait)
        await asyncio.gather(*serving, return_exceptions=True)


class Link:
    """A TCP relay that can hold everything back, as a network that loses packets does."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._may_pass = asyncio.Event()
        self._may_pass.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def lose_everything(self) -> None:
        self._may_pass.clear()

    def heal(self) -> None:
        self._may_pass.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Link"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            try:
                await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
            finally:
                far_writer.close()
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while received := await source.read(2**16):
                await self._may_pass.wait()
                sink.write(received)
                await sink.drain()
        sink.close()
