"""A trial as a user with few rights: sudo for exactly the commands of docs/sudo.md, or none in the user's own
systemd."""

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import HostFactory
from tests.host.trial_site import QUICK, HostSite, UserSite, noted, put_engine, serve_words, short_lease, unit_text
from tests.rig import Daemon
from tests.rig.daemon import trial_toml, write_trial
from tests.testhost import HostOptions, TestHost

pytestmark = pytest.mark.host

PAGE = (Path(__file__).parents[2] / "docs/sudo.md").read_text()
CLOSED = "operator ALL=(root) NOPASSWD: /usr/bin/cat /etc/rehearsal/llm.env\n"


def documented() -> str:
    """Return the sudoers file of the page, for two units."""
    (block,) = re.findall(r"```sudoers\n(.*?)```", PAGE, re.DOTALL)
    assert "(vllm|" in block
    return str(block).replace("(vllm|", "(llm|vllm@a|")


@pytest.fixture(scope="module")
def host(swept: None) -> Iterator[TestHost]:
    """A host with the engine; its operator's rights are each test's own."""
    made = TestHost.create(options=HostOptions(operator_sudoers=documented()))
    try:
        made.boot()
        put_engine(made)
        yield made
    finally:
        made.destroy()


@pytest.fixture
def site(host: TestHost, tmp_path: Path) -> HostSite:
    """The service, started by the first test that needs it, and the documented rights."""
    host.set_sudoers(documented())
    made = HostSite(tmp_path, host, {"llm.service": unit_text(serve_words(host))}, user="operator", start=False)
    host.systemctl("start", "llm")
    made.wait_until_serving()
    return made


async def test_a_whole_trial_with_the_documented_rights_only(site: HostSite) -> None:
    before = site.fingerprint()
    async with Daemon(site, QUICK) as daemon:
        checked = daemon.command("check")
        assert checked.returncode == 0, checked.stdout + checked.stderr
        shown = await daemon.settled(await daemon.submit(benchmark="quick", env={"SOME_KEY": "a value"}))
        notes = await noted(daemon)
    assert shown["state"] == "restored", (shown["reason"], shown["history"][-1])
    assert shown["outcome"] not in {"failed", "cancelled"}, shown["reason"]
    assert not [check for check in shown["checks"] if check["status"] in {"failed", "unchecked"}], shown["checks"]
    assert not notes
    for unit, status in (("llm", 0), ("vllm@a", 0), ("vllm", 1), ("ssh", 1)):
        command = ["systemctl", "stop", "--no-block", "--", f"{unit}.service"]
        assert site.host.exec(["sudo", "-l", "-U", "operator", *command], check=False).returncode == status, unit
    assert site.answers()
    assert site.fingerprint() == before
    assert site.traces() == []


async def test_the_guard_works_without_specd_and_without_more_rights(site: HostSite) -> None:
    before, invocation = site.fingerprint(), site.invocation()
    async with Daemon(site, QUICK) as daemon:
        short_lease(daemon, lease_s=4, renew_s=1)
        await daemon.start()
        trial = await daemon.submit(benchmark="quick", env={"SPECD_REHEARSAL_FAULT": "hang:weights"})
        await daemon.reached(trial, "loading")
        daemon.kill()
        await asyncio.to_thread(site.wait_until_serving)
        assert site.invocation() not in {"", invocation}
        restored = site.invocation()
        await daemon.start()
        shown = await daemon.settled(trial)
    assert (shown["state"], shown["outcome"], shown["class"]) == ("restored", "failed", "guard"), shown["reason"]
    assert site.invocation() == restored, "the baseline was restarted although the guard had brought it back"
    assert site.fingerprint() == before
    assert site.traces() == []


@pytest.mark.parametrize(
    ("sudoers", "words"),
    [
        ("# nothing\n", ["rights.systemctl", "systemctl daemon-reload", "docs/sudo.md"]),
        (documented().replace("NOPASSWD", "PASSWD"), ["rights.systemctl", "password", "docs/sudo.md"]),
        (documented().replace("NOPASSWD: SPECD_UNITS, SPECD_FILES", "NOPASSWD: SPECD_UNITS"), ["rights.write", "tee"]),
    ],
    ids=["none", "password", "no-files"],
)
async def test_a_right_that_lacks_is_named_beforehand(site: HostSite, sudoers: str, words: list[str]) -> None:
    site.host.set_sudoers(sudoers)
    invocation = site.invocation()
    trial = write_trial(site.directory / "t.toml", {"max-num-seqs": 8})
    async with Daemon(site) as daemon:
        checked = await asyncio.to_thread(daemon.command, "check")
        planned = await asyncio.to_thread(daemon.command, "plan", str(trial))
        submitted = await asyncio.to_thread(daemon.command, "submit", "--wait", str(trial))
    for done, status in ((checked, 4), (planned, 4), (submitted, 4)):
        assert done.returncode == status, done.stdout + done.stderr
        for word in words:
            assert word in done.stdout + done.stderr, (done.args, done.stdout, done.stderr)
    assert site.invocation() == invocation
    assert site.traces() == []


async def test_a_host_without_sudo_or_a_config_without_it(site: HostSite) -> None:
    invocation = site.invocation()
    daemon = Daemon(site)
    text = daemon.config.read_text()
    daemon.config.write_text(text.replace('become = "sudo"', ""))
    async with daemon:
        (plan,) = await daemon.client.plan("t.toml", trial_toml({"max-num-seqs": 8}))
        shown = await daemon.settled(await daemon.submit({"max-num-seqs": 8}))
        for answer in (plan, shown):
            assert "`become` of this host is none" in json.dumps(answer)
        daemon.end(signal.SIGTERM)
        daemon.config.write_text(text)
        site.host.exec(["mv", "/usr/bin/sudo", "/usr/bin/sudo.away"])
        try:
            await daemon.start()
            (plan,) = await daemon.client.plan("t.toml", trial_toml({"max-num-seqs": 8}))
            shown = await daemon.settled(await daemon.submit({"max-num-seqs": 8}))
        finally:
            site.host.exec(["mv", "/usr/bin/sudo.away", "/usr/bin/sudo"])
        for answer in (plan, shown):
            assert "the host has no sudo" in json.dumps(answer)
    assert site.invocation() == invocation
    assert site.traces() == []


async def test_a_closed_environment_file_needs_the_line_that_the_page_names(site: HostSite) -> None:
    host = site.host
    host.put("/etc/rehearsal/llm.env", "SEQS=8\n", mode=0o600)
    host.put(
        "/etc/systemd/system/llm.service",
        unit_text(f"{serve_words(host)} --max-num-seqs ${{SEQS}}", "EnvironmentFile=/etc/rehearsal/llm.env"),
    )
    host.systemctl("daemon-reload")
    host.systemctl("restart", "llm")
    await asyncio.to_thread(site.wait_until_serving)
    async with Daemon(site, QUICK) as daemon:
        refused = await asyncio.to_thread(daemon.command, "check")
        assert refused.returncode == 4
        assert "/etc/rehearsal/llm.env" in refused.stdout
        host.set_sudoers(documented() + CLOSED)
        trial = await daemon.submit({"max-model-len": 4096}, benchmark="quick")
        await daemon.reached(trial, "loading")
        await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "a test"})
        shown = await daemon.settled(trial)
    argv = shown["candidate"]["argv"]
    assert argv[argv.index("--max-num-seqs") + 1] == "8"
    assert (shown["state"], shown["outcome"]) == ("restored", "cancelled")
    assert site.traces() == []
    site.remove()


async def test_a_user_unit_needs_no_sudo_at_all(make_host: HostFactory, tmp_path: Path) -> None:
    host = make_host(HostOptions(user_instance=True))
    put_engine(host)
    site = UserSite(tmp_path, host, {"llm.service": unit_text(serve_words(host), wanted_by="default.target")})
    before = site.fingerprint()
    assert before["enabled"] == "enabled"
    async with Daemon(site, QUICK) as daemon:
        short_lease(daemon, lease_s=4, renew_s=1)
        await daemon.start()
        checked = daemon.command("check", "--json")
        assert checked.returncode == 0, checked.stdout
        trial = await daemon.submit(benchmark="quick", env={"SPECD_REHEARSAL_FAULT": "hang:weights"})
        await daemon.reached(trial, "loading")
        daemon.kill()
        await asyncio.to_thread(site.wait_until_serving)
        await daemon.start()
        guarded = await daemon.settled(trial)
    assert (guarded["state"], guarded["class"]) == ("restored", "guard")
    assert site.fingerprint() == before
    assert site.traces() == []
    assert "lingering" in json.dumps(json.loads(checked.stdout))
