"""Unit files taken apart and candidates put together."""

import dataclasses
from collections.abc import Mapping

import pytest

from specd.errors import UnitError
from specd.services.service import Candidate, UnitFacts
from specd.services.systemd.render import render_candidate
from specd.services.systemd.unitfile import Assignment, join_text, marks_of, parse_parts, parse_unit

UNIT = """\
[Unit]
Description=production
After=network.target other.service
Requires=lmcache.service
Conflicts=base.service vllm-b.service
OnFailure=alarm.service
StartLimitBurst=3
StartLimitAction=reboot
JobTimeoutSec=60
StopWhenUnneeded=yes
RefuseManualStart=yes

[Service]
Environment=A=1 NAME=%n
UnsetEnvironment=GONE KEPT
ExecStartPre=-/usr/bin/docker rm %N $A
ExecStart=/opt/vllm serve
ExecStop=/usr/bin/docker stop vllm
Restart=always
RestartSec=10
TimeoutSec=90
KillMode=process
WatchdogSec=30
RuntimeMaxSec=1d
StandardOutput=append:/var/log/vllm.log
LimitMEMLOCK=infinity
RuntimeDirectory=vllm
[Install]
WantedBy=multi-user.target
Alias=llm.service
[X-Other]
Key=1
"""
DROP_IN = "[Service]\nEnvironment=\nEnvironment=B=2\nLimitMEMLOCK=1G\n"


def facts(text: str = UNIT, **extra: str) -> UnitFacts:
    files = {"/etc/systemd/system/base.service": text, "/etc/systemd/system/base.service.d/a.conf": DROP_IN}
    return UnitFacts(
        name="base.service",
        argv=("/opt/vllm", "serve"),
        environment={"B": "2"},
        user="",
        working_directory="",
        enabled="enabled",
        files={},
        text=join_text(files),
        fragment_path="/etc/systemd/system/base.service",
        drop_in_paths=("/etc/systemd/system/base.service.d/a.conf",),
        extra={
            "Type": "simple",
            "exec_path": "/opt/vllm",
            "unit_dir": "/run/systemd/system",
            "UnsetEnvironment": "GONE\nKEPT\nX=a b",
        }
        | extra,
    )


ARGV = ("/opt/vllm", "serve", "x y")


def render(base: UnitFacts, argv: tuple[str, ...] = ARGV, env: Mapping[str, str | None] | None = None) -> Candidate:
    return render_candidate(
        base, name="specd-t.service", trial="t", installation="i", argv=argv, env=env or {}, stop_timeout_s=15
    )


def values(candidate: Candidate, section: str, key: str) -> list[str]:
    items = parse_unit(candidate.content.decode())
    return [item.value for item in items if (item.section, item.key) == (section, key)]


def test_what_the_baseline_sets_is_carried_over_in_order() -> None:
    candidate = render(facts())
    assert values(candidate, "Service", "Environment") == ["A=1 NAME=base.service", "", "B=2"]
    assert values(candidate, "Service", "LimitMEMLOCK") == ["infinity", "1G"]
    assert values(candidate, "Service", "ExecStartPre") == ["-/usr/bin/docker rm base $A"]
    assert values(candidate, "Service", "ExecStop") == ["/usr/bin/docker stop vllm"]
    assert values(candidate, "Unit", "After") == ["network.target other.service"]
    assert values(candidate, "Unit", "Requires") == ["lmcache.service"]
    assert values(candidate, "Unit", "Conflicts") == ["vllm-b.service"]


def test_the_candidate_has_rules_of_its_own() -> None:
    candidate = render(facts())
    assert values(candidate, "Service", "ExecStart") == ['/opt/vllm      serve      "x y"']
    expected = {
        "Restart": "no",
        "TimeoutStartSec": "infinity",
        "TimeoutStopSec": "15.000s",
        "KillMode": "mixed",
        "SendSIGKILL": "yes",
        "FinalKillSignal": "SIGKILL",
        "StandardOutput": "journal",
        "StandardError": "journal",
    }
    assert {key: values(candidate, "Service", key) for key in expected} == {k: [v] for k, v in expected.items()}
    assert values(candidate, "Unit", "StartLimitIntervalSec") == ["0"]
    text = candidate.content.decode()
    for gone in (
        "OnFailure",
        "StartLimitAction",
        "JobTimeout",
        "StopWhenUnneeded",
        "RefuseManual",
        "RestartSec",
        "TimeoutSec",
    ):
        assert f"\n{gone}" not in text
    for gone in ("[Install]", "Alias", "WantedBy", "WatchdogSec", "RuntimeMaxSec", "[X-Other]", "vllm.log"):
        assert gone not in text
    assert values(render(facts(Type="notify")), "Service", "WatchdogSec") == ["30"]


def test_the_mark_names_trial_installation_and_baseline() -> None:
    marks = marks_of(render(facts(file_mode="640")).content.decode())
    assert marks == {"Trial": "t", "Installation": "i", "Baseline": "base.service", "Mode": "640"}
    assert marks_of(UNIT) == {}


def test_changes_of_the_environment_go_last_and_into_a_closed_file() -> None:
    candidate = render(facts(), env={"A": "x y", "GONE": "back", "C": None})
    assert candidate.side_files == {"/run/systemd/system/specd-t.env": b'A="x y"\nGONE="back"\n'}
    assert values(candidate, "Service", "EnvironmentFile") == ["/run/systemd/system/specd-t.env"]
    assert values(candidate, "Service", "UnsetEnvironment") == ['KEPT "X=a b" C']
    assert candidate.environment == {"B": "2", "A": "x y", "GONE": "back"}
    assert render(facts()).side_files == {}


def test_the_same_input_gives_the_same_bytes() -> None:
    env = {"A": "1", "B": None}
    assert render(facts(), env=env) == render(facts(), env=env)


def test_prefixes_that_matter_stay() -> None:
    assert values(render(facts(exec_prefix="-:+")), "Service", "ExecStart")[0].startswith('"+/opt/vllm"'.strip('"'))
    assert values(render(facts(exec_prefix="!!")), "Service", "ExecStart")[0].startswith('"!!/opt/vllm"')
    own_name = dataclasses.replace(facts(exec_path="/opt/real"), argv=("name", "serve"))
    assert values(render(own_name, ("name", "x")), "Service", "ExecStart")[0].split() == ["@/opt/real", "name", "x"]
    assert values(render(own_name, ("/other", "x")), "Service", "ExecStart")[0].split() == ["/other", "x"]


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"Type": "forking"}, "forking"),
        ({"Type": "dbus"}, "dbus"),
        ({"Type": "oneshot"}, "oneshot"),
        ({"TriggeredBy": "a.timer base.socket"}, r"base\.socket"),
        ({"Transient": "yes"}, "transient"),
        ({"exec_prefix": "|"}, "prefix"),
    ],
)
def test_units_that_can_not_be_tried_are_refused(extra: dict[str, str], reason: str) -> None:
    with pytest.raises(UnitError, match=reason):
        render(facts(**extra))


def test_variables_that_can_not_be_set_are_refused() -> None:
    for env in ({"A B": "1"}, {"A": "x\0"}, {"A": "x" * 140_000}):
        with pytest.raises(UnitError):
            render(facts(), env=env)


def test_a_dynamic_user_and_a_slice_stay_the_same() -> None:
    candidate = render(dataclasses.replace(facts(DynamicUser="yes", Slice="system-vllm.slice"), user="base"))
    assert values(candidate, "Service", "User") == ["base"]
    assert values(candidate, "Service", "Slice") == ["system-vllm.slice"]
    assert values(render(facts(Slice="system.slice")), "Service", "Slice") == []


def test_credentials_are_the_candidates_own() -> None:
    base = dataclasses.replace(
        facts("[Service]\nEnvironment=CERT=%d/cert\nLoadCredential=key:/etc/key\nExecStart=/opt/vllm\n"),
        environment={"CERT": "/run/credentials/base.service/cert"},
    )
    candidate = render(base, ("/opt/vllm", "--key-file=/run/credentials/base.service/key"))
    assert candidate.argv == ("/opt/vllm", "--key-file=/run/credentials/specd-t.service/key")
    assert candidate.environment == {"CERT": "/run/credentials/specd-t.service/cert"}


def test_dependencies_from_directories_come_along() -> None:
    base = facts(Wants="network-online.target linked.service", Requires="lmcache.service sysinit.target data.mount")
    candidate = render(base)
    assert values(candidate, "Unit", "Wants") == ["linked.service"]
    assert values(candidate, "Unit", "Requires") == ["lmcache.service", "data.mount"]


def test_drop_ins_for_all_services_are_left_to_systemd() -> None:
    base = facts()
    path = "/etc/systemd/system/service.d/x.conf"
    text = base.text + "\n" + join_text({path: "[Service]\nNice=3\n"})
    base = dataclasses.replace(base, text=text, drop_in_paths=(*base.drop_in_paths, path))
    assert values(render(base), "Service", "Nice") == []


def test_lines_are_read_as_systemd_reads_them() -> None:
    text = (
        "\ufeffBefore=any.section\n[Service]\r\n  Key = a \\\n# comment \\\n\t; another\n   b\\\n\nlost\n"
        "Odd=x\\\\\n[Unit]\nNoEquals\n=empty key\nLast=end \\"
    )
    assert parse_unit(text) == [
        Assignment("Service", "Key", "a     b"),
        Assignment("Service", "Odd", "x\\\\"),
        Assignment("Unit", "", "empty key"),
        Assignment("Unit", "Last", "end"),
    ]


def test_a_comment_that_looks_like_a_marker_misleads_nobody() -> None:
    files = {"/a": "[Service]\n# /b\nX=1\n", "/b": "[Unit]\nY=2\n"}
    parts = parse_parts(join_text(files), ["/a", "/b"])
    assert parts == {"/a": [Assignment("Service", "X", "1")], "/b": [Assignment("Unit", "Y", "2")]}
