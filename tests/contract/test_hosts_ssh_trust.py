"""Which host is trusted, who may log in, and the way there: keys, agents, hops and the user's configuration."""

import subprocess
import sys
from pathlib import Path

import asyncssh
import pytest

from specd.errors import HostError, HostKeyRejected, HostUnreachable, LoginRefused
from specd.hosts.ssh_config import unsupported_directives
from tests.contract.hosts_ssh_server import SshServer, public_line, ssh_server
from tests.contract.test_hosts_commands import until
from tests.contract.test_hosts_ssh import opened, server

__all__ = ["server"]


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
