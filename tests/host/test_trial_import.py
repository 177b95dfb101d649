"""`specd import` over ssh: what it prints is a config with which a trial runs."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
import tomli

from tests.conftest import HostFactory
from tests.host.trial_site import QUICK, HostSite, put_engine, serve_words, unit_text
from tests.rig import Daemon
from tests.rig.daemon import trial_toml

pytestmark = pytest.mark.host


async def test_what_import_prints_is_a_config(
    make_host: HostFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host()
    put_engine(host)
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    (home / ".ssh/config").write_text(host.ssh_config.read_text().replace(f"Host {host.alias}\n", "Host gpu-1\n"))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    site = HostSite(tmp_path, host, {"vllm-kimi@.service": unit_text(serve_words(host))}, unit="vllm-kimi@a.service")
    before, invocation = site.fingerprint(), site.invocation()
    listed = await asyncio.to_thread(plain, "import", "gpu-1", "--json")
    assert json.loads(listed.stdout)["units"] == [{"unit": "vllm-kimi@a.service", "engine": "rehearsal", "port": 8000}]
    host.exec(["bash", "-c", "(exec -a 'vllm serve /m' sleep 60) >/dev/null 2>&1 &"])
    told = (await asyncio.to_thread(plain, "import", "gpu-1")).stdout
    assert "runs outside of a unit: vllm serve /m" in told
    assert told.count("outside of a unit") == 1
    imported = await asyncio.to_thread(plain, "import", "gpu-1", "vllm-kimi@a")
    assert "# its last start took" in imported.stdout
    assert "weights" in imported.stdout
    assert imported.returncode == 0, imported.stderr
    daemon = Daemon(site)
    own, _, _ = daemon.config.read_text().partition("[hosts.")
    daemon.config.write_text(own + imported.stdout + QUICK.replace("quick]", "default]"))
    (service,) = tomli.loads(imported.stdout)["services"]
    trial = tmp_path / "t.toml"
    trial.write_text(trial_toml({"max-num-seqs": 8}).replace('"llm"', json.dumps(service)))
    async with daemon:
        checked = await asyncio.to_thread(daemon.command, "check")
        assert checked.returncode == 0, checked.stdout
        ended = await asyncio.to_thread(daemon.command, "submit", "--wait", "--json", str(trial))
    (shown,) = json.loads(ended.stdout)["trials"]
    assert shown["state"] == "restored", shown["reason"]
    assert shown["baseline"]["invocation"] == invocation
    assert shown["outcome"] not in {"failed", "cancelled"}, shown["reason"]
    assert site.answers()
    assert site.fingerprint() == before
    assert site.traces() == []


def plain(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `specd WORDS` as somebody without a config."""
    argv = [sys.executable, "-m", "specd", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
