"""The test host itself: what other tests take for granted must hold."""

import errno
import socket
from pathlib import Path

import asyncssh
import pytest

from tests.testhost import HostError, TestHost, network
from tests.testhost.host import ssh

pytestmark = pytest.mark.host

SLEEPER = "[Service]\nExecStart=/usr/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"


def reach(host: TestHost) -> int:
    """Return the error number of a connection attempt to sshd, 0 for success, ETIMEDOUT after 0.5 s."""
    with socket.socket() as client:
        client.settimeout(0.5)
        try:
            client.connect((host.address, 22))
        except TimeoutError:
            return errno.ETIMEDOUT
        except OSError as error:
            return error.errno or -1
    return 0


def test_runs_systemd_and_journald(testhost: TestHost) -> None:
    testhost.write_unit("hello.service", "[Service]\nType=oneshot\nExecStart=/usr/bin/echo good morning\n")
    testhost.systemctl("start", "hello.service")
    assert "good morning" in testhost.journal("hello.service")
    assert testhost.show("hello.service", "Result", "ExecMainStatus") == {"Result": "success", "ExecMainStatus": "0"}
    assert testhost.systemctl("is-system-running") == "running"


def test_ssh_as_root_and_operator(testhost: TestHost) -> None:
    assert ssh(testhost, "id", "-u").stdout == "0\n"
    groups = ssh(testhost, "id", "-Gn", user="operator").stdout.split()
    assert groups == ["operator", "systemd-journal"]
    refused = ssh(testhost, "sudo", "-n", "true", user="operator")
    assert refused.returncode != 0


async def test_asyncssh_takes_the_alias(testhost: TestHost) -> None:
    async with asyncssh.connect(testhost.alias, config=[str(testhost.ssh_config)]) as connection:
        done = await connection.run("uname -n", check=True)
    assert done.stdout == f"{testhost.name}\n"


async def test_unknown_host_key_is_refused(testhost: TestHost, tmp_path: Path) -> None:
    empty = tmp_path / "known_hosts"
    empty.touch()
    with pytest.raises(asyncssh.HostKeyNotVerifiable):
        await asyncssh.connect(
            testhost.address, username="root", client_keys=[str(testhost.key)], known_hosts=str(empty), config=None
        )


def test_files_inside(testhost: TestHost) -> None:
    content = bytes(range(256))
    testhost.put("/srv/deep/file", content, mode=0o640, owner="operator")
    assert testhost.get("/srv/deep/file") == content
    assert testhost.exec(["stat", "-c", "%a %U", "/srv/deep/file"]).stdout == "640 operator\n"
    before = testhost.snapshot("/srv/deep")
    testhost.put("/srv/deep/file", content + b"x", mode=0o640, owner="operator")
    assert testhost.snapshot("/srv/deep") != before
    with pytest.raises(HostError, match="No such file"):
        testhost.get("/srv/nothing")


def test_nothing_of_the_machine_changes(testhost: TestHost) -> None:
    testhost.put("/etc/specd-probe", "inside")
    testhost.put("/usr/local/bin/specd-probe", "inside")
    assert not Path("/etc/specd-probe").exists()
    assert not Path("/usr/local/bin/specd-probe").exists()


def test_no_route_leads_away(testhost: TestHost) -> None:
    assert "default" not in testhost.exec(["ip", "route"]).stdout
    asked = testhost.exec(["ip", "route", "get", "192.0.2.1"], check=False)
    assert asked.returncode != 0, asked.stdout


def test_reboot_keeps_the_disk_and_changes_the_boot(fresh_host: TestHost) -> None:
    fresh_host.put("/var/lib/kept", "yes")
    fresh_host.write_unit("sleeper.service", SLEEPER)
    fresh_host.systemctl("enable", "--now", "sleeper.service")
    before = fresh_host.get("/proc/sys/kernel/random/boot_id")
    fresh_host.reboot()
    assert fresh_host.get("/proc/sys/kernel/random/boot_id") != before
    assert fresh_host.get("/var/lib/kept") == b"yes"
    assert fresh_host.is_active("sleeper.service")
    fresh_host.crash()
    assert not fresh_host.is_on
    fresh_host.boot()
    assert fresh_host.is_active("sleeper.service")
    assert fresh_host.exec(["journalctl", "--list-boots", "-q"]).stdout.count("\n") >= 3


def test_link_down_is_unreachable_at_once(fresh_host: TestHost) -> None:
    assert reach(fresh_host) == 0
    fresh_host.netdown()
    assert reach(fresh_host) == errno.EHOSTUNREACH
    with pytest.raises(HostError, match="No route to host"):
        network.run("ip", "route", "get", fresh_host.address)
    fresh_host.netup()
    assert reach(fresh_host) == 0
