"""A machine without systemd: the supervisor with the rehearsal engine as its enabled unit."""

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.rig.site import SCRIPT

__all__ = ["EmbeddedSite"]


class EmbeddedSite:
    """A supervisor's directory with `llm.service`; everything it started ends with `close`."""

    name = "embedded"
    unit = "llm.service"
    scope = "system"

    def __init__(self, directory: Path, *, api_key: str = "") -> None:
        self.directory = directory
        self._api_key = api_key
        self.units = directory / "u"
        (self.units / "units").mkdir(parents=True, mode=0o700)
        self.units.chmod(0o700)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._environment_file = directory / "llm.env"
        self._environment_file.write_text("# Read at each start.\n")
        key = ["--api-key", api_key] if api_key else []
        unit = {
            "description": "the model",
            "argv": [sys.executable, "-m", "specd.rehearsal", "serve", "tiny-moe", "--port", str(self.port), *key],
            "environment": {"SPECD_REHEARSAL": json.dumps(SCRIPT), "HF_TOKEN": "hf_not-to-be-shown"},
            "environment_files": [str(self._environment_file)],
            "stop_timeout_s": 5,
            "restart": "on-failure",
            "enabled": True,
        }
        (self.units / "units" / "llm.service.json").write_text(json.dumps(unit))
        self._read_end, self._lifeline = os.pipe()
        self._boot()
        self.wait_until_serving()

    def _boot(self) -> None:
        self._supervisor = subprocess.Popen(
            [sys.executable, "-m", "specd.supervisor", str(self.units), "--lifeline", str(self._read_end)],
            pass_fds=(self._read_end,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def crash(self) -> None:
        """kill -9 of the supervisor, and another one in its place."""
        self.kill_supervisor()
        self.boot()

    def kill_supervisor(self) -> None:
        """kill -9 of the supervisor that has the lock: ours, or one that was started in its place."""
        with contextlib.suppress(ProcessLookupError, ValueError):
            os.kill(int((self.units / "supervisor.pid").read_text()), signal.SIGKILL)
        self._supervisor.kill()
        self._supervisor.wait(timeout=10)

    def boot(self) -> None:
        """Start a supervisor; where one has been started meanwhile, this one ends by itself."""
        self._boot()

    def close(self) -> None:
        """End the supervisor and all it started."""
        os.close(self._lifeline)
        os.close(self._read_end)
        self._supervisor.wait(timeout=30)
        # One that was started in its place is tied to the same pipe.
        with (self.units / "supervisor.pid").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)

    def host_config(self) -> str:
        return f'[hosts.site]\nmanager = "embedded"\ndirectory = {json.dumps(str(self.units))}'

    def ask(self, do: str, **fields: object) -> dict[str, Any]:
        """Send one request to the supervisor and return its answer."""
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(10)
            here = os.open(self.units, os.O_RDONLY)
            try:
                _connect(line, f"/proc/self/fd/{here}/supervisor.sock")
            finally:
                os.close(here)
            line.sendall(json.dumps({"id": 1, "do": do, **fields}).encode() + b"\n")
            answer: dict[str, Any] = json.loads(line.makefile().readline())
        return answer

    def _status(self, unit: str) -> dict[str, Any]:
        answer = self.ask("status", unit=unit)
        assert "ok" in answer, answer
        found: dict[str, Any] = answer["ok"]
        return found

    def invocation(self, unit: str = "llm.service") -> str:
        return str(self._status(unit).get("invocation") or "")

    def _journal(self, unit: str) -> list[dict[str, Any]]:
        files = sorted((self.units / "journal").glob(f"{unit.removesuffix('.service')}.*"))
        records = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        return sorted(records, key=lambda record: int(record["seq"]))

    def starts(self, unit: str = "llm.service") -> list[str]:
        printed = (record for record in self._journal(unit) if record["stream"] != "manager")
        return list(dict.fromkeys(str(record["invocation"]) for record in printed))

    def lines(self, unit: str, invocation: str) -> list[str]:
        return [str(record["text"]) for record in self._journal(unit) if record["invocation"] == invocation]

    def is_active(self, unit: str = "llm.service") -> bool:
        return self._status(unit).get("active") == "active"

    def answers(self) -> bool:
        body = json.dumps({"model": "tiny-moe", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4})
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._api_key}"}
        request = urllib.request.Request(url, body.encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return bool(json.load(reply)["usage"]["completion_tokens"] > 0)
        except (urllib.error.URLError, OSError):
            return False

    def wait_until_serving(self) -> None:
        """Wait until the service generates a token."""
        deadline = time.monotonic() + 20
        while not self.answers():
            assert time.monotonic() < deadline, "the baseline does not come up"
            time.sleep(0.05)

    def fingerprint(self) -> dict[str, str]:
        unit = self.units / "units" / "llm.service.json"
        return {str(unit): unit.read_text()}

    def traces(self) -> list[str]:
        files = [path.name for path in (self.units / "units").iterdir() if path.name.startswith("specd-")]
        state = json.loads((self.units / "state.json").read_text())
        claims = [path.name for path in self.units.glob("claims/*")]
        return files + claims + [f"guard {guard}" for guard in state["guards"]]

    def set_baseline_environment(self, **values: str) -> None:
        text = "".join(f"{name}={json.dumps(value)}\n" for name, value in values.items())
        self._environment_file.write_text("# Read at each start.\n" + text)

    def signal_engine(self, unit: str, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if pid := self._status(unit)["main_pid"]:
                os.kill(pid, number)

    def stop_baseline(self) -> None:
        self.ask("stop", unit="llm.service")

    def leave_orphans(self) -> None:
        """From its next start on, what the engine has forked outlives it; the baseline is started anew at once."""
        self._start_anew(SPECD_REHEARSAL_FAULT="orphans")

    def leave_none(self) -> None:
        """Undo `leave_orphans`."""
        self._start_anew()

    def _start_anew(self, **environment: str) -> None:
        self.set_baseline_environment(**environment)
        for do in ("stop", "start"):
            self.ask(do, unit="llm.service")
        self.wait_until_serving()

    def strays(self) -> list[str]:
        """Return the engine's processes that are none of the baseline's."""
        parents, engines = {}, []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                parents[int(entry.name)] = int(parent)
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if state not in "ZX" and b"specd.rehearsal" in words and str(self.port).encode() in words:
                    engines.append(int(entry.name))
        main = int(self._status(self.unit)["main_pid"])
        return [f"pid {pid}" for pid in engines if main not in _line_of(pid, parents)]


def _line_of(pid: int, parents: dict[int, int]) -> list[int]:
    """Return a process and all those above it."""
    line = [pid]
    while line[-1] in parents:
        line.append(parents[line[-1]])
    return line


def _connect(line: socket.socket, address: str) -> None:
    """Connect to the supervisor; one that was killed a moment ago has a successor soon."""
    until = time.monotonic() + 10
    while True:
        try:
            line.connect(address)
            return
        except (ConnectionRefusedError, FileNotFoundError):
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
