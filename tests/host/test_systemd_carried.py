"""Whatever an operator's unit says, under a real systemd: carried over into the candidate, or named."""

import asyncio
from collections.abc import Iterator

import pytest

from specd.checks import Check, CheckStatus, failures
from specd.errors import UnitError
from specd.services.service import UnitFacts
from specd.services.systemd import SystemdManager
from tests.conftest import HostFactory
from tests.host.systemd_rig import closed_hosts, manager_on, until  # noqa: F401
from tests.host.unit_cases import Given, ended, given_to, put_all, started
from tests.host.unit_texts import EVERYTHING, NAMED_BY_INSTANCE
from tests.testhost import HostOptions, TestHost

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("closed_hosts")]

UNITS = "/etc/systemd/system"
STAND = "/bin/sh -c 'kill -STOP $$$$' standing"
OF_A_START = {"INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE"}


@pytest.fixture
def host(testhost: TestHost) -> Iterator[TestHost]:
    """The shared host, cleared of this module's units afterwards."""
    yield testhost
    listed = testhost.exec(
        ["sh", "-c", "ls -d /etc/systemd/system/big* /run/systemd/system/specd-* /etc/big*; :"], check=False
    )
    ended(testhost, ["big*", "specd-*"], [*listed.stdout.split(), f"{UNITS}/service.d", f"{UNITS}/big-.service.d"])


async def tried(host: TestHost, manager: SystemdManager, base: UnitFacts) -> tuple[Given, dict[str, Check]]:
    """Run a candidate with one more word and one more variable; return what it got and what was examined."""
    candidate = manager.render(
        base, trial="big", installation="i", argv=(*base.argv, "one more"), env={"MORE": "$1 %n"}, stop_timeout_s=9
    )
    await manager.install(candidate)
    found = {check.name: check for check in await manager.examine(candidate)}
    given = started(host, [candidate.name])
    host.systemctl("kill", "--signal=KILL", candidate.name, check=False)
    host.systemctl("stop", candidate.name, check=False)
    await manager.uninstall(candidate.name)
    return given[candidate.name], found


async def same_plus_the_change(host: TestHost, unit: str, manager: SystemdManager | None = None) -> dict[str, Check]:
    """Start a unit and its candidate and compare their processes."""
    manager = manager or manager_on(host)
    base = await manager.facts(unit)
    before = started(host, [base.name])[base.name]
    assert before.words == list(base.argv)
    host.systemctl("kill", "--signal=KILL", base.name)
    after, found = await tried(host, manager, base)
    assert [word.replace("specd-big.service", base.name) for word in after.words] == [*before.words, "one more"]
    was, now = (
        {name: value for name, value in given.environment.items() if name not in OF_A_START}
        for given in (before, after)
    )
    assert now.pop("MORE") == "$1 %n"
    assert {name: value.replace("specd-big.service", base.name) for name, value in now.items()} == was
    assert not failures(list(found.values()))
    return found


async def test_every_directive_is_carried_over_or_named(host: TestHost) -> None:
    served = "[Service]\nExecStart=/bin/sleep 1000\n"
    put_all(host, {f"{UNITS}/{name}.service": served for name in ("big-lm", "big-nginx", "big-other")})
    put_all(host, {f"{UNITS}/big-stack.target": "[Unit]\nDescription=all of it\n", f"{UNITS}/big.service": EVERYTHING})
    host.exec(["mkdir", "-p", "/data"])
    host.systemctl("daemon-reload")
    manager = manager_on(host)
    base = await manager.facts("big")
    before = started(host, ["big.service"])["big.service"]
    named = next(check for check in await manager.preflight("big") if check.name == "unit.directives")
    host.systemctl("kill", "--signal=KILL", "big")
    host.systemctl("stop", "big", check=False)
    after, found = await tried(host, manager, base)
    assert found["unit.settings"].status is CheckStatus.PASSED, found["unit.settings"].evidence
    assert int(found["unit.settings"].evidence.split()[0]) > 110
    assert "not told" not in found["unit.settings"].evidence
    assert not failures(list(found.values()))
    assert after.words == [*before.words, "one more"]
    # What it does not take over is said, by name.
    for name in ("OnFailure", "RuntimeMaxSec", "PIDFile", "Restart", "KillMode", "StandardOutput", "JobTimeoutSec"):
        assert f"{name}" in named.evidence
    gone = {"PIDFILE", "WATCHDOG_USEC", "WATCHDOG_PID", "NOTIFY_SOCKET", "FDSTORE", "MORE", *OF_A_START}
    assert {name: value for name, value in before.environment.items() if name not in gone} == {
        name: value.replace("specd-big.service", "big.service")
        for name, value in after.environment.items()
        if name not in gone
    }


async def test_a_setting_that_does_not_arrive_is_found(host: TestHost) -> None:
    put_all(
        host,
        {
            f"{UNITS}/service.d/10-all.conf": "[Service]\nNice=5\n",
            f"{UNITS}/big.service": f"[Service]\nType=exec\nExecStart={STAND}\nOOMScoreAdjust=7\n",
            # It counts after the one for all services, which a candidate's own file can't have.
            f"{UNITS}/big.service.d/20-own.conf": "[Service]\nNice=10\n",
        },
    )
    host.systemctl("daemon-reload")
    manager = manager_on(host)
    _, found = await tried(host, manager, await manager.facts("big"))
    assert [check.name for check in failures(list(found.values()))] == ["unit.settings"]
    assert found["unit.settings"].evidence.startswith("Nice: systemd reads another value")
    assert "10-all.conf" in found["unit.settings"].fix


AS_WRITTEN = {
    "prefixes and specifiers": {"big.service": """\
[Service]
Type=exec
Environment="A=1 2" B='x "y"'
ExecStart=
ExecStart=-@/bin/sh my-name -c 'kill -STOP $$$$' standing $A ${B} %n %H \\
   # between
   --json='{"a": "$$5 50%%"}' mid"dle "$A \\
 ; and another
   last\\x20word
"""},
    "credentials": {
        "big.service": f"""\
[Service]
Type=exec
LoadCredential=key:/etc/hostname
Environment=CERT=%d/cert
ExecStart={STAND} --key ${{CREDENTIALS_DIRECTORY}}/key --same %d/key
"""
    },
    "directories of a dynamic user": {
        "big.service": f"""\
[Service]
Type=exec
DynamicUser=yes
StateDirectory=big big-more
RuntimeDirectory=big
ExecStart={STAND} $USER ${{STATE_DIRECTORY}} ${{RUNTIME_DIRECTORY}} ${{HOME}}.
"""
    },
    "drop-ins of a prefix, of a template and of an instance": {
        "big-a@.service": f"[Service]\nType=exec\nEnvironment=W=t\nExecStart={STAND} old %i\n",
        "big-.service.d/10-prefix.conf": "[Service]\nEnvironment=P=%p W=prefix\n",
        "big-a@.service.d/20-template.conf": f"[Service]\nExecStart=\nExecStart={STAND} new %i $W\n",
        "big-a@x-y.service.d/30-instance.conf": "[Service]\nEnvironment=I=%I UNSET=1\nUnsetEnvironment=UNSET 'X=1 2'\n",
    },
    "login environment": {
        "big.service": f"[Service]\nType=exec\nSetLoginEnvironment=yes\nExecStart={STAND} ${{HOME}} ${{USER}}\n"
    },
    "search path": {
        "big.service": "[Service]\nType=exec\nExecSearchPath=/usr/bin:/bin\n"
        "ExecStart=sh -c 'kill -STOP $$$$' standing ${PATH}\n",
    },
}  # fmt: skip


async def test_an_instance_whose_name_has_escapes_keeps_it_everywhere(host: TestHost) -> None:
    put_all(host, {f"{UNITS}/big@.service": NAMED_BY_INSTANCE})
    host.systemctl("daemon-reload")
    found = await same_plus_the_change(host, "big@Qwen\\x2d3-a\\x20b\\x22c.service")
    assert found["unit.settings"].evidence.startswith("2")


@pytest.mark.parametrize("case", AS_WRITTEN)
async def test_a_candidate_is_given_what_the_baseline_is_given(host: TestHost, case: str) -> None:
    files = AS_WRITTEN[case]
    put_all(host, {f"{UNITS}/{name}": text for name, text in files.items()})
    host.systemctl("daemon-reload")
    await same_plus_the_change(host, next(iter(files)).replace("@.", "@x-y."))


async def test_a_users_own_unit_is_read_as_its_systemd_runs_it(make_host: HostFactory) -> None:
    host = make_host(HostOptions(user_instance=True))
    text = f"""\
[Service]
Type=exec
PassEnvironment=HOME
RuntimeDirectory=big
StateDirectory=big
CacheDirectory=big
LogsDirectory=big/%p
ConfigurationDirectory=big
ExecStart={STAND} ${{RUNTIME_DIRECTORY}} ${{STATE_DIRECTORY}} ${{CACHE_DIRECTORY}} ${{LOGS_DIRECTORY}} \\
  ${{CONFIGURATION_DIRECTORY}} ${{HOME}} $USER ${{XDG_RUNTIME_DIR}} %t %S %h
"""
    host.put("/home/operator/.config/systemd/user/big.service", text, owner="operator")
    uid = host.exec(["id", "-u", "operator"]).stdout.strip()
    await until(lambda: asyncio.to_thread(host.exists, f"/run/user/{uid}/bus"), what="the user's systemd")
    manager = manager_on(host, "operator", scope="user")

    async def run(unit: str) -> Given:
        async def is_there() -> bool:
            return (await manager.status(unit)).sub == "running"

        await manager.start(unit)
        await until(is_there, what=unit)
        given = given_to(host, (await manager.status(unit)).main_pid)
        await manager.kill(unit)
        return given

    await manager.preflight("big")
    base = await manager.facts("big", as_loaded=True)
    before = await run("big.service")
    assert before.words == list(base.argv)
    assert before.words[4:6] == [f"/run/user/{uid}/big", base.argv[5]]
    candidate = manager.render(base, trial="big", installation="i", argv=base.argv, env={"NEW": "1"}, stop_timeout_s=1)
    await manager.install(candidate)
    assert not failures(await manager.examine(candidate))
    after = await run(candidate.name)
    assert after.words == before.words
    assert {name: value for name, value in after.environment.items() if name not in {*OF_A_START, "NEW"}} == {
        name: value for name, value in before.environment.items() if name not in OF_A_START
    }


async def test_units_that_a_generator_or_a_link_brings(host: TestHost) -> None:
    text = f"[Service]\nType=exec\nEnvironment=WHERE=%y\nExecStart={STAND} %N\n"
    script = '#!/bin/sh\nprintf \'%s\' "$(cat /etc/big-text)" >"$1/big-made.service"\n'
    put_all(host, {"/etc/big-text": text, "/opt/big-linked.service": text})
    host.put("/etc/systemd/system-generators/big-generator", script, mode=0o755)
    host.exec(["ln", "-s", "/opt/big-linked.service", f"{UNITS}/big-linked.service"])
    host.exec(["ln", "-s", f"{UNITS}/big-linked.service", f"{UNITS}/big-alias.service"])
    host.systemctl("daemon-reload")
    try:
        await same_plus_the_change(host, "big-made")
        await same_plus_the_change(host, "big-linked")
        assert (await manager_on(host).facts("big-alias")).name == "big-linked.service"
    finally:
        host.exec(["rm", "-r", "/etc/systemd/system-generators", "/opt/big-linked.service"])


async def test_what_only_a_start_can_tell_is_refused(host: TestHost) -> None:
    text = "[Service]\nPassEnvironment=container\nExecStart={} --log ${{INVOCATION_ID}}\n"
    put_all(host, {f"{UNITS}/big.service": text.format(STAND)})
    host.systemctl("daemon-reload")
    with pytest.raises(UnitError, match=r"\$INVOCATION_ID"):
        await manager_on(host).facts("big")
    put_all(host, {f"{UNITS}/big.service": text.replace("INVOCATION_ID", "container").format(STAND)})
    host.systemctl("daemon-reload")
    # It comes from the environment of PID 1, which root alone can read.
    assert (await manager_on(host).facts("big")).argv[-2] == "--log"
    with pytest.raises(UnitError, match=r"\$container"):
        await manager_on(host, "operator").facts("big")


async def test_what_would_start_the_baseline_again_is_found(host: TestHost) -> None:
    put_all(
        host,
        {
            f"{UNITS}/big.service": f"[Service]\nExecStart={STAND}\n",
            f"{UNITS}/big-keeper.service": "[Unit]\nUpholds=big.service\n[Service]\nExecStart=/bin/sleep 1000\n",
            f"{UNITS}/big.timer": "[Timer]\nOnActiveSec=1h\n",
        },
    )
    host.systemctl("daemon-reload")
    host.systemctl("start", "big.service", "big.timer")
    manager = manager_on(host)

    async def found() -> Check:
        return next(check for check in await manager.preflight("big") if check.name == "unit.stays-stopped")

    assert (await found()).status is CheckStatus.WARNING
    assert "big.timer may start big.service" in (await found()).evidence
    host.systemctl("start", "big-keeper.service")
    assert (await found()).status is CheckStatus.FAILED
    assert "big-keeper.service upholds" in (await found()).evidence
    host.systemctl("stop", "big-keeper.service", "big.timer")
    assert (await found()).status is CheckStatus.PASSED


async def test_the_units_that_stop_with_the_baseline_are_known(host: TestHost) -> None:
    unit = "big-middle.service"
    put_all(host, {f"{UNITS}/{unit}": f"[Service]\nExecStart={STAND}\n"})
    ties = {
        "requires": f"Requires={unit}",
        "binds": f"BindsTo={unit}\nAfter={unit} big-idle.service",
        "part": f"PartOf={unit}",
        "wants": f"Wants={unit}",
        "idle": f"PartOf={unit}",
        "told": f"StopPropagatedFrom={unit}",
        "far": "Requires=big-binds.service",
        "circle": "PartOf=big-far.service",
    }
    files = {name: f"[Unit]\n{tie}\n[Service]\nExecStart=/bin/sleep 1000\n" for name, tie in ties.items()}
    files["far"] = files["far"].replace("[Service]", "PartOf=big-circle.service\n[Service]")
    put_all(host, {f"{UNITS}/big-{name}.service": text for name, text in files.items()})
    host.systemctl("daemon-reload")
    started = [f"big-{name}.service" for name in ties if name != "idle"]
    host.systemctl("start", unit, *started)
    manager = manager_on(host)
    found = await manager.dependents(unit)
    assert {(item.unit.removeprefix("big-").removesuffix(".service"), item.relation) for item in found} == {
        ("requires", "RequiredBy"),
        ("binds", "BoundBy"),
        ("part", "ConsistsOf"),
        ("idle", "ConsistsOf"),
        ("told", "PropagatesStopTo"),
        ("far", "RequiredBy"),
        ("circle", "ConsistsOf"),
    }
    assert [item.unit for item in found][-2:] == ["big-far.service", "big-circle.service"]
    # systemd's own answer: exactly the active ones are gone after a stop.
    host.systemctl("stop", unit)
    stopped = {name for name in started if (await manager.status(name)).is_down}
    assert stopped == {item.unit for item in found if item.is_active}
    with pytest.raises(UnitError, match="not-found"):
        await manager.dependents("big-nothing")
