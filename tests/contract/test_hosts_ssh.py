"""What only SSH can do wrong: banners, cut links, few sessions, keys, logins, hops."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from specd.errors import CommandTimedOut, HostError, HostUnreachable
from specd.hosts import Host, open_host
from tests.contract.hosts_ssh_server import Link, SshServer, ssh_server
from tests.contract.test_hosts_commands import ODD_WORDS, a_long_sleep, is_running, until

BANNER = r"printf '\033[1mWelcome to gpu1\033[0m\n'; echo maintenance tonight >&2; printf 'no newline '"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[SshServer]:
    async with ssh_server(tmp_path) as server:
        yield server


@contextlib.asynccontextmanager
async def opened(server: SshServer, **changes: object) -> AsyncIterator[Host]:
    host = open_host(server.settings(**changes), server.directory)
    try:
        yield host
    finally:
        await host.close()


# Banners and shells


async def test_banner_never_reaches_the_caller(server: SshServer, tmp_path: Path) -> None:
    server.banner = BANNER
    async with opened(server) as host:
        done = await host.run(["sh", "-c", "echo out; echo err >&2"])
        assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
        await host.write(f"{tmp_path}/unit", b"content")
        assert await host.read(f"{tmp_path}/unit") == b"content"
        assert await host.tool("sh") in ("/bin/sh", "/usr/bin/sh")
        async with host.follow(["printf", "a\\nb"]) as lines:
            assert [line async for line in lines] == [b"a", b"b"]


async def test_noise_at_logout_never_reaches_the_caller(server: SshServer) -> None:
    server.shell = "/bin/bash"
    server.banner = "trap 'echo bye; echo bye >&2' EXIT; exec() { \"$@\"; }"
    async with opened(server) as host:
        done = await host.run(["sh", "-c", "printf out; printf err >&2; exit 3"], check=False)
        assert (done.status, done.stdout, done.stderr) == (3, b"out", b"err")


async def test_output_that_looks_like_a_marker(server: SshServer) -> None:
    async with opened(server) as host:
        text = "specd-end-\nspecd-begin-0123456789abcdef 1\nspecd-end-0123456789abcdef 0\nspecd-end"
        assert (await host.run(["printf", "%s", text])).text == text


async def test_login_shell_that_runs_nothing(server: SshServer) -> None:
    server.banner = "echo This account is currently not available.; exit 1"
    async with opened(server) as host:
        with pytest.raises(HostUnreachable, match="currently not available"):
            await host.run(["true"])


SHELLS = [
    path for path in ("/bin/dash", "/bin/bash", "/bin/zsh", "/usr/bin/fish", "/bin/tcsh") if os.access(path, os.X_OK)
]


@pytest.mark.parametrize("shell", SHELLS)
async def test_any_login_shell(server: SshServer, shell: str) -> None:
    server.shell = shell
    async with opened(server) as host:
        done = await host.run(["printf", "%s\\0", *ODD_WORDS])
        assert done.stdout.decode(errors="surrogateescape").split("\0")[:-1] == ODD_WORDS


async def test_arguments_too_long_are_named(server: SshServer) -> None:
    async with opened(server) as host:
        with pytest.raises(HostError, match="too long"):
            await host.run(["echo", "x" * 200_000])


# Links


async def test_one_connection_is_kept(server: SshServer) -> None:
    async with opened(server) as host:
        await asyncio.gather(*(host.run(["true"]) for _ in range(5)))
        await host.run(["true"])
        assert len(server.logins) == 1
        await host.close()
        assert not host.link.connected
        await host.run(["true"])
        assert len(server.logins) == 2


async def test_cut_link_during_a_command_is_unknown(server: SshServer) -> None:
    changes: list[tuple[bool, str]] = []
    async with opened(server) as host:
        host.on_link = lambda connected, why: changes.append((connected, why))
        mine = a_long_sleep()
        task = asyncio.create_task(host.run(["sleep", mine], check=False))
        await until(lambda: is_running(mine))
        assert host.link.connected
        server.cut()
        with pytest.raises(HostUnreachable, match="no exit status of sleep"):
            await task
        assert not host.link.connected
        assert host.link.why_down
        assert [connected for connected, _ in changes] == [True, False]
        await until(lambda: not is_running(mine))
        assert (await host.run(["echo", "again"])).stdout == b"again\n"
        assert [connected for connected, _ in changes] == [True, False, True]


async def test_cut_link_ends_followers_with_an_error(server: SshServer) -> None:
    async with opened(server) as host:

        async def follow() -> None:
            async with host.follow(["sh", "-c", "echo one; sleep 60"]) as lines:
                assert await anext(lines) == b"one"
                server.cut()
                await anext(lines)

        with pytest.raises(HostUnreachable):
            await asyncio.wait_for(follow(), 5)


async def test_silent_loss_is_noticed_and_healed(server: SshServer) -> None:
    async with Link(server.port).running() as link:
        server.trust(server.host_key, link.port)
        server.write_config(port=link.port)
        async with opened(server, keepalive_s=0.2, connect_timeout_s=0.5) as host:
            started = time.monotonic()
            await host.run(["sleep", "2"])  # a quiet command longer than the time to notice
            assert time.monotonic() - started >= 2
            contact = host.link.last_contact
            assert contact is not None
            assert time.monotonic() - contact < 0.5
            mine = a_long_sleep()
            task = asyncio.create_task(host.run(["sleep", mine]))
            await until(lambda: is_running(mine))
            link.lose_everything()
            lost = time.monotonic()
            with pytest.raises(HostUnreachable, match="keepalive"):
                await task
            assert time.monotonic() - lost < 1.5
            assert host.link.last_contact is not None
            assert host.link.last_contact - lost < 0.3
            with pytest.raises(HostUnreachable, match="did not answer within"):
                await host.run(["true"])
            link.heal()
            await host.run(["true"])
            await until(lambda: not is_running(mine))


async def test_the_callers_deadline_holds_while_connecting(server: SshServer) -> None:
    async with Link(server.port).running() as link:
        link.lose_everything()
        server.write_config(port=link.port)
        async with opened(server, connect_timeout_s=30) as host:
            started = time.monotonic()
            with pytest.raises(HostUnreachable, match=r"connecting took more than 0\.3 s"):
                await host.run(["true"], timeout_s=0.3)
            assert time.monotonic() - started < 1


async def test_closing_while_others_wait(server: SshServer) -> None:
    async with Link(server.port).running() as link:
        link.lose_everything()
        server.write_config(port=link.port)
        async with opened(server) as host:
            connecting = asyncio.create_task(host.run(["true"]))
            await until(lambda: len(server.connections) == 1)
            await host.close()
            with pytest.raises(HostUnreachable, match="closed while connecting"):
                await connecting
            server.write_config()
            running = asyncio.create_task(host.run(["sleep", a_long_sleep()]))
            await until(lambda: host.link.connected)
            await host.close()
            with pytest.raises(HostUnreachable):
                await running


async def test_tries_are_spaced_and_shared(server: SshServer, unused_tcp_port: int) -> None:
    server.write_config(port=unused_tcp_port)
    async with opened(server) as host:
        started = time.monotonic()
        answers = await asyncio.gather(*(host.run(["true"]) for _ in range(20)), return_exceptions=True)
        assert all(isinstance(answer, HostUnreachable) for answer in answers)
        assert "refused" in str(answers[0]).lower()
        assert host.link.why_down
        for _ in range(3):
            with pytest.raises(HostUnreachable):
                await host.run(["true"])
        assert time.monotonic() - started > 0.2 + 0.4 + 0.8 - 0.1


async def test_killed_daemon_leaves_no_follower(server: SshServer) -> None:
    mine = a_long_sleep()
    script = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom specd.hosts import open_host\n"
        "from specd.settings import HostSettings\n"
        "async def main():\n"
        "    host = open_host(HostSettings(name='gpu1', ssh=sys.argv[1], ssh_config=sys.argv[2]), Path())\n"
        "    async with host.follow(['sleep', sys.argv[3]]) as lines:\n"
        "        print('ready', flush=True)\n"
        "        await anext(lines)\n"
        "asyncio.run(main())\n"
    )
    argv = [sys.executable, "-c", script, server.alias, str(server.config), mine]
    daemon = subprocess.Popen(argv, stdout=subprocess.PIPE)
    try:
        assert daemon.stdout is not None
        assert await asyncio.to_thread(daemon.stdout.readline) == b"ready\n"
        await until(lambda: any(True for _ in running_shells(mine)))
    finally:
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
        if daemon.stdout:
            daemon.stdout.close()
    await until(lambda: not any(True for _ in running_shells(mine)))


def running_shells(mine: str) -> list[int]:
    """Return processes that are `sleep MINE`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cmdline").read_bytes() == f"sleep\0{mine}\0".encode():
                found.append(int(process.name))
    return found


# Sessions


async def test_two_sessions_carry_a_follower_and_queued_commands(server: SshServer) -> None:
    server.max_sessions = 2
    async with opened(server) as host, host.follow(["sh", "-c", "echo up; sleep 60"]) as lines:
        assert await anext(lines) == b"up"
        answers = await asyncio.gather(*(host.run(["echo", str(number)]) for number in range(25)))
        assert [answer.text for answer in answers] == [f"{number}\n" for number in range(25)]
        assert server.most_sessions == 2
        refused = server.refused_sessions
        await asyncio.gather(*(host.run(["sleep", "0.05"]) for _ in range(10)))
        assert server.refused_sessions <= refused + 10, "the limit was learnt"
        assert len(server.logins) == 1


async def test_no_session_left_says_so(server: SshServer) -> None:
    server.max_sessions = 1
    async with opened(server) as host, host.follow(["sh", "-c", "echo up; sleep 60"]) as lines:
        assert await anext(lines) == b"up"
        with pytest.raises(HostUnreachable, match="free session"):
            await host.run(["true"], timeout_s=1)


async def test_server_without_sessions_says_so(server: SshServer) -> None:
    server.max_sessions = 0
    async with opened(server) as host:
        with pytest.raises(HostUnreachable, match="opens no session"):
            await host.run(["true"], timeout_s=10)


async def test_timed_out_command_gives_its_session_back(server: SshServer) -> None:
    server.max_sessions = 1
    async with opened(server) as host:
        for _ in range(2):
            with pytest.raises(CommandTimedOut):
                await host.run(["sleep", a_long_sleep()], timeout_s=2)
        assert (await host.run(["echo", "fine"], timeout_s=20)).stdout == b"fine\n"
