"""Ways to a host: aliases, jump hosts, shells that talk, few sessions; and hosts that can't be had, told in words."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from tests.conftest import HostFactory
from tests.host.trial_site import QUICK, HostSite, put_engine, serve_words, unit_text
from tests.rig import Daemon
from tests.rig.daemon import trial_toml
from tests.testhost import HostOptions, TestHost

pytestmark = pytest.mark.host


async def test_behind_a_jump_host_with_talkative_shells_and_two_sessions(
    make_host: HostFactory, tmp_path: Path
) -> None:
    front = make_host()
    host = make_host(HostOptions(max_sessions=2), behind=front)
    for each in (front, host):
        each.greet_with("Welcome!\\n\\033[31mmaintenance on Sunday\\033[0m\\n")
    put_engine(host)
    site = HostSite(tmp_path, host, {"llm.service": unit_text(serve_words(host))})
    before = site.fingerprint()
    async with Daemon(site, QUICK) as daemon:
        shown = await daemon.settled(await daemon.submit(benchmark="quick", env={"SOME_KEY": "a value"}))
        imported = await asyncio.to_thread(daemon.command, "import", "site", "llm")
    assert shown["state"] == "restored", (shown["reason"], shown["history"])
    assert shown["outcome"] not in {"failed", "cancelled"}, shown["reason"]
    assert imported.returncode == 0, imported.stderr
    assert site.answers()
    assert site.fingerprint() == before
    assert site.traces() == []


def hosts_that_cant_be_had(host: TestHost, directory: Path) -> dict[str, tuple[str, list[str]]]:
    """Return, by name, the [hosts] table of each, and the words that must be said."""
    other = directory / "other_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True, capture_output=True)
    kind, key, *_ = other.with_suffix(".pub").read_text().split()
    (directory / "changed_hosts").write_text(f"{host.address} {kind} {key}\n")
    (directory / "no_hosts").write_text("")
    entries = host.ssh_config.read_text()
    configs = {
        "changed": entries.replace(str(host.known_hosts), str(directory / "changed_hosts")),
        "unknown": entries.replace(str(host.known_hosts), str(directory / "no_hosts")),
        "stranger": entries.replace(str(host.key), str(other)),
        "gone": entries.replace(f"HostName {host.address}", "HostName 10.213.254.2"),
        "closed": entries.replace(f"HostName {host.address}", f"HostName {host.address}\n  Port 2222"),
    }
    words = {
        "changed": ["the host key of changed", "has changed", host.address, "changed_hosts:1"],
        "unknown": ["the host key of unknown", "is unknown", host.address],
        "stranger": [f"stranger (root@{host.address}", "none of our keys"],
        "gone": ["gone", "10.213.254.2"],
        "closed": ["closed", "2222"],
    }
    found = {}
    for name, text in configs.items():
        path = directory / f"ssh_{name}"
        path.write_text(text)
        table = f'[hosts.{name}]\nssh = "{host.alias}"\nssh_config = {json.dumps(str(path))}\nconnect_timeout_s = 2\n'
        service = f'[services.on-{name}]\nhost = "{name}"\nunit = "llm.service"\n'
        limits = f"[services.on-{name}.deadlines]\nbaseline_s = 4\n"
        found[name] = (table + service + limits, words[name])
    return found


async def test_hosts_that_cant_be_had_are_named_with_the_reason(make_host: HostFactory, tmp_path: Path) -> None:
    host = make_host()
    put_engine(host)
    site = HostSite(tmp_path, host, {"llm.service": unit_text(serve_words(host))})
    invocation = site.invocation()
    bad = hosts_that_cant_be_had(host, tmp_path)
    tables = "[benchmarks.default]\nlevels = [1]\n" + "".join(table for table, _ in bad.values())
    async with Daemon(site, tables) as daemon:
        checked = await asyncio.to_thread(daemon.command, "check", "--json")
        assert checked.returncode == 4
        groups = json.loads(checked.stdout)
        told = {group["name"]: json.dumps(group) for group in (*groups["hosts"], *groups["services"])}
        # One host that can't be had hides nothing of the others.
        assert '"failed"' not in told["site"] + told["llm"], (told["site"], told["llm"])

        async def ends_with(name: str, words: list[str]) -> None:
            text = trial_toml({"max-num-seqs": 8}).replace('"llm"', f'"on-{name}"')
            (plan,) = await daemon.client.plan("t.toml", text)
            (trial,) = await daemon.client.submit("t.toml", text)
            shown = await daemon.settled(trial["id"])
            assert (shown["state"], shown["outcome"]) == ("withdrawn", "failed")
            assert not plan["ok"]
            answers = [told[name], told[f"on-{name}"], json.dumps(plan["checks"]), json.dumps(shown["failure"])]
            for answer in answers:
                assert all(word in answer for word in words), (name, words, answer)

        await asyncio.gather(*(ends_with(name, words) for name, (_, words) in bad.items()))
        for name in ("changed", "gone"):
            imported = await asyncio.to_thread(daemon.command, "import", name, "llm.service")
            assert imported.returncode == 2
            assert all(word in imported.stderr for word in bad[name][1]), imported.stderr
    assert site.invocation() == invocation
    assert site.traces() == []
