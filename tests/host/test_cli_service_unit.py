"""The shipped unit on a real systemd: the daemon lives in its sandbox, reaches out over ssh, and is restarted alone."""

import json
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.testhost import Bind, HostOptions, TestHost

pytestmark = pytest.mark.host

REPO = Path(__file__).parents[2]
PYTHON = f"/opt/python/bin/python3.{sys.version_info.minor}"
PATHS = "PYTHONPATH=/opt/specd:/opt/packages"
# The sandbox hides home directories, where this machine's interpreter may be; inside it has a place of its own.
BINDS = (
    Bind(Path(sys.base_prefix).resolve(), Path("/opt/python")),
    Bind(Path(sysconfig.get_path("purelib")).resolve(), Path("/opt/packages")),
    Bind(REPO, Path("/opt/specd")),
)
CONFIG = """\
[hosts.far]
ssh = "operator@{address}"
[hosts.here]
manager = "embedded"
directory = "/var/lib/specd/units"
[services.llm]
host = "here"
unit = "llm"
"""


@pytest.fixture
def host(make_host: Callable[..., TestHost]) -> TestHost:
    made = make_host(HostOptions(binds=BINDS))
    made.exec(["useradd", "--system", "--home-dir", "/var/lib/specd", "--shell", "/usr/sbin/nologin", "specd"])
    made.exec(["install", "-d", "-o", "specd", "-g", "specd", "-m", "0700", "/var/lib/specd"])
    made.exec(["install", "-d", "-o", "root", "-g", "specd", "-m", "0750", "/etc/specd"])
    made.put("/var/lib/specd/.ssh/id_ed25519", made.key.read_text(), mode=0o600, owner="specd")
    made.put("/var/lib/specd/.ssh/known_hosts", made.known_hosts.read_text(), owner="specd")
    unit = {"argv": ["/usr/bin/sleep", "infinity"], "enabled": True}
    made.put("/var/lib/specd/units/units/llm.service.json", json.dumps(unit), owner="specd")
    made.put("/etc/specd/config.toml", CONFIG.format(address=made.address))
    text = (REPO / "systemd/specd.service").read_text()
    text = text.replace("/opt/specd/bin/specd", f"{PYTHON} -m specd")
    made.write_unit("specd.service", text.replace("[Service]\n", f"[Service]\nEnvironment={PATHS}\n"))
    made.systemctl("start", "specd.service")
    return made


def ask(host: TestHost, *words: str) -> Any:
    as_user = ["setpriv", "--reuid=specd", "--regid=specd", "--init-groups", "env", PATHS, PYTHON, "-m", "specd"]
    return json.loads(host.exec([*as_user, "--socket", "/run/specd/specd.sock", *words, "--json"], check=False).stdout)


def pids(host: TestHost, words: str) -> list[str]:
    return host.exec(["pgrep", "-f", words], check=False).stdout.split()


def wait_for_start(host: TestHost, after: str) -> None:
    deadline = time.monotonic() + 30
    while host.show("specd.service", "MainPID", "SubState") in ({"MainPID": after, "SubState": "running"},) or (
        host.show("specd.service", "SubState")["SubState"] != "running"
    ):
        assert time.monotonic() < deadline, host.journal("specd.service")
        time.sleep(0.1)


def test_the_daemon_works_in_its_sandbox_and_is_restarted_alone(host: TestHost) -> None:
    checked = ask(host, "check")
    far = next(group for group in checked["hosts"] if group["name"] == "far")
    reached = {check["name"]: check["status"] for check in far["checks"]}
    assert reached["host.reachable"] == "passed", checked

    supervisor, engine = pids(host, "specd.supervisor"), pids(host, "sleep infinity")
    assert supervisor
    assert engine

    before = host.show("specd.service", "MainPID")["MainPID"]
    host.systemctl("restart", "specd.service")
    wait_for_start(host, before)
    again = host.show("specd.service", "MainPID")["MainPID"]
    host.exec(["kill", "-9", again])
    wait_for_start(host, again)
    assert ask(host, "trials") == {"trials": []}
    assert pids(host, "specd.supervisor") == supervisor
    assert pids(host, "sleep infinity") == engine


def test_the_socket_is_for_its_own_user(host: TestHost) -> None:
    mode = host.exec(["stat", "-c", "%a %U", "/run/specd"]).stdout
    assert mode == "700 specd\n"
    as_other = ["setpriv", "--reuid=operator", "--regid=operator", "--init-groups", "env", PATHS, PYTHON, "-m", "specd"]
    ended = host.exec([*as_other, "trials"], check=False)
    assert ended.returncode == 3
    assert "/run/specd/specd.sock: this user may not open it" in ended.stderr
