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

import asyncssh
import pytest

from specd.errors import CommandTimedOut, HostError, HostKeyRejected, HostUnreachable, LoginRefused
from specd.hosts import Host, open_host
from specd.hosts.ssh_config import unsupported_directives
from tests.contract.hosts_ssh_server import Link, SshServer, public_line, ssh_server
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


# Host keys


def fingerprint(key: asyncssh.SSHKey) -> str:
    return key.get_fingerprint()


async def test_unknown_host_key(server: SshServer) -> None:
    server.trust(None)
    async with opened(server) as host:
        with pytest.raises(HostKeyRejected, match="unknown") as caught:
            await host.run(["true"])
    text = str(caught.value)
    assert fingerprint(server.host_key) in text
    assert f"[127.0.0.1]:{server.port} {public_line(server.host_key)}" in caught.value.next_step
    assert str(server.known_hosts) in caught.value.next_step
    assert server.logins == []
    assert server.known_hosts.read_text() == "# trusted\n"


async def test_changed_host_key_is_not_asked_again(server: SshServer) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519")
    server.trust(other)
    async with opened(server) as host:
        with pytest.raises(HostKeyRejected, match="changed") as caught:
            await host.run(["true"])
        text = str(caught.value)
        assert fingerprint(server.host_key) in text
        assert fingerprint(other) in text
        assert f"{server.known_hosts}:2" in text
        connections = len(server.connections)
        for _ in range(20):
            with pytest.raises(HostKeyRejected):
                await host.run(["true"])
        assert len(server.connections) == connections
        assert not host.link.connected
        assert "changed" in host.link.why_down


async def test_changed_host_key_of_another_type(server: SshServer) -> None:
    other = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
    server.trust(other)
    async with opened(server) as host:
        with pytest.raises(HostKeyRejected, match="changed") as caught:
            await host.run(["true"])
    assert fingerprint(other) in str(caught.value)
    assert fingerprint(server.host_key) in str(caught.value)


async def test_revoked_host_key(server: SshServer) -> None:
    server.trust(server.host_key)
    with server.known_hosts.open("a") as file:
        file.write(f"@revoked * {public_line(server.host_key)}\n")
    async with opened(server) as host:
        with pytest.raises(HostKeyRejected, match="revoked"):
            await host.run(["true"])


async def test_broken_lines_and_other_hosts_do_not_matter(server: SshServer) -> None:
    good = server.known_hosts.read_text()
    other = public_line(asyncssh.generate_private_key("ssh-ed25519"))
    server.known_hosts.write_text(
        f"nonsense\n@what x y\n[127.0.0.1]:1 {other}\n\udcff\n".encode(errors="surrogateescape").decode("latin1") + good
    )
    async with opened(server) as host:
        await host.run(["true"])


@pytest.mark.parametrize(
    "directive", ["UserKnownHostsFile none", "StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null"]
)
async def test_configuration_cannot_switch_the_check_off(server: SshServer, directive: str) -> None:
    text = server.config.read_text().replace(f"UserKnownHostsFile {server.known_hosts}", directive)
    server.config.write_text(text)
    async with opened(server) as host:
        with pytest.raises(HostKeyRejected, match="unknown"):
            await host.run(["true"])


async def test_known_hosts_of_the_settings_count_alone(server: SshServer, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text(server.known_hosts.read_text())
    server.trust(None)
    async with opened(server, known_hosts=str(tmp_path / "mine")) as host:
        await host.run(["true"])


async def test_host_key_alias_and_port_fallback(server: SshServer) -> None:
    server.write_config("  HostKeyAlias gpu-one\n")
    server.known_hosts.write_text(f"gpu-one {public_line(server.host_key)}\n")
    async with opened(server) as host:
        await host.run(["true"])


# Logins


async def test_refused_login(server: SshServer, tmp_path: Path) -> None:
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(server.identity))
    async with opened(server) as host:
        with pytest.raises(LoginRefused, match="operator") as caught:
            await host.run(["true"])
        assert str(server.identity) in caught.value.next_step
        logins = len(server.logins)
        for _ in range(10):
            with pytest.raises(LoginRefused):
                await host.run(["true"])
        assert len(server.logins) == logins


async def test_mended_login_works_without_a_new_object(server: SshServer) -> None:
    good = server.identity.read_text()
    server.identity.unlink()
    async with opened(server) as host:
        with pytest.raises(LoginRefused):
            await host.run(["true"])
        server.identity.write_text(good)
        await host.close()
        await host.run(["true"])


async def test_key_of_an_agent(server: SshServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    socket = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        await until(socket.exists)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        subprocess.run(["ssh-add", "-q", str(server.identity)], check=True, capture_output=True)
        server.identity.unlink()
        server.config.write_text(server.config.read_text().replace("IdentitiesOnly yes", "IdentitiesOnly no"))
        async with opened(server) as host:
            await host.run(["true"])
    finally:
        agent.terminate()
        agent.wait()


async def test_locked_key_is_passed_over(server: SshServer, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.write_bytes(server.identity.read_bytes())
    locked.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(locked)], check=True, capture_output=True)
    server.write_config()
    server.config.write_text(server.config.read_text() + f"  IdentityFile {tmp_path}/absent\n")
    text = server.config.read_text().replace(
        f"  IdentityFile {server.identity}", f"  IdentityFile {locked}\n  IdentityFile {server.identity}"
    )
    server.config.write_text(text)
    async with opened(server) as host:
        await host.run(["true"])


# Hops and configuration


async def test_two_hops_each_with_its_own_user_key_and_trust(tmp_path: Path) -> None:
    async with (
        ssh_server(tmp_path) as first,
        ssh_server(tmp_path, jump=first) as second,
        ssh_server(tmp_path, jump=second) as target,
    ):
        first.user, second.user, target.user = "alice", "bob", "carol"
        first.write_config()
        second.write_config(f"  ProxyJump {first.alias}\n{first.config.read_text()}")
        target.write_config(f"  ProxyJump {second.alias}\n{second.config.read_text()}")
        async with opened(target) as host:
            assert (await host.run(["echo", "through"])).stdout == b"through\n"
            assert (first.logins, second.logins, target.logins) == (["alice"], ["bob"], ["carol"])
            assert first.forwards == [("127.0.0.1", second.port)]
            assert second.forwards == [("127.0.0.1", target.port)]
            first.cut()
            await until(lambda: not host.link.connected)
            await host.run(["true"])


async def test_list_of_hops(tmp_path: Path) -> None:
    async with ssh_server(tmp_path) as first, ssh_server(tmp_path) as second, ssh_server(tmp_path) as target:
        for server in (first, second):
            server.write_config()
        jumps = f"{second.alias},operator@{first.alias}:{first.port}"
        target.write_config(f"  ProxyJump {jumps}\n{first.config.read_text()}{second.config.read_text()}")
        async with opened(target) as host:
            await host.run(["true"])
        assert second.forwards == [("127.0.0.1", first.port)]
        assert first.forwards == [("127.0.0.1", target.port)]


async def test_failing_hop_is_named(tmp_path: Path) -> None:
    async with ssh_server(tmp_path) as first, ssh_server(tmp_path, jump=first) as target:
        first.trust(None)
        async with opened(target) as host:
            with pytest.raises(HostKeyRejected, match=f"hop {first.alias}"):
                await host.run(["true"])
        first.trust(first.host_key)
        first.allows_forwarding = False
        async with opened(target) as host:
            with pytest.raises(HostUnreachable, match=f"gpu1 .*through {first.alias}.* can't be reached"):
                await host.run(["true"])
        first.allows_forwarding = True
        first.user = "somebody-else"
        async with opened(target) as host:
            with pytest.raises(LoginRefused, match=f"hop {first.alias}"):
                await host.run(["true"])


async def test_hops_in_a_circle(server: SshServer) -> None:
    server.config.write_text(f"Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n{server.config.read_text()}")
    async with opened(server, ssh="a") as host:
        with pytest.raises(HostError, match="circle"):
            await host.run(["true"])


async def test_proxy_command(server: SshServer, tmp_path: Path) -> None:
    relay = tmp_path / "relay.py"
    relay.write_text(
        "import socket, sys, threading\n"
        "far = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n"
        "    while data := sys.stdin.buffer.raw.read(65536): far.sendall(data)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := far.recv(65536):\n"
        "    sys.stdout.buffer.write(data); sys.stdout.buffer.flush()\n"
    )
    server.write_config(f"  ProxyCommand {sys.executable} {relay} '%h' %p 2>/dev/null\n")
    async with opened(server) as host:
        assert (await host.run(["echo", "through"])).stdout == b"through\n"


async def test_directives_that_must_not_matter(server: SshServer, tmp_path: Path) -> None:
    stale = tmp_path / "control"
    stale.write_text("")
    server.write_config(
        f"  ControlMaster auto\n  ControlPath {stale}\n  ControlPersist yes\n  RequestTTY force\n"
        "  RemoteCommand echo no\n"
        "  ForwardAgent yes\n  SendEnv LANG LC_*\n  LogLevel QUIET\n  VisualHostKey yes\n  ServerAliveInterval 1000\n"
        "  LocalForward 8080 localhost:80\n  PermitLocalCommand yes\n"
    )
    async with opened(server) as host:
        done = await host.run(["sh", "-c", "tty; echo $LC_ALL"], check=False)
        assert done.text == "not a tty\nC.UTF-8\n"


async def test_includes_matches_and_direct_addresses(server: SshServer, tmp_path: Path) -> None:
    included = tmp_path / "included"
    included.write_text(server.config.read_text().replace(f"Host {server.alias}", "Match originalhost alias-of-it"))
    server.config.write_text(
        f"Include {included}\nHost 127.0.0.1\n  IdentityFile {server.identity}\n"
        f"  UserKnownHostsFile {server.known_hosts}\n"
    )
    for name in ("alias-of-it", f"operator@127.0.0.1:{server.port}", f"ssh://operator@127.0.0.1:{server.port}/"):
        async with opened(server, ssh=name) as host:
            await host.run(["true"])


async def test_unusable_configuration_is_named(server: SshServer, tmp_path: Path) -> None:
    server.write_config("  Port many\n")
    server.config.write_text("Port many\n" + server.config.read_text())
    async with opened(server) as host:
        with pytest.raises(HostError, match=r"line 1: Invalid Port"):
            await host.run(["true"])
    async with opened(server, ssh_config=str(tmp_path / "absent")) as host:
        with pytest.raises(HostError, match="does not exist"):
            await host.run(["true"])


def test_unsupported_directives_are_stated(server: SshServer) -> None:
    server.write_config(
        "  ProxyJump jump\n  StrictHostKeyChecking accept-new\n  ControlMaster auto\n"
        "Host jump\n  RevokedHostKeys = /x\n"
        "Host other\n  KnownHostsCommand /bin/x\n"
    )
    notes = unsupported_directives(server.settings())
    assert len(notes) == 2
    assert any("StrictHostKeyChecking accept-new has no effect" in note for note in notes)
    assert any(f"{server.config}:" in note and "RevokedHostKeys" in note for note in notes)
