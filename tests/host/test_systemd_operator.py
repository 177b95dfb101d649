"""A user with sudo for exactly the commands that docs/sudo.md lists, and a user's own systemd."""

import asyncio
import re
from pathlib import Path

import pytest

from specd.checks import Check, failures
from specd.errors import PrivilegeRefused
from specd.services.service import GuardPlan
from specd.services.systemd import SystemdManager
from tests.conftest import HostFactory
from tests.host.systemd_rig import closed_hosts, manager_on, until  # noqa: F401
from tests.testhost import HostOptions, TestHost

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("closed_hosts")]

PAGE = (Path(__file__).parents[2] / "docs/sudo.md").read_text()
SUDOERS = re.findall(r"```sudoers\n(.*?)```", PAGE, re.DOTALL)[0]
UNIT = "[Service]\nExecStart=/bin/sh -c 'echo serving; exec sleep 1000'\n[Install]\nWantedBy=multi-user.target\n"


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


async def whole_trial(manager: SystemdManager, unit: str) -> None:
    """Do everything that a trial does to a host, and leave it as it was."""
    base = await manager.facts(unit)
    candidate = manager.render(
        base,
        trial="whole",
        installation="test",
        argv=("/bin/sh", "-c", "echo candidate; exec sleep 1000"),
        env={"KEY": "sk-secret"},
        stop_timeout_s=2,
    )
    await manager.install(candidate)
    await manager.install(candidate)
    assert not failures(await manager.examine(candidate))
    assert [unit.name for unit in await manager.own_units()] == [candidate.name]
    plan = GuardPlan(trial="whole", candidate=candidate.name, baseline=unit, lease_s=600)
    await manager.arm_guard(plan)
    await manager.arm_guard(plan)
    await manager.stop(unit)
    await manager.start(candidate.name)

    async def active() -> bool:
        return (await manager.status(candidate.name)).active == "active"

    await until(active, what="the candidate")
    status = await manager.status(candidate.name)
    async with asyncio.timeout(10), manager.journal(candidate.name, status.invocation) as records:
        async for record in records:
            if record.text == "candidate":
                break
    assert record.pid == status.main_pid
    assert not record.from_manager
    assert [process.pid for process in await manager.processes(candidate.name)] == [status.main_pid]
    await manager.kill(candidate.name)

    async def down() -> bool:
        return (await manager.status(candidate.name)).is_down

    await until(down, what="the end of the candidate")
    await manager.start(unit)

    async def serving() -> bool:
        return (await manager.status(unit)).active == "active"

    await until(serving, what="the baseline")
    await manager.disarm_guard("whole")
    await manager.uninstall(candidate.name)
    assert await manager.own_units() == []
    assert await manager.guard("whole") is None


async def test_a_whole_trial_with_the_documented_rights_only(make_host: HostFactory) -> None:
    host = make_host(HostOptions(operator_sudoers=SUDOERS))
    host.write_unit("vllm.service", UNIT)
    host.systemctl("enable", "--now", "vllm")
    before = host.snapshot("/etc/systemd/system"), host.snapshot("/run/systemd/system")
    manager = manager_on(host, "operator")
    checks = by_name(await manager.preflight("vllm"))
    assert not failures(list(checks.values()))
    assert "without a password" in checks["rights.systemctl"].evidence
    assert "without a password" in checks["rights.write"].evidence
    assert (host.snapshot("/etc/systemd/system"), host.snapshot("/run/systemd/system")) == before
    await whole_trial(manager, "vllm.service")
    assert (host.snapshot("/etc/systemd/system"), host.snapshot("/run/systemd/system")) == before
    for forbidden in ("vllm.service evil.service", "other.service"):
        command = ["systemctl", "stop", "--no-block", "--", *forbidden.split()]
        assert host.exec(["sudo", "-l", "-U", "operator", *command], check=False).returncode == 1


@pytest.mark.parametrize(
    ("sudoers", "failed", "words"),
    [
        ("", {"rights.systemctl", "rights.write"}, "operator|password|allow"),
        (SUDOERS.replace("NOPASSWD: SPECD_UNITS, SPECD_FILES", "NOPASSWD: SPECD_UNITS"), {"rights.write"}, "tee"),
        (
            SUDOERS.replace("NOPASSWD: SPECD_UNITS, SPECD_FILES", "NOPASSWD: SPECD_FILES, PASSWD: SPECD_UNITS"),
            {"rights.systemctl"},
            "password",
        ),
        ("Defaults:operator requiretty\n" + SUDOERS, {"rights.systemctl", "rights.write"}, "tty"),
        (SUDOERS.replace("(vllm|", "(other|"), {"rights.systemctl"}, "4 of .* vllm"),
    ],
    ids=["none", "no-files", "password", "tty", "other-unit"],
)
async def test_missing_rights_are_found_before_anything_is_done(
    make_host: HostFactory, sudoers: str, failed: set[str], words: str
) -> None:
    host = make_host(HostOptions(operator_sudoers=sudoers or "# nothing\n"))
    host.write_unit("vllm.service", UNIT)
    host.systemctl("start", "vllm")
    before = host.snapshot("/run/systemd/system")
    manager = manager_on(host, "operator")
    found = failures(await manager.preflight("vllm"))
    assert {check.name for check in found} == failed
    for check in found:
        assert "docs/sudo.md" in check.fix
    assert re.search(words, found[0].evidence), found[0].evidence
    assert host.snapshot("/run/systemd/system") == before
    assert host.is_active("vllm")


async def test_a_closed_environment_file_needs_one_right_more(make_host: HostFactory) -> None:
    host = make_host(HostOptions(operator_sudoers=SUDOERS))
    host.put("/etc/vllm.env", "KEY=sk-very-secret\n", mode=0o600)
    host.put("/usr/local/bin/serve", "#!/bin/sh\nsleep 1000\n", mode=0o755)
    text = "[Service]\nEnvironmentFile=/etc/vllm.env\nExecStart=/usr/local/bin/serve ${KEY}\nFoo=1\n"
    host.write_unit("vllm.service", text)
    host.systemctl("start", "vllm")
    manager = manager_on(host, "operator")
    (failed,) = failures(await manager.preflight("vllm"))
    assert failed.name == "unit.readable"
    assert "secret" not in failed.evidence
    host.set_sudoers(SUDOERS + "operator ALL=(root) NOPASSWD: /usr/bin/cat /etc/vllm.env\n")
    assert not failures(await manager.preflight("vllm"))
    base = await manager.facts("vllm")
    assert base.argv == ("/usr/local/bin/serve", "sk-very-secret")
    candidate = manager.render(base, trial="c", installation="t", argv=base.argv, env={}, stop_timeout_s=2)
    await manager.install(candidate)
    # The candidate's own file is closed too, and judged all the same.
    found = by_name(await manager.examine(candidate))
    assert not failures(list(found.values()))
    assert "Foo" in found["unit.analyze"].evidence
    assert not [path for path in host.snapshot("/tmp") if "specd" in path]


async def test_a_refused_write_leaves_nothing(make_host: HostFactory) -> None:
    host = make_host(HostOptions(operator_sudoers=SUDOERS.replace("/usr/bin/mv", "/usr/bin/true")))
    host.write_unit("vllm.service", UNIT)
    before = host.snapshot("/run/systemd/system")
    manager = manager_on(host, "operator")
    base = await manager.facts("vllm")
    candidate = manager.render(base, trial="x", installation="t", argv=base.argv, env={"A": "1"}, stop_timeout_s=2)
    with pytest.raises(PrivilegeRefused):
        await manager.install(candidate)
    assert host.snapshot("/run/systemd/system") == before


async def test_a_whole_trial_in_a_users_own_systemd(make_host: HostFactory) -> None:
    host = make_host(HostOptions(user_instance=True))
    host.put(
        "/home/operator/.config/systemd/user/vllm.service", UNIT.replace("multi-user", "default"), owner="operator"
    )
    uid = host.exec(["id", "-u", "operator"]).stdout.strip()
    await until(lambda: asyncio.to_thread(host.exists, f"/run/user/{uid}/bus"), what="the user's systemd")
    manager = manager_on(host, "operator", scope="user")
    user = [
        "setpriv",
        "--reuid=operator",
        "--regid=operator",
        "--init-groups",
        "env",
        f"XDG_RUNTIME_DIR=/run/user/{uid}",
    ]
    host.exec([*user, "systemctl", "--user", "daemon-reload"])
    host.exec([*user, "systemctl", "--user", "enable", "--now", "vllm"])
    checks = by_name(await manager.preflight("vllm"))
    assert not failures(list(checks.values()))
    assert "lingering" in checks["systemd.scope"].evidence
    await whole_trial(manager, "vllm.service")
    host.exec(["rm", "/var/lib/systemd/linger/operator"])
    assert "enable-linger" in by_name(await manager.preflight("vllm"))["systemd.scope"].fix
    assert host.snapshot(f"/run/user/{uid}/systemd/user") == {}


async def test_a_user_without_its_own_systemd_is_told_so(testhost: TestHost) -> None:
    manager = manager_on(testhost, "operator", scope="user")
    (failed,) = failures(await manager.preflight("vllm"))
    assert failed.name == "systemd.scope"
    assert "enable-linger" in failed.fix
