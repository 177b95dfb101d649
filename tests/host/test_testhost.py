"""The test host itself: what other tests take for granted must hold."""

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import asyncssh
import pytest

from specd.rehearsal.archive import build
from tests.testhost import Bind, HostError, HostOptions, TestHost, network, power, project_binds, sweep
from tests.testhost.host import ssh
from tests.testhost.power import wait_until
from tests.testhost.rehearsal import MODEL_NAME, guest_python, is_healthy, request, write_rehearsal_unit
from tests.testhost.state import start_time

pytestmark = pytest.mark.host

SLEEPER = "[Service]\nExecStart=/usr/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
MakeHost = Callable[..., TestHost]
REPOSITORY = Path(__file__).parents[2]


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
    wait_until(lambda: reach(fresh_host) == 0, 10, "sshd takes connections")
    fresh_host.netdown()
    assert reach(fresh_host) == errno.EHOSTUNREACH
    with pytest.raises(HostError, match="No route to host"):
        network.run("ip", "route", "get", fresh_host.address)
    fresh_host.netup()
    wait_until(lambda: reach(fresh_host) == 0, 10, "the link works again")


def test_dropped_packets_are_silent(fresh_host: TestHost) -> None:
    fresh_host.drop()
    assert reach(fresh_host) == errno.ETIMEDOUT
    fresh_host.undrop()
    wait_until(lambda: reach(fresh_host) == 0, 10, "packets pass again")


def test_frozen_host_accepts_and_never_answers(fresh_host: TestHost) -> None:
    fresh_host.freeze()
    with socket.create_connection((fresh_host.address, 22), timeout=0.5) as client:
        with pytest.raises(TimeoutError):
            client.recv(4)
        fresh_host.thaw()
        client.settimeout(5)
        assert client.recv(4) == b"SSH-"


def test_a_blocked_unit_directory(fresh_host: TestHost) -> None:
    units = "/etc/systemd/system"
    before = fresh_host.snapshot(units)
    fresh_host.make_readonly(units)
    with pytest.raises(HostError, match="Read-only file system"):
        fresh_host.put(f"{units}/new.service", "x")
    fresh_host.make_writable(units)
    fresh_host.fill(units)
    with pytest.raises(HostError, match="No space left"):
        fresh_host.put(f"{units}/new.service", "x" * 100)
    fresh_host.unfill(units)
    assert fresh_host.snapshot(units) == before


def test_operator_has_the_rights_given(make_host: MakeHost) -> None:
    rule = "operator ALL=(root) NOPASSWD: /usr/bin/systemctl daemon-reload\n"
    host = make_host(HostOptions(operator_sudoers=rule))
    assert ssh(host, "sudo", "-n", "/usr/bin/systemctl", "daemon-reload", user="operator").returncode == 0
    refused = ssh(host, "sudo", "-n", "/usr/bin/systemctl", "stop", "ssh.service", user="operator")
    assert refused.returncode == 1
    assert "password is required" in refused.stderr
    assert ssh(host, "systemctl", "show", "ssh.service", "--property=ActiveState", user="operator").stdout == (
        "ActiveState=active\n"
    )
    assert "Server listening" in ssh(host, "journalctl", "-q", "-u", "ssh.service", user="operator").stdout
    host.set_sudoers("operator ALL=(root) NOPASSWD: /usr/bin/id\n")
    assert ssh(host, "sudo", "-n", "id", "-u", user="operator").stdout == "0\n"
    with pytest.raises(HostError, match="syntax error"):
        host.set_sudoers("operator ALL=")


async def test_session_limit(make_host: MakeHost) -> None:
    host = make_host(HostOptions(max_sessions=2))
    async with (
        asyncssh.connect(host.alias, config=[str(host.ssh_config)]) as connection,
        connection.create_process("cat"),
        connection.create_process("cat"),
    ):
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.create_process("cat")


async def test_greeting_spoils_commands_and_sftp(fresh_host: TestHost) -> None:
    fresh_host.greet_with("\\033[1mwelcome\\033[0m\\n", user="operator")
    assert ssh(fresh_host, "echo", "it", user="operator").stdout == "\x1b[1mwelcome\x1b[0m\nit\n"
    assert ssh(fresh_host, "echo", "it").stdout == "it\n"
    async with asyncssh.connect(fresh_host.operator_alias, config=[str(fresh_host.ssh_config)]) as connection:
        with pytest.raises(asyncssh.SFTPError):
            await connection.start_sftp_client()


async def test_host_behind_another(make_host: MakeHost) -> None:
    front = make_host()
    back = make_host(behind=front)
    assert reach(back) == errno.EHOSTUNREACH
    async with asyncssh.connect(back.alias, config=[str(back.ssh_config)]) as connection:
        done = await connection.run("uname -n", check=True)
    assert done.stdout == f"{back.name}\n"
    front.netdown()
    assert ssh(back, "true").returncode == 255


def test_user_instance_lingers(make_host: MakeHost) -> None:
    host = make_host(HostOptions(user_instance=True))
    host.put(
        "/home/operator/.config/systemd/user/sleeper.service",
        SLEEPER.replace("multi-user", "default"),
        owner="operator",
    )
    for verb in (["daemon-reload"], ["enable", "--now", "sleeper.service"]):
        answer = ssh(host, "systemctl", "--user", *verb, user="operator")
        assert answer.returncode == 0, answer.stderr
    host.reboot()
    # Nobody has logged in since.
    sleepers = ["pgrep", "-u", "operator", "-x", "sleep"]
    power.wait_until(lambda: host.exec(sleepers, check=False).returncode == 0, 10, "the lingering unit")


def test_binds_bring_the_project_inside(make_host: MakeHost, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    host = make_host(HostOptions(binds=(*project_binds(REPOSITORY), Bind(shared, Path("/srv/shared"), writable=True))))
    imported = host.exec([sys.executable, "-c", "import asyncssh, sys; print(sys.prefix)"])
    assert imported.stdout == f"{sys.prefix}\n"
    host.put("/srv/shared/note", "from inside")
    assert (shared / "note").read_text() == "from inside"
    with pytest.raises(HostError, match="Read-only file system"):
        host.put(f"{sys.prefix}/note", "x")


def test_says_that_it_needs_root(make_host: MakeHost) -> None:
    project = Path("/srv/project")
    host = make_host(HostOptions(binds=(Bind(REPOSITORY, project),)))
    call = ["env", "-C", str(project), guest_python(host), "-m", "tests.testhost", "create", "x"]
    done = host.exec(["runuser", "-u", "operator", "--", *call], check=False)
    assert (done.returncode, done.stderr) == (1, "a test host needs root\n")


def test_rehearsal_engine_serves_as_a_unit(fresh_host: TestHost) -> None:
    unit = write_rehearsal_unit(
        fresh_host,
        build(),
        flags=["--max-model-len=4096"],
        script={"time_scale": 0.1},
        environment={"SPECD_NOTE": "it's read"},
    )
    fresh_host.systemctl("start", unit)
    power.wait_until(lambda: is_healthy(fresh_host), 20, "the engine's health")
    question = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    answer = json.loads(request(fresh_host, "/v1/chat/completions", question))
    assert answer["usage"]["completion_tokens"] == 8
    environment = fresh_host.get(f"/proc/{fresh_host.show(unit, 'MainPID')['MainPID']}/environ").decode().split("\0")
    assert "SPECD_NOTE=it's read" in environment
    assert fresh_host.systemctl("is-enabled", unit) == "enabled"
    with pytest.raises(HostError, match="404"):
        request(fresh_host, "/nowhere")


MAKE_AND_DIE = """
import os, signal
from tests.testhost import TestHost
host = TestHost.create()
host.boot()
print(host.name, host.pid1, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_sweep_takes_the_hosts_of_the_dead_only(fresh_host: TestHost) -> None:
    done = subprocess.run([sys.executable, "-c", MAKE_AND_DIE], cwd=REPOSITORY, capture_output=True, check=False)
    name, pid1 = done.stdout.decode().split()
    orphan = TestHost.open(name)
    assert orphan.is_on
    assert name in sweep()
    assert not orphan.disk.exists()
    assert not orphan.cgroup.exists()
    assert network.link_name(orphan.number) not in os.listdir("/sys/class/net")
    assert start_time(int(pid1)) is None
    assert fresh_host.is_on


def test_destroy_leaves_nothing(swept: None) -> None:
    host = TestHost.create()
    host.boot()
    pid1 = host.pid1
    host.destroy()
    assert start_time(pid1) is None
    assert not host.disk.exists()
    assert not host.cgroup.exists()
    assert host.name not in Path("/proc/self/mountinfo").read_text()
    assert network.link_name(host.number) not in os.listdir("/sys/class/net")


def test_command_for_people() -> None:
    def command(*argv: str) -> subprocess.CompletedProcess[str]:
        call = [sys.executable, "-m", "tests.testhost", *argv]
        return subprocess.run(call, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)

    name = f"by-hand-{os.getpid()}"
    try:
        assert command("create", name).returncode == 0
        assert command("boot", name).returncode == 0
        assert command("ssh", name, "uname", "-n").stdout == f"{name}\n"
        assert name in command("list").stdout
        sweep()
        assert command("crash", name).returncode == 0
        again = command("create", name)
        assert (again.returncode, again.stderr) == (1, f"host {name} exists\n")
    finally:
        assert command("destroy", name).returncode == 0
    assert command("boot", name).stderr == f"no host {name}\n"
