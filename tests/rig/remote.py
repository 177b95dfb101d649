"""A GPU host: a real systemd behind a real sshd, the rehearsal engine as its unit."""

import json
from collections.abc import Mapping
from pathlib import Path

from specd.rehearsal.archive import build
from tests.rig.site import SCRIPT
from tests.testhost import TestHost
from tests.testhost.errors import HostError
from tests.testhost.power import wait_until
from tests.testhost.rehearsal import MODEL_NAME, UNIT, is_healthy, request, write_rehearsal_unit

__all__ = ["RemoteSite"]

# The patterns do not match the words of this script itself.
_STRAYS = """\
for process in /proc/[0-9]*; do
  words=$(tr '\\0' ' ' <"$process/cmdline") 2>/dev/null || continue
  group=$(cat "$process/cgroup") 2>/dev/null || continue
  read -r _ _ state parent _ <"$process/stat" || continue
  case "$words" in
    *rehearsal.py[z]*) case "$group" in */"$1") ;; *) echo "${process#/proc/} $words in $group" ;; esac ;;
    *journalct[l]*) [ "$parent" != 1 ] || echo "${process#/proc/} $words" ;;
  esac
done 2>/dev/null
:"""


class RemoteSite:
    """A booted test host with `llm.service`, reached over ssh as root or as `operator` with sudo."""

    name = "systemd"
    unit = UNIT
    scope = "system"

    def __init__(
        self, directory: Path, host: TestHost, *, user: str = "root", script: Mapping[str, object] = SCRIPT
    ) -> None:
        self.directory = directory
        self.host = host
        self._script = script
        self._user = user
        self.environment: dict[str, str] = {"HF_TOKEN": "hf_not-to-be-shown"}
        self._write()
        host.systemctl("start", UNIT)
        self.wait_until_serving()

    def _write(self) -> None:
        write_rehearsal_unit(self.host, build(), script=self._script, environment=self.environment)

    def wait_until_serving(self) -> None:
        """Wait until the service generates a token."""
        wait_until(lambda: is_healthy(self.host) and self.answers(), 30, "the baseline serves")

    def host_config(self) -> str:
        alias = self.host.alias if self._user == "root" else self.host.operator_alias
        become = '\nbecome = "sudo"' if self._user != "root" else ""
        return f'[hosts.site]\nssh = "{alias}"\nssh_config = {json.dumps(str(self.host.ssh_config))}{become}'

    def invocation(self, unit: str = "llm.service") -> str:
        return self.host.show(unit, "InvocationID")["InvocationID"]

    def starts(self, unit: str = "llm.service") -> list[str]:
        words = ["journalctl", "--quiet", "--output=json", "--output-fields=_SYSTEMD_INVOCATION_ID", "--unit", unit]
        found = [json.loads(line) for line in self.host.exec(words).stdout.splitlines()]
        ids = (str(record.get("_SYSTEMD_INVOCATION_ID") or "") for record in found)
        return list(dict.fromkeys(filter(None, ids)))

    def lines(self, unit: str, invocation: str) -> list[str]:
        selection = [f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}", f"UNIT={unit}"]
        words = ["journalctl", "--quiet", "--all", "--output=json", "--output-fields=MESSAGE", *selection]
        messages = [json.loads(line)["MESSAGE"] for line in self.host.exec(words).stdout.splitlines()]
        return [text if isinstance(text, str) else bytes(text).decode(errors="replace") for text in messages]

    def is_active(self, unit: str = "llm.service") -> bool:
        return self.host.is_active(unit)

    def answers(self) -> bool:
        body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        try:
            return bool(json.loads(request(self.host, "/v1/chat/completions", body))["usage"]["completion_tokens"] > 0)
        except HostError:
            return False

    def fingerprint(self) -> dict[str, str]:
        enabled = self.host.systemctl("is-enabled", UNIT, check=False).strip()
        return {**self.host.snapshot("/etc/systemd/system"), "enabled": enabled}

    def traces(self) -> list[str]:
        listed = self.host.exec(["systemctl", "list-units", "--all", "--plain", "--no-legend", "specd*"], check=False)
        files = [name for name in self.host.snapshot("/run/systemd/system") if "specd" in name]
        return files + [line.split()[0] for line in listed.stdout.splitlines() if line.strip()]

    def set_baseline_environment(self, **values: str) -> None:
        text = "".join(f"{name}={json.dumps(value)}\n" for name, value in {**self.environment, **values}.items())
        self.host.put(f"/etc/rehearsal/{UNIT}.env", "# Read at each start.\n" + text, mode=0o640)

    def signal_engine(self, unit: str, number: int) -> None:
        pid = self.host.show(unit, "MainPID")["MainPID"]
        if pid.isdigit() and int(pid):
            self.host.exec(["kill", f"-{number}", pid], check=False)

    def end_sessions(self) -> None:
        """End every ssh session and start sshd again."""
        # The listener's title has a path where a session's has its user.
        self.host.exec(["pkill", "-KILL", "-f", "^sshd: [a-z]+[@ ]"], check=False)
        self.host.systemctl("reset-failed", "ssh.service")
        self.host.systemctl("restart", "ssh.service")

    def stop_baseline(self) -> None:
        self.host.systemctl("stop", UNIT)

    def leave_orphans(self) -> None:
        """From its next start on, what the engine has forked outlives it, and systemd lets it; the baseline is started
        anew at once."""
        self.set_baseline_environment(SPECD_REHEARSAL_FAULT="orphans")
        self.host.write_unit(f"{UNIT}.d/orphans.conf", "[Service]\nKillMode=process\n")
        self.host.systemctl("restart", UNIT)
        self.wait_until_serving()

    def leave_none(self) -> None:
        """Undo `leave_orphans`; the orphans left until now end."""
        self.host.exec(["rm", "-rf", f"/etc/systemd/system/{UNIT}.d"])
        self.set_baseline_environment()
        self.host.systemctl("daemon-reload")
        self.host.systemctl("restart", UNIT)
        self.wait_until_serving()

    def strays(self) -> list[str]:
        """Return the engine's processes outside of the baseline's cgroup, and followers that nobody reads any more."""
        return self.host.exec(["sh", "-c", _STRAYS, "strays", UNIT]).stdout.splitlines()
