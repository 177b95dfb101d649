"""Where a login leads, whom it trusts, and how many sessions it may open."""

import asyncio
import subprocess
from pathlib import Path

import asyncssh
import pytest

from specd.errors import HostError
from specd.hosts.ssh.gate import SessionGate
from specd.hosts.ssh.hops import Hop, plan, target
from specd.hosts.ssh.host_keys import KnownHosts, rejection
from specd.settings import HostSettings


@pytest.mark.parametrize(
    ("text", "hop"),
    [
        ("gpu1", Hop("gpu1")),
        ("root@gpu1", Hop("gpu1", "root")),
        ("root@gpu1:2222", Hop("gpu1", "root", 2222)),
        ("gpu1:2222", Hop("gpu1", "", 2222)),
        ("ssh://root@gpu1:2222/", Hop("gpu1", "root", 2222)),
        ("[fd00::1]:22", Hop("fd00::1", "", 22)),
        ("root@[fd00::1]", Hop("fd00::1", "root")),
        ("fd00::1", Hop("fd00::1")),
        ("a@b@gpu1", Hop("gpu1", "a@b")),
    ],
)
def test_target(text: str, hop: Hop) -> None:
    assert target(text) == hop
    assert target(str(hop)) == hop


@pytest.mark.parametrize("text", ["", "root@", "-oProxyCommand=x", "gpu1:port", "ssh://"])
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(HostError):
        target(text)


async def test_plan_takes_each_hops_own_part(tmp_path: Path) -> None:
    config = tmp_path / "config"
    (tmp_path / "key").write_text("")
    config.write_text(
        "Host gpu\n  HostName 10.0.0.9\n  User carol\n  ProxyJump first,bob@second:2222\n"
        f"  IdentityFile {tmp_path}/key\n  IdentityFile {tmp_path}/absent\n"
        "  UserKnownHostsFile ~/k-%h-%p-%r-%n-%% /two\n"
        "Host first\n  HostName first.example\n  Port 2200\n  User alice\n  ProxyJump zero\n"
        "Host second\n  UserKnownHostsFile none\n  ProxyCommand nc %h %p\n"
        "Host *\n  GlobalKnownHostsFile /global\n"
    )
    hops, files = await plan(HostSettings(name="gpu", ssh="gpu", ssh_config=str(config)))
    assert files == [config]
    assert [(hop.user, hop.host, hop.port) for hop in hops[1:]] == [
        ("alice", "first.example", 2200),
        ("bob", "second", 2222),
        ("carol", "10.0.0.9", 22),
    ]
    assert hops[0].host == "zero"
    assert hops[2].known_hosts == (Path("/global"),)
    assert hops[3].known_hosts == (Path("~/k-10.0.0.9-22-carol-gpu-%").expanduser(), Path("/two"), Path("/global"))
    assert hops[3].identities == (f"{tmp_path}/key",)
    assert hops[1].identities is None


def new_key() -> asyncssh.SSHKey:
    return asyncssh.generate_private_key("ssh-ed25519")


def line(key: asyncssh.SSHKey) -> str:
    return " ".join(key.export_public_key().decode().split()[:2])


def test_known_hosts_are_looked_up_by_name_only(tmp_path: Path) -> None:
    keys = {name: new_key() for name in ("name", "address", "port", "pattern", "hashed", "revoked")}
    file = tmp_path / "known"
    hashed = tmp_path / "hashed"
    hashed.write_text(f"secret.example {line(keys['hashed'])}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(hashed)], check=True, capture_output=True)
    file.write_text(
        f"# a comment\ngpu1,gpu1.example {line(keys['name'])}\n10.0.0.9 {line(keys['address'])}\nbroken line\n"
        f"[gpu1]:2222 {line(keys['port'])}\n*.wild,!no.wild {line(keys['pattern'])}\n"
        f"@revoked * {line(keys['revoked'])}\n"
    )
    known = KnownHosts([file, hashed, tmp_path / "absent"])

    def trusted(host: str, port: int | None = None) -> list[asyncssh.SSHKey]:
        return list(known.trusted(host, "10.0.0.9", port)[0])

    def public(name: str) -> list[asyncssh.SSHKey]:
        return [keys[name].convert_to_public()]

    assert trusted("gpu1") == public("name")
    assert trusted("GPU1.example") == public("name")
    assert trusted("unheard-of") == []
    assert trusted("10.0.0.9") == public("address")
    assert trusted("gpu1", 2222) == public("port")
    assert trusted("gpu1", 22) == public("name")
    assert trusted("gpu1.example", 2222) == public("name"), "as ssh does, without the port if there is none with it"
    assert trusted("a.wild") == public("pattern")
    assert trusted("no.wild") == []
    assert trusted("secret.example") == public("hashed")
    assert known.trusted("gpu1", "", None)[2] == public("revoked")
    assert {str(entry) for entry in known.entries("gpu1", 2222)} == {f"{file}:5", f"{file}:7"}


def test_rejections_tell_unknown_from_changed(tmp_path: Path) -> None:
    old, shown = new_key(), new_key()
    file = tmp_path / "known"
    file.write_text(f"gpu1 {line(old)}\n")
    known = KnownHosts([file])
    changed = rejection("kimi (root@gpu1:22)", known, "gpu1", 22, shown, "")
    for part in ("changed", old.get_fingerprint(), shown.get_fingerprint(), f"{file}:1", line(shown)):
        assert part in str(changed)
    unknown = rejection("kimi (root@gpu2:2222)", known, "gpu2", 2222, shown, "")
    for part in ("unknown", shown.get_fingerprint(), f"[gpu2]:2222 {line(shown)}", str(file)):
        assert part in str(unknown)
    assert not changed.retryable


async def test_gate_keeps_the_order_and_the_limit() -> None:
    gate = SessionGate(2)
    inside: list[int] = []
    most = 0

    async def work(number: int) -> None:
        nonlocal most
        await gate.enter()
        inside.append(number)
        gate.granted()
        most = max(most, gate.open)
        await asyncio.sleep(0)
        gate.leave(was_granted=True)

    await asyncio.gather(*(work(number) for number in range(20)))
    assert inside == list(range(20))
    assert most == 2
    assert gate.open == 0


async def test_gate_survives_those_who_give_up() -> None:
    gate = SessionGate(1)
    await gate.enter()
    waiting = [asyncio.create_task(gate.enter()) for _ in range(5)]
    await asyncio.sleep(0)
    for task in waiting[:4]:
        task.cancel()
    gate.leave()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert waiting[4].exception() is None
    gate.leave()
    await asyncio.wait_for(gate.enter(), 1)


async def test_gate_learns_a_limit_and_never_below_what_was_granted() -> None:
    gate = SessionGate(8)
    for _ in range(3):
        await gate.enter()
        gate.granted()
    await gate.enter()
    stepping = asyncio.create_task(gate.step_back())
    await asyncio.sleep(0)
    assert gate.limit == 3
    assert not stepping.done()
    gate.leave(was_granted=True)
    await asyncio.wait_for(stepping, 1)
