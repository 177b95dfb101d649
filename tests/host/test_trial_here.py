"""The daemon on the host itself, as root, under the shipped unit and its drop-in: no ssh, systemd's own socket."""

import json
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HostFactory
from tests.host.trial_site import QUICK, HostSite, put_engine, serve_words, unit_text
from tests.rig.daemon import trial_toml
from tests.rig.site import config_text
from tests.testhost import Bind, HostOptions
from tests.testhost.power import wait_until

pytestmark = pytest.mark.host

REPO = Path(__file__).parents[2]
PYTHON = f"/opt/python/bin/python3.{sys.version_info.minor}"
PATHS = "PYTHONPATH=/opt/specd:/opt/packages"
SPECD = ["env", PATHS, PYTHON, "-m", "specd", "--config", "/etc/specd/config.toml"]
# The sandbox shows home directories read-only and this machine's interpreter may be in one: it has a place of its own.
BINDS = (
    Bind(Path(sys.base_prefix).resolve(), Path("/opt/python")),
    Bind(Path(sysconfig.get_path("purelib")).resolve(), Path("/opt/packages")),
    Bind(REPO, Path("/opt/specd")),
)


class LocalSite(HostSite):
    """The service as the daemon beside it sees it."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        unit = (REPO / "systemd/specd.service").read_text().replace("/opt/specd/bin/specd", f"{PYTHON} -m specd")
        # Whoever is silent for five seconds is killed: the watchdog is really fed.
        unit = unit.replace("WatchdogSec=60", "WatchdogSec=5")
        self.host.put("/etc/systemd/system/specd.service.d/this-machine.conf", self.drop_in)
        self.host.put("/etc/specd/config.toml", self.config, mode=0o640)
        self.host.exec(["useradd", "--system", "--home-dir", "/var/lib/specd", "specd"])
        self.host.write_unit("specd.service", unit.replace("[Service]\n", f"[Service]\nEnvironment={PATHS}\n", 1))
        self.host.systemctl("start", "specd.service")

    drop_in = (REPO / "systemd/this-machine.conf").read_text()

    @property
    def config(self) -> str:
        """The daemon's config, with the paths that the unit gives it."""
        text = config_text(self, QUICK)
        return text.replace(str(self.directory / "state"), "/var/lib/specd").replace(
            str(self.directory / "run" / "s"), "/run/specd/specd.sock"
        )

    def ask(self, *words: str, timeout_s: float = 90) -> Any:
        """Run `specd WORDS --json` on the host and return what it printed."""
        done = self.host.exec([*SPECD, *words, "--json"], check=False, timeout_s=timeout_s)
        assert done.stdout, (words, done.stderr, self.host.journal("specd.service")[-20:])
        return json.loads(done.stdout)

    def traces(self) -> list[str]:
        """Return what of trials is on the host; the daemon itself belongs there."""
        return [name for name in super().traces() if name != "specd.service"]


def test_trials_of_the_machine_it_runs_on(make_host: HostFactory, tmp_path: Path) -> None:
    host = make_host(HostOptions(binds=BINDS))
    put_engine(host)
    unit = unit_text(serve_words(host), "User=operator")
    site = LocalSite(tmp_path, host, {"llm.service": unit}, ssh="")
    before = site.fingerprint()
    host.put("/root/t.toml", trial_toml({"max-num-seqs": 8}, benchmark="quick", env={"SOME_KEY": "a value"}))
    checked = site.ask("check")
    assert checked["ok"], checked
    (queued,) = site.ask("submit", "/root/t.toml")["trials"]
    candidate = f"specd-{queued['id']}.service"
    wait_until(lambda: host.is_active(candidate), 30, candidate)
    invocation = site.invocation(candidate)
    pid = host.show("specd.service", "MainPID")["MainPID"]
    host.exec(["kill", "-9", pid])
    again = {"NRestarts": "1", "SubState": "running"}
    # Type=notify: running means that it answers.
    wait_until(lambda: host.show("specd.service", "NRestarts", "SubState") == again, 30, "the daemon's restart")
    watched = host.exec([*SPECD, "watch", queued["id"]], check=False, timeout_s=90)
    assert watched.returncode == 0, watched.stdout + watched.stderr
    shown = site.ask("show", queued["id"])
    assert shown["state"] == "restored", shown["reason"]
    assert shown["candidate"]["invocation"] == invocation
    assert shown["outcome"] not in {"failed", "cancelled"}, shown["reason"]
    open_checks = {check["name"] for check in shown["checks"] if check["status"] in {"failed", "unchecked"}}
    # How long a start takes is known after the first one that was seen.
    assert open_checks <= {"outage.expected"}, shown["checks"]
    assert host.show("specd.service", "NRestarts") == {"NRestarts": "1"}, "the watchdog was not fed"
    assert site.answers()
    assert site.fingerprint() == before
    assert site.traces() == []
