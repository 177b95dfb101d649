"""Who may speak to the daemon: modes of its directories, a token over TCP, one daemon for one directory."""

import asyncio
import json
import signal
import socket
import stat
from pathlib import Path

import aiohttp
import pytest

from specd.cli.client import ApiClient, ApiError
from specd.errors import DaemonUnreachable
from tests.rig import Daemon, EmbeddedSite

TOKEN = "a-token-of-many-characters"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def with_tcp(site: EmbeddedSite, port: int, token: str) -> Daemon:
    """Return a daemon that listens on TCP too."""
    token_file = site.directory / "token"
    token_file.write_text(token + "\n")
    daemon = Daemon(site)
    text = daemon.config.read_text()
    extra = f'[daemon]\ntcp = "127.0.0.1:{port}"\ntoken_file = {json.dumps(str(token_file))}'
    daemon.config.write_text(text.replace("[daemon]", extra, 1))
    return daemon


async def test_socket_and_directories_are_the_owners_alone(embedded_site: EmbeddedSite) -> None:
    async with Daemon(embedded_site) as daemon:
        assert mode(daemon.socket) == 0o600
        assert stat.S_ISSOCK(daemon.socket.stat().st_mode)
        assert mode(daemon.socket.parent) == 0o700
        assert mode(embedded_site.directory / "state") == 0o700
        readable = [path for path in (embedded_site.directory / "state").iterdir() if mode(path) & 0o077]
        assert readable == []
        second = await asyncio.to_thread(daemon.command, "start")
        assert second.returncode == 4
        assert str(daemon.pid) in second.stderr
        assert (await daemon.client.health())["pid"] == daemon.pid, "the second daemon took the socket"
        await asyncio.to_thread(daemon.end, signal.SIGTERM)
        assert not daemon.socket.exists()
        # What a kill leaves behind is taken over, not stumbled over.
        await daemon.start()
        await asyncio.to_thread(daemon.kill)
        assert daemon.socket.exists()
        await daemon.start()
        assert mode(daemon.socket) == 0o600


@pytest.mark.parametrize("name", ["state", "run"])
async def test_a_directory_that_is_open_to_others_is_refused(embedded_site: EmbeddedSite, name: str) -> None:
    directory = embedded_site.directory / name
    directory.mkdir()
    directory.chmod(0o755)
    daemon = Daemon(embedded_site)
    refused = await asyncio.to_thread(daemon.command, "start")
    assert refused.returncode == 4
    assert str(directory) in refused.stderr
    assert "chmod 700" in refused.stderr
    assert not daemon.socket.exists()
    directory.chmod(0o700)
    async with daemon:
        assert (await daemon.client.health())["state"] == "ok"


async def test_tcp_wants_the_token_for_everything(embedded_site: EmbeddedSite) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with with_tcp(embedded_site, port, TOKEN):
        async with ApiClient(url, token=TOKEN) as client:
            assert (await client.health())["state"] == "ok"
            async with client.events(0) as events:
                assert (await anext(events))["type"] == "DaemonStarted"
        for headers in (
            {},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": TOKEN},
            {"Authorization": "\udce9"},
        ):
            async with aiohttp.ClientSession(url, headers=headers) as session:
                for path in ("/v1/health", "/v1/events", "/metrics", "/openapi.json", "/nothing"):
                    async with session.get(path) as answer:
                        assert answer.status == 401, (path, headers)
                        assert (await answer.json())["exit_code"] == 3
        async with ApiClient(url, token="wrong-but-long-enough") as client:
            with pytest.raises(ApiError, match="token"):
                await client.health()


@pytest.mark.parametrize("token", ["", "short"])
async def test_a_token_that_protects_nothing_is_refused(embedded_site: EmbeddedSite, token: str) -> None:
    daemon = with_tcp(embedded_site, free_port(), token)
    refused = await asyncio.to_thread(daemon.command, "start")
    assert refused.returncode == 2
    assert "16 characters" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not daemon.socket.exists()


async def test_a_taken_port_is_named(embedded_site: EmbeddedSite) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        daemon = with_tcp(embedded_site, port, TOKEN)
        refused = await asyncio.to_thread(daemon.command, "start")
    assert refused.returncode == 2
    assert str(port) in refused.stderr
    assert "Traceback" not in refused.stderr
    async with ApiClient(str(daemon.socket)) as client:
        with pytest.raises(DaemonUnreachable):
            await client.health()
