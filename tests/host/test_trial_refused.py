"""What can't be tried is refused in words that name the thing, with the contract's status, and nothing happens on the
host."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.trial_site import HostSite, put_engine, serve_words, unit_text
from tests.rig import Daemon
from tests.rig.daemon import trial_toml
from tests.testhost import TestHost

pytestmark = pytest.mark.host

REFUSED = {
    "shell": ("ExecStart=/bin/bash -c 'for g in 0; do {serve}; done'", ["`bash -c`", "inside a for"]),
    "script": ("ExecStart=/opt/rehearsal/start.sh", ["/opt/rehearsal/start.sh", "no LLM server is started"]),
    "docker": ("ExecStart=/usr/local/bin/docker run --rm vllm/vllm-openai --model m", ["port 8000", "not published"]),
    "oneshot": ("Type=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true serve", ["Type=oneshot"]),
    "forking": ("Type=forking\nExecStart=/bin/sh -c 'sleep 1000 &'", ["Type=forking"]),
    "two commands": ("ExecStart={serve}\nExecStart={serve}", ["more than one ExecStart="]),
    "no server": ("ExecStart=/bin/sleep 1000", ["no LLM server is recognised", "/bin/sleep"]),
}


@pytest.fixture(scope="module")
def host(swept: None) -> Iterator[TestHost]:
    """A host with the engine and no service yet."""
    made = TestHost.create()
    try:
        made.boot()
        put_engine(made)
        made.put("/usr/local/bin/docker", "#!/bin/sh\nexec sleep 1000\n", mode=0o755)
        made.put("/opt/rehearsal/start.sh", "#!/bin/sh\nexec sleep 1000\n", mode=0o755)
        yield made
    finally:
        made.destroy()


@pytest.fixture
def site(host: TestHost, tmp_path: Path) -> Iterator[HostSite]:
    """A service as it should be."""
    made = HostSite(tmp_path, host, {"llm.service": unit_text(serve_words(host))})
    try:
        yield made
    finally:
        made.remove()


async def told(daemon: Daemon, service: str = "llm", flags: dict[str, object] | None = None) -> dict[str, str]:
    """Run check, plan and submit side by side and return the status and words of each."""
    trial = daemon.site.directory / f"{service}.toml"
    text = trial_toml({"max-num-seqs": 8} if flags is None else flags)
    trial.write_text(text.replace('service = "llm"', f'service = "{service}"'))
    commands = {"check": ["check"], "plan": ["plan", str(trial)], "submit": ["submit", "--wait", str(trial)]}
    ended = await asyncio.gather(*(asyncio.to_thread(daemon.command, *words) for words in commands.values()))
    return {name: f"{done.returncode}\n{done.stdout}{done.stderr}" for name, done in zip(commands, ended, strict=True)}


async def test_units_that_cant_be_tried(host: TestHost, tmp_path: Path) -> None:
    site = HostSite(tmp_path, host, {"llm.service": "[Service]\nExecStart=/bin/true\n"}, start=False)
    properties = ("InvocationID", "ActiveState", "UnitFileState")
    try:
        async with Daemon(site) as daemon:
            for name, (lines, words) in REFUSED.items():
                host.write_unit(
                    "llm.service", f"[Service]\nTimeoutStopSec=1\n{lines.format(serve=serve_words(host))}\n"
                )
                host.systemctl("start", "llm", check=False)
                before = host.show("llm", *properties)
                checked = await daemon.client.post("/v1/check")
                (plan,) = await daemon.client.plan("t.toml", trial_toml({"max-num-seqs": 8}))
                shown = await daemon.settled(await daemon.submit({"max-num-seqs": 8}))
                assert not checked["ok"], name
                assert not plan["ok"], name
                assert (shown["state"], shown["outcome"]) == ("withdrawn", "failed"), name
                for answer in (checked, plan, shown):
                    assert all(word in json.dumps(answer) for word in words), (name, words, answer)
                assert host.show("llm", *properties) == before
                assert site.traces() == []
                host.systemctl("stop", "llm", check=False)
    finally:
        site.remove()


async def test_units_that_are_not_there_masked_or_not_running(site: HostSite) -> None:
    host = site.host
    async with Daemon(site) as daemon:
        host.systemctl("stop", "llm")
        for command, answer in (await told(daemon)).items():
            # Looking is no fault: the service may be meant to be down now.
            assert answer.startswith("4\n"), (command, answer)
            assert "llm.service is inactive" in answer, (command, answer)
            assert "start" in answer
        host.exec(["mv", "/etc/systemd/system/llm.service", "/root/llm.service"])
        host.systemctl("daemon-reload")
        for command, answer in (await told(daemon)).items():
            assert answer.startswith("4\n"), (command, answer)
            assert "llm.service" in answer
            assert "no such unit" in answer, (command, answer)
        imported = await asyncio.to_thread(daemon.command, "import", "site", "llm")
        assert imported.returncode == 4
        assert "no such unit" in imported.stderr
        host.systemctl("mask", "llm")
        for command, answer in (await told(daemon)).items():
            assert answer.startswith("4\n"), (command, answer)
            assert "masked" in answer, (command, answer)
        host.systemctl("unmask", "llm")
        host.exec(["mv", "/root/llm.service", "/etc/systemd/system/llm.service"])
        host.systemctl("daemon-reload")
    assert not host.is_active("llm")
    assert site.traces() == []


async def test_ports_disks_and_directories(site: HostSite) -> None:
    host, before, invocation = site.host, site.fingerprint(), site.invocation()
    async with Daemon(site) as daemon:
        host.exec(["systemd-run", "--unit=stranger", "python3", "-m", "http.server", "8100", "--bind", "127.0.0.1"])
        try:
            said = await told(daemon, flags={"port": 8100})
        finally:
            host.systemctl("stop", "stranger")
        for command in ("plan", "submit"):
            assert said[command].startswith("4\n"), said[command]
            assert "port 8100 belongs to pid" in said[command]
            assert "stranger.service" in said[command]
        host.make_readonly("/run/systemd/system")
        try:
            said = await told(daemon)
        finally:
            host.make_writable("/run/systemd/system")
        for command, answer in said.items():
            assert answer.startswith("4\n"), (command, answer)
            assert "/run/systemd/system" in answer, (command, answer)
        host.fill("/run/systemd/system")
        try:
            said = await told(daemon)
            left = [name for name in host.snapshot("/run/systemd/system") if "specd" in name]
        finally:
            host.unfill("/run/systemd/system")
        assert not said["submit"].startswith("0\n")
        assert "no space left" in said["submit"]
        assert "/run/systemd/system/specd-" in said["submit"]
        assert left == []
    assert site.invocation() == invocation
    assert site.fingerprint() == before
    assert site.traces() == []
