"""Services of many makes on a systemd host: any unit file, any login, any scope; a trial finds them as a team left
them."""

import json
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from specd.rehearsal.archive import build
from tests.rig import SCRIPT, Daemon, RemoteSite
from tests.testhost import TestHost
from tests.testhost.errors import HostError
from tests.testhost.power import wait_until
from tests.testhost.rehearsal import ARCHIVE, MODEL, MODEL_NAME, PORT, guest_python, request

__all__ = [
    "QUICK",
    "SCRIPT_FILE",
    "HostSite",
    "UserSite",
    "noted",
    "put_engine",
    "serve_words",
    "short_lease",
    "unit_text",
]

# Enough to be measured, over in two seconds.
QUICK = """\
[benchmarks.quick]
levels = [1]
repeats = 2
requests = 4
prompts = "quick"
max_tokens = 24
warmup_requests = 1
first_token_s = 4
idle_s = 4
"""
SCRIPT_FILE = "/etc/rehearsal/script.json"


def put_engine(host: TestHost, script: Mapping[str, object] = SCRIPT) -> None:
    """Install the rehearsal engine, its model and its script, as a team would its real one."""
    host.put(ARCHIVE, build(), mode=0o755)
    host.put(f"{MODEL}/config.json", json.dumps({"architectures": ["RehearsalForCausalLM"]}))
    host.put(SCRIPT_FILE, json.dumps(dict(script)))


def serve_words(host: TestHost, port: int = PORT) -> str:
    """Return the words that start the engine."""
    name = f"--served-model-name {MODEL_NAME} --host 127.0.0.1 --port {port}"
    return f"{guest_python(host)} {ARCHIVE} serve {MODEL} {name}"


def unit_text(command: str, *lines: str, wanted_by: str = "multi-user.target") -> str:
    """Return a plain unit that runs a command."""
    settings = [f"Environment=SPECD_REHEARSAL={SCRIPT_FILE}", f"ExecStart={command}", "TimeoutStopSec=20", *lines]
    return "[Service]\n" + "\n".join(settings) + f"\n[Install]\nWantedBy={wanted_by}\n"


def short_lease(daemon: Daemon, *, lease_s: float, renew_s: float) -> None:
    """End the daemon and write its config anew with another lease of the guard; start it afterwards."""
    daemon.end(signal.SIGTERM)
    text = daemon.config.read_text()
    for old, new in (("lease_s = 30", f"lease_s = {lease_s}"), ("renew_s = 2", f"renew_s = {renew_s}")):
        assert old in text
        text = text.replace(old, new)
    daemon.config.write_text(text)


async def noted(daemon: Daemon) -> list[str]:
    """Return the warnings and alarms that the daemon gave."""
    events = (await daemon.client.get("/v1/events.json", since=0, limit=10000))["events"]
    return [event["text"] for event in events if event["type"] == "NoteAdded" and event["level"] != "info"]


class HostSite(RemoteSite):
    """One unit on a host, with the files given (drop-ins too); the engine is installed already.

    `ssh` is what the config says; None takes the host's own alias.
    """

    def __init__(
        self,
        directory: Path,
        host: TestHost,
        files: Mapping[str, str],
        *,
        unit: str = "llm.service",
        user: str = "root",
        port: int = PORT,
        ssh: str | None = None,
        host_lines: str = "",
        start: bool = True,
    ) -> None:
        self.directory = directory
        self.host = host
        self.unit = unit
        self.port = port
        self._user = user
        self._files = dict(files)
        self._ssh = ssh
        self._host_lines = host_lines
        self.write()
        if start:
            host.systemctl("start", unit)
            self.wait_until_serving()

    def write(self) -> None:
        """Put the files there and enable the unit."""
        for name, text in self._files.items():
            self.host.put(f"/etc/systemd/system/{name}", text)
        self.host.systemctl("daemon-reload")
        self.host.systemctl("enable", self.unit, check=False)

    def remove(self) -> None:
        """Take the unit off a host that others use too."""
        self.host.systemctl("stop", self.unit, check=False)
        self.host.systemctl("disable", self.unit, check=False)
        for name in self._files:
            self.host.exec(["rm", "-f", f"/etc/systemd/system/{name}"])
        self.host.systemctl("daemon-reload")

    def host_config(self) -> str:
        """Return the [hosts.site] table."""
        text = super().host_config() if self._ssh is None else f"[hosts.site]\nssh = {json.dumps(self._ssh)}"
        return f"{text}\n{self._host_lines}"

    def invocation(self, unit: str = "") -> str:
        """Return the InvocationID of the service, or of another unit."""
        return super().invocation(unit or self.unit)

    def is_active(self, unit: str = "") -> bool:
        """True while the service, or another unit, runs."""
        return super().is_active(unit or self.unit)

    def answers(self) -> bool:
        """True when the service generates a token."""
        body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        try:
            reply = json.loads(request(self.host, "/v1/chat/completions", body, port=self.port))
        except HostError:
            return False
        return bool(reply["usage"]["completion_tokens"] > 0)

    def wait_until_serving(self) -> None:
        """Wait until the service generates a token."""
        wait_until(self.answers, 30, f"{self.unit} serves")

    def fingerprint(self) -> dict[str, str]:
        """Return every file that makes the unit, and whether it is enabled."""
        enabled = self.host.systemctl("is-enabled", self.unit, check=False).strip()
        return {**self.host.snapshot("/etc/systemd/system"), "enabled": enabled}

    def wait_until_clean(self, within_s: float = 10) -> None:
        """Wait until nothing of specd is on the host."""
        deadline = time.monotonic() + within_s
        while left := self.traces():
            assert time.monotonic() < deadline, left
            time.sleep(0.1)


class UserSite(HostSite):
    """A unit of operator's own systemd, which lingers."""

    scope = "user"

    def __init__(self, directory: Path, host: TestHost, files: Mapping[str, str]) -> None:
        self._uid = host.exec(["id", "-u", "operator"]).stdout.strip()
        self._run_dir = f"/run/user/{self._uid}"
        wait_until(lambda: host.exists(f"{self._run_dir}/bus"), 15, "operator's systemd")
        super().__init__(directory, host, files, user="operator", start=False)
        self._systemctl("start", self.unit)
        self.wait_until_serving()

    def _systemctl(self, *words: str, check: bool = True) -> str:
        login = ["setpriv", "--reuid=operator", "--regid=operator", "--init-groups"]
        command = [*login, "env", f"XDG_RUNTIME_DIR={self._run_dir}", "systemctl", "--user", *words]
        return self.host.exec(command, check=check).stdout

    def write(self) -> None:
        """Put the files there and enable the unit."""
        for name, text in self._files.items():
            self.host.put(f"/home/operator/.config/systemd/user/{name}", text, owner="operator")
        self._systemctl("daemon-reload")
        self._systemctl("enable", self.unit)

    def host_config(self) -> str:
        """Return the [hosts.site] table: no sudo."""
        return super().host_config().replace('become = "sudo"', "")

    def invocation(self, unit: str = "") -> str:
        """Return the InvocationID of the service, or of another unit."""
        shown = self._systemctl("show", "--property=InvocationID", "--", unit or self.unit)
        return shown.strip().partition("=")[2]

    def is_active(self, unit: str = "") -> bool:
        """True while the service, or another unit, runs."""
        return self._systemctl("is-active", unit or self.unit, check=False).strip() == "active"

    def fingerprint(self) -> dict[str, str]:
        """Return every file that makes the unit, and whether it is enabled."""
        enabled = self._systemctl("is-enabled", self.unit, check=False).strip()
        return {**self.host.snapshot("/home/operator/.config/systemd/user"), "enabled": enabled}

    def traces(self) -> list[str]:
        """Return what of specd is on the host."""
        listed = self._systemctl("list-units", "--all", "--plain", "--no-legend", "specd*", check=False)
        files = list(self.host.snapshot(f"{self._run_dir}/systemd/user"))
        return [name for name in files if "specd" in name] + [line.split()[0] for line in listed.splitlines() if line]
