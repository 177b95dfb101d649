"""The shipped systemd unit: what its manager reads, what its sandbox is worth, and that it fits the command line."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from specd.cli.options import parse

UNIT = Path(__file__).parents[2] / "systemd" / "specd.service"

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def settings() -> dict[str, str]:
    pairs = (line.split("=", 1) for line in UNIT.read_text().splitlines() if re.match(r"[A-Z]\w+=", line))
    return {key: value for key, value in pairs}


def test_it_runs_the_daemon_as_the_command_line_has_it() -> None:
    program, *words = shlex.split(settings()["ExecStart"])
    assert program.endswith("/specd")
    assert parse(words).function == "specd.cli.serve:start"


def test_a_restart_of_the_daemon_leaves_what_it_started_alone() -> None:
    found = settings()
    assert (found["Type"], found["KillMode"], found["Restart"]) == ("notify", "process", "on-failure")
    assert (found["RuntimeDirectory"], found["RuntimeDirectoryMode"]) == ("specd", "0700")
    assert found["StateDirectory"] == "specd"
    assert int(found["WatchdogSec"]) >= 10


@needs_systemd
def test_systemd_has_nothing_to_say_about_it(tmp_path: Path) -> None:
    there = tmp_path / "specd.service"
    there.write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={shutil.which('true')}", UNIT.read_text()))
    done = subprocess.run(["systemd-analyze", "verify", str(there)], capture_output=True, text=True, check=False)
    about_it = [line for line in (done.stdout + done.stderr).splitlines() if "specd.service" in line]
    assert about_it == []
    assert done.returncode == 0


@needs_systemd
def test_its_exposure_is_at_most_2() -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    exposure = re.search(r"Overall exposure level for specd.service: ([\d.]+)", done.stdout)
    assert exposure is not None, done.stdout + done.stderr
    assert float(exposure.group(1)) <= 2.0
    assert done.returncode == 0
