"""Units as people write them, under a real systemd: read, carried over into a candidate, proven and started."""

import dataclasses
from collections.abc import Iterator

import pytest

from specd.checks import CheckStatus, failures
from specd.errors import FileProblem, UnitError
from specd.services.service import Candidate, UnitFacts
from tests.host.systemd_rig import DUMP, closed_hosts, dumped, manager_on, put_dump  # noqa: F401
from tests.testhost import TestHost

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("closed_hosts")]

ARGV = (
    "--speculative-config",
    '{"method": "ngram", "num_speculative_tokens": 5}',
    "50%of",
    "$HOME",
    "it's",
    "",
    ";",
    "\\d+\n",
)
ENV = {"ADDED": 'a "b" $c `d` \\e\nf', "OVERRIDDEN": "by the trial", "GONE": None}

UNITS = {
    "lines": {
        "unit": f"""\
[Service]
Environment="OVERRIDDEN=first" GONE=1
ExecStart={DUMP} serve /models/big \\
    # a comment in the middle
    --max-model-len 4096 \\
  ; another one
    --enable-prefix-caching

Restart=always
"""
    },
    "quotes": {
        "unit": f"""\
[Service]
ExecStart={DUMP} '{{"a": "b\\\\"c"}}' "x \\"y\\" z" --json='{{"k": [1, 2]}}' mid'dle wo'rd \\x41\\t "it's" 100%% $$5
"""
    },
    "variables": {
        "unit": f"""\
[Service]
Environment=PORT=1 OVERRIDDEN=first
EnvironmentFile=/etc/case-variables.env
EnvironmentFile=-/etc/case-not-there.env
ExecStart={DUMP} serve ${{MODEL}} --port ${{PORT}} $SERVE_ARGS --name x${{MODEL}}y $NOTHING
""",
        "/etc/case-variables.env": """\
# the real flags live here
MODEL="/models/a b"
PORT=8000
SERVE_ARGS=--max-num-seqs 8 --override '{"a": 1}' --x="y z"
export NOT_TAKEN=1
OVERRIDDEN=from the file
GONE=here # no comment
""",
    },
    "reset": {
        "unit": f"[Service]\nExecStart={DUMP} old\nEnvironment=OLD=1\n",
        "case-reset.service.d/10-first.conf": f"[Service]\nEnvironment=\nExecStart=\nExecStart={DUMP} new --flag\n",
        "case-reset.service.d/20-second.conf": "[Service]\nEnvironment=OVERRIDDEN=x GONE=y\nNice=5\n",
    },
    "user": {
        "unit": f"""\
[Unit]
After=network.target
StartLimitBurst=2
OnFailure=case-alarm.service
[Service]
Type=exec
User=operator
WorkingDirectory=/home/operator
RuntimeDirectory=case
Environment="HERE=%n of %p in %h"
ExecStartPre=/bin/mkdir -p -m 777 /tmp/dump
ExecStart=-{DUMP} --home ${{HOME}} --run ${{RUNTIME_DIRECTORY}} --unit %n %N
TimeoutSec=30
WatchdogSec=5
PIDFile=/run/case.pid
[Install]
WantedBy=multi-user.target
"""
    },
    "name": {"unit": f"[Service]\nExecStart=@{DUMP} its-name a b\n"},
    "literal": {"unit": f"[Service]\nEnvironment=A=1\nExecStart=:{DUMP} $A ${{A}} $$A %%n\n"},
    "plain": {
        "unit": "[Service]\nEnvironment=PATH=/usr/bin:/bin\nExecStartPre=-/bin/false\nExecStart=dump module.form\n"
    },
}


@pytest.fixture
def host(testhost: TestHost) -> Iterator[TestHost]:
    """The shared host with the dump program, cleared of this module's units afterwards."""
    put_dump(testhost)
    yield testhost
    testhost.exec(["sh", "-c", 'systemctl kill --signal=KILL "case*" "specd-*"; rm -rf /tmp/dump; :'])
    testhost.exec(
        [
            "sh",
            "-c",
            "rm -rf /etc/systemd/system/case* /etc/systemd/system/service.d /etc/case-* /run/systemd/system/specd-*",
        ]
    )
    testhost.systemctl("daemon-reload")
    testhost.systemctl("reset-failed", check=False)


def put_case(host: TestHost, case: str, files: dict[str, str]) -> str:
    unit = f"case-{case}.service"
    for name, text in files.items():
        host.put(name if name.startswith("/") else f"/etc/systemd/system/{unit if name == 'unit' else name}", text)
    host.systemctl("daemon-reload")
    return unit


def render(host: TestHost, base: UnitFacts, trial: str, **changes: object) -> Candidate:
    given = {"argv": (*base.argv, *ARGV), "env": ENV, "stop_timeout_s": 2.0} | changes
    return manager_on(host).render(base, trial=trial, installation="test", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", UNITS)
async def test_a_candidate_runs_what_the_baseline_runs_plus_the_change(host: TestHost, case: str) -> None:
    unit = put_case(host, case, UNITS[case])
    before = host.snapshot("/etc/systemd/system")
    host.systemctl("start", unit)
    manager = manager_on(host)
    base = await manager.facts(unit)
    words, environment = await dumped(host, unit)
    assert words[1:] == list(base.argv[1:])
    assert {name: environment.get(name) for name in base.environment} == dict(base.environment)
    assert "argv_mismatch" not in base.extra

    candidate = render(host, base, f"case-{case}")
    await manager.install(candidate)
    assert not failures(await manager.examine(candidate))
    host.systemctl("stop", unit)
    await manager.start(candidate.name)
    words, started = await dumped(host, candidate.name)
    assert words[1:] == [*base.argv[1:], *ARGV]
    assert {name: started.get(name) for name in candidate.environment} == dict(candidate.environment)
    assert "GONE" not in started
    apart = {"INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", *ENV}
    # What a watchdog and a PID file bring does not come along: the candidate has neither.
    apart |= {"WATCHDOG_PID", "WATCHDOG_USEC", "NOTIFY_SOCKET", "PIDFILE", "MEMORY_PRESSURE_WATCH"}
    assert {k: v for k, v in started.items() if k not in apart} == {
        k: v for k, v in environment.items() if k not in apart
    }

    host.systemctl("stop", candidate.name)
    await manager.uninstall(candidate.name)
    assert await manager.own_units() == []
    assert host.snapshot("/etc/systemd/system") == before
    assert not [path for path in host.snapshot("/run/systemd/system") if "specd" in path]


async def test_an_instance_of_a_template_keeps_the_meaning_of_its_name(host: TestHost) -> None:
    host.put(
        "/etc/systemd/system/case@.service",
        "[Unit]\nDescription=server %i\n[Service]\nEnvironment=WHO=%i ALL=%n\n"
        f"ExecStartPre=/bin/sh -c 'echo \"pre $$0 $$1\" >/tmp/dump-pre' %i %p\n"
        f"ExecStart={DUMP} --model %i --prefix %p --path %I\n",
    )
    host.put("/etc/systemd/system/case@big-one.service.d/more.conf", "[Service]\nEnvironment=MORE=%j\n")
    host.systemctl("daemon-reload")
    manager = manager_on(host)
    base = await manager.facts("case@big-one")
    assert base.name == "case@big-one.service"
    assert base.argv == (DUMP, "--model", "big-one", "--prefix", "case", "--path", "big/one")
    candidate = render(host, base, "instance")
    await manager.install(candidate)
    assert not failures(await manager.examine(candidate))
    await manager.start(candidate.name)
    words, started = await dumped(host, candidate.name)
    assert words == list(candidate.argv)
    assert (started["WHO"], started["ALL"], started["MORE"]) == ("big-one", "case@big-one.service", "case")
    assert host.get("/tmp/dump-pre") == b"pre big-one case\n"


async def test_output_that_does_not_go_to_the_journal_is_named_and_the_candidates_does(host: TestHost) -> None:
    unit = put_case(host, "logged", {"unit": f"[Service]\nStandardOutput=append:/tmp/dump.log\nExecStart={DUMP}\n"})
    manager = manager_on(host)
    base = await manager.facts(unit)
    assert base.extra["log_target"] == "append:/tmp/dump.log"
    candidate = render(host, base, "logged", argv=("/bin/echo", "to the journal"))
    await manager.install(candidate)
    assert (await manager.facts(candidate.name)).extra["log_target"] == "journal"


async def test_an_alias_is_read_as_the_unit_it_names(host: TestHost) -> None:
    unit = put_case(host, "aliased", {"unit": f"[Service]\nExecStart={DUMP} x\n"})
    host.exec(["ln", "-s", f"/etc/systemd/system/{unit}", "/etc/systemd/system/case-other.service"])
    host.systemctl("daemon-reload")
    assert (await manager_on(host).facts("case-other")).name == unit


async def test_drop_ins_for_all_services_are_not_applied_twice(host: TestHost) -> None:
    host.put(
        "/etc/systemd/system/service.d/50-all.conf", "[Service]\nExecStartPre=/bin/sh -c 'echo once >>/tmp/case-pre'\n"
    )
    unit = put_case(host, "global", {"unit": f"[Service]\nExecStart={DUMP} x\n"})
    manager = manager_on(host)
    candidate = render(host, await manager.facts(unit), "global")
    await manager.install(candidate)
    assert not failures(await manager.examine(candidate))
    await manager.start(candidate.name)
    await dumped(host, candidate.name)
    assert host.get("/tmp/case-pre") == b"once\n"


async def test_a_drop_in_for_all_services_that_restarts_them_is_found(host: TestHost) -> None:
    unit = put_case(host, "restarting", {"unit": f"[Service]\nExecStart={DUMP} x\n"})
    host.put("/etc/systemd/system/service.d/50-all.conf", "[Service]\nRestart=always\n")
    host.systemctl("daemon-reload")
    manager = manager_on(host)
    candidate = render(host, await manager.facts(unit), "restarting")
    await manager.install(candidate)
    assert [check.name for check in failures(await manager.examine(candidate))] == ["unit.restart"]


async def test_secrets_from_a_closed_file_do_not_go_into_an_open_one(host: TestHost) -> None:
    unit = put_case(
        host,
        "secret",
        {"unit": f"[Service]\nEnvironmentFile=/etc/case-secret.env\nExecStart={DUMP} --api-key ${{KEY}}\n"},
    )
    host.put("/etc/case-secret.env", "KEY=sk-very-secret\n", mode=0o600)
    manager = manager_on(host)
    candidate = render(host, await manager.facts(unit), "secret")
    await manager.install(candidate)
    modes = {path: entry.split()[0] for path, entry in host.snapshot("/run/systemd/system").items() if "specd" in path}
    assert modes == {"specd-secret.service": "600", "specd-secret.env": "600"}
    spoilt = dataclasses.replace(candidate, argv=(*candidate.argv[:2], "sk-other-secret", *candidate.argv[3:]))
    (failed,) = failures(await manager.examine(spoilt))
    assert failed.name == "unit.argv"
    assert "word 2" in failed.evidence
    assert "secret" not in failed.evidence


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[Service]\nType=oneshot\nExecStart=/bin/true\nExecStart=/bin/true\n", "2 commands"),
        ("[Service]\nExecStart=/bin/true a\nExecStart=/bin/true b\n", "more than one ExecStart"),
        ("[Service]\nExecStart=/bin/true %Z\n", "refuses its file"),
        ("[Service]\nEnvironmentFile=/etc/case-nothing.env\nExecStart=/bin/true\n", "case-nothing.env is missing"),
    ],
)
async def test_what_can_not_be_tried_is_refused_with_its_reason(host: TestHost, text: str, words: str) -> None:
    unit = put_case(host, "refused", {"unit": text})
    with pytest.raises(UnitError, match=words):
        await manager_on(host).facts(unit)


async def test_units_that_are_none_are_refused(host: TestHost) -> None:
    manager = manager_on(host)
    for name, words in {
        "case-nothing.service": "no such unit",
        "basic.target": "not a service",
        "case@.service": "template",
        "--help": "not the name",
        "a b.service": "not the name",
    }.items():
        with pytest.raises(UnitError, match=words):
            await manager.facts(name)
    host.exec(["ln", "-s", "/dev/null", "/etc/systemd/system/case-masked.service"])
    host.systemctl("daemon-reload")
    with pytest.raises(UnitError, match="masked"):
        await manager.facts("case-masked")


async def test_files_that_systemd_has_not_read_are_noticed(host: TestHost) -> None:
    unit = put_case(host, "stale", {"unit": f"[Service]\nExecStart={DUMP} x\n"})
    host.systemctl("start", unit)
    manager = manager_on(host)
    await manager.facts(unit)
    # An older systemd does not notice the very first drop-in of a unit that it holds loaded.
    host.put(f"/etc/systemd/system/{unit}.d/first.conf", "[Service]\nEnvironment=A=1\n")
    with pytest.raises(UnitError, match=r"first\.conf is a drop-in that systemd has not read|have changed since"):
        await manager.facts(unit)
    host.systemctl("daemon-reload")
    assert (await manager.facts(unit)).environment == {"A": "1"}
    host.put(f"/etc/systemd/system/{unit}", f"[Service]\nExecStart={DUMP} y\n")
    with pytest.raises(UnitError, match="have changed since systemd read them"):
        await manager.facts(unit)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"[Service]\nType=forking\nExecStart={DUMP}\n", "Type=forking"),
        (f"[Service]\nType=oneshot\nExecStart={DUMP}\n", "Type=oneshot"),
        (f"[Service]\nExecStart={DUMP}\nSockets=case-a.socket\n", "socket"),
    ],
)
async def test_types_that_can_not_be_rendered_are_refused(host: TestHost, text: str, words: str) -> None:
    unit = put_case(host, "kind", {"unit": text})
    base = await manager_on(host).facts(unit)
    with pytest.raises(UnitError, match=words):
        render(host, base, "kind")


async def test_a_transient_unit_can_be_read_and_is_not_tried(host: TestHost) -> None:
    host.exec(["systemd-run", "--unit=case-transient", "/bin/sleep", "1000"])
    base = await manager_on(host).facts("case-transient")
    assert base.argv == ("/bin/sleep", "1000")
    with pytest.raises(UnitError, match="transient"):
        render(host, base, "transient")


async def test_a_unit_of_somebody_else_is_neither_overwritten_nor_removed(host: TestHost) -> None:
    unit = put_case(host, "mine", {"unit": f"[Service]\nExecStart={DUMP}\n"})
    manager = manager_on(host)
    candidate = render(host, await manager.facts(unit), "theirs")
    host.put(candidate.path, "[Service]\nExecStart=/bin/true\n")
    before = host.snapshot("/run/systemd/system")
    with pytest.raises(UnitError, match="not this trial's"):
        await manager.install(candidate)
    with pytest.raises(UnitError, match="does not carry specd's mark"):
        await manager.uninstall(candidate.name)
    host.exec(["rm", candidate.path])
    host.put(f"/etc/systemd/system/{candidate.name}", "[Service]\nExecStart=/bin/true\n")
    host.systemctl("daemon-reload")
    with pytest.raises(UnitError, match="unit of this name"):
        await manager.install(candidate)
    host.exec(["rm", f"/etc/systemd/system/{candidate.name}"])
    assert {path for path in before if path != candidate.name} == set(host.snapshot("/run/systemd/system"))


async def test_a_directory_that_takes_nothing_leaves_nothing(fresh_host: TestHost) -> None:
    put_dump(fresh_host)
    unit = put_case(fresh_host, "full", {"unit": f"[Service]\nExecStart={DUMP}\n"})
    manager = manager_on(fresh_host)
    candidate = render(fresh_host, await manager.facts(unit), "full")
    before = fresh_host.snapshot("/run/systemd/system")
    fresh_host.make_readonly("/run/systemd/system")
    with pytest.raises(FileProblem):
        await manager.install(candidate)
    fresh_host.make_writable("/run/systemd/system")
    assert fresh_host.snapshot("/run/systemd/system") == before


async def test_examine_names_what_is_wrong(host: TestHost) -> None:
    unit = put_case(
        host, "wrong", {"unit": f"[Service]\nUser=nosuchuser\nWorkingDirectory=/not/there\nExecStart={DUMP} a\n"}
    )
    manager = manager_on(host)
    base = await manager.facts(unit)
    candidate = render(host, base, "wrong", argv=("/not/there/vllm", "serve"))
    await manager.install(candidate)
    found = {check.name: check for check in await manager.examine(candidate)}
    failed = {name for name, check in found.items() if check.status is CheckStatus.FAILED}
    assert failed == {"unit.analyze", "unit.executable", "unit.user", "unit.working-directory"}
    assert "/not/there/vllm does not exist" in found["unit.executable"].evidence

    host.put(f"/etc/systemd/system/{candidate.name}.d/theirs.conf", f"[Service]\nExecStart=\nExecStart={DUMP} other\n")
    host.put("/usr/local/bin/case-script", "#!/not/there/python\n", mode=0o755)
    host.put(candidate.path, candidate.content + b"Foo=bar\n")
    host.systemctl("daemon-reload")
    found = {check.name: check for check in await manager.examine(candidate)}
    assert found["unit.bytes"].status is CheckStatus.FAILED
    assert "theirs.conf" in found["unit.reload"].evidence
    assert "word 0: intended '/not/there/vllm', systemd would give" in found["unit.argv"].evidence
    host.exec(["rm", "-r", f"/etc/systemd/system/{candidate.name}.d"])

    candidate = render(host, base, "wrong", argv=("/usr/local/bin/case-script",))
    await manager.install(candidate)
    found = {check.name: check for check in await manager.examine(candidate)}
    assert "interpreter /not/there/python" in found["unit.executable"].evidence


async def test_a_diagnostic_the_baseline_has_too_is_a_warning(host: TestHost) -> None:
    unit = put_case(host, "odd", {"unit": f"[Service]\nFooBar=1\nExecStart={DUMP}\n"})
    manager = manager_on(host)
    candidate = render(host, await manager.facts(unit), "odd")
    await manager.install(candidate)
    analyzed = next(check for check in await manager.examine(candidate) if check.name == "unit.analyze")
    assert analyzed.status is CheckStatus.WARNING
    assert "FooBar" in analyzed.evidence
