"""What systemd's tools print, read: journal records, processes, ports, diagnostics, names."""

import json
from typing import Any

import pytest

from specd.checks import CheckStatus
from specd.errors import BadAnswer, UnitError
from specd.services.systemd.bus import Properties, check_unit_name, object_path
from specd.services.systemd.examine import argv_check, diagnostics, environment_check
from specd.services.systemd.facts import argv_matches
from specd.services.systemd.journal import LineJoiner
from specd.services.systemd.processes import parse_processes, parse_ss, unit_of_cgroup


def line(message: Any, **fields: Any) -> bytes:
    record = {"__CURSOR": "c", "__REALTIME_TIMESTAMP": "1796097062103134", "_PID": "7", "MESSAGE": message, **fields}
    return json.dumps(record).encode()


def texts(*lines: bytes) -> list[str]:
    joiner = LineJoiner()
    return [record.text for item in lines for record in joiner.feed(item)]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("plain", "plain"),
        ([98, 105, 110, 32, 255], "bin \ufffd"),
        (None, ""),
        (["one", "two"], "one\ntwo"),
        ([[98, 255], "two", None], "b\ufffd\ntwo\n"),
        ([], ""),
    ],
)
def test_messages_come_in_several_forms(message: Any, text: str) -> None:
    assert texts(line(message)) == [text]


def test_a_record_has_time_writer_and_cursor() -> None:
    (record,) = LineJoiner().feed(line("x"))
    assert (record.at, record.pid, record.cursor, record.from_manager) == (1796097062.103134, 7, "c", False)
    (record,) = LineJoiner().feed(line("x", UNIT="a.service"))
    assert record.from_manager


def test_parts_of_long_lines_are_joined_by_stream() -> None:
    part = {"_LINE_BREAK": "line-max"}
    assert texts(
        line("a1", _STREAM_ID="a", **part),
        line("b1", _STREAM_ID="b", **part),
        line("manager"),
        line("a2", _STREAM_ID="a", **part),
        line("b2", _STREAM_ID="b"),
        line("a3", _STREAM_ID="a", _LINE_BREAK="pid-change"),
        line("a4", _STREAM_ID="a"),
    ) == ["manager", "b1b2", "a1a2a3", "a4"]


def test_parts_of_a_progress_bar_are_shown_at_whole_redraws() -> None:
    part = {"_LINE_BREAK": "line-max", "_STREAM_ID": "a"}
    assert texts(line("\r10%\r20%\r3", **part), line("0%\r40%\r5", **part), line("0%", _STREAM_ID="a")) == [
        "\r10%\r20%",
        "30%\r40%",
        "50%",
    ]


def test_a_line_without_end_is_given_out_in_parts() -> None:
    joiner = LineJoiner()
    part = line("x" * 49152, _LINE_BREAK="line-max", _STREAM_ID="a")
    given = [record.text for _ in range(50) for record in joiner.feed(part)]
    assert [len(text) > 1024 * 1024 for text in given] == [True, True]
    assert len("".join(given)) + len(joiner.rest()[0].text) == 50 * 49152


def test_what_is_no_record_is_said() -> None:
    for bad in (b"no json", b"[1]", b'{"MESSAGE": "x"}'):
        with pytest.raises(BadAnswer):
            list(LineJoiner().feed(bad))
    assert texts(b"", b"  ") == []


def test_processes_are_read_with_any_name_and_argument() -> None:
    stat = b"(evil) S 1 2) S 1 1 1 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 100 1000 25"
    printed = b"\0".join(
        [
            b"4096 100 20",
            b"/proc/10/stat:10 " + stat + b"\n",
            b"/proc/10/statm:500 25 10 1 0 50 0\n",
            b"/proc/10/cmdline:/bin/x",
            b"/proc/10/cmdline:/proc/20/cmdline:fake\n",
            b"/proc/10/cmdline:",
            b"/proc/20/stat:20 (main) R 1 1 1 0 -1 4194304 100 0 0 0 1 1 0 0 20 0 1 0 100 1000 25\n",
            b"/proc/20/statm:500 100 10 1 0 50 0\n",
            b"/proc/20/cmdline:main",
            b"/proc/20/io:rchar: 900\nwchar: 1\nread_bytes: 1000\n",
            b"/proc/30/stat:30 (zombie) Z 1 1 1 0 -1 4194304 100 0 0 0 1 1 0 0 20 0 1 0 100 1000 25\n",
            b"/proc/30/statm:0 0 0 0 0 0 0\n",
            b"/proc/40/stat:40 (gone half way) S\n",
            b"",
        ]
    )
    main, other = parse_processes(printed)
    assert (main.pid, main.argv, main.rss_bytes, main.cpu_s, main.read_bytes) == (20, ("main",), 409600, 0.02, 1000)
    assert (other.pid, other.argv) == (10, ("/bin/x", "/proc/20/cmdline:fake\n", ""))
    assert (other.cpu_s, other.read_bytes) == (3.0, None)
    assert parse_processes(b"4096 100 0\0") == []


def test_owners_of_ports() -> None:
    text = """\
LISTEN 0 128 0.0.0.0:22 0.0.0.0:* users:(("sshd",pid=64,fd=3)) cgroup:/system.slice/ssh.service
LISTEN 0 128 [::]:8000 [::]:* users:(("pt_main(x)",pid=7,fd=3),("VLLM::Engine",pid=8,fd=3))
LISTEN 0 128 *:9 *:* cgroup:/user.slice/user-1.slice/user@1.service/app.slice/a.service
"""
    assert parse_ss(text) == [
        (64, "sshd", "ssh.service"),
        (7, "pt_main(x)", ""),
        (8, "VLLM::Engine", ""),
        (0, "", "a.service"),
    ]
    assert unit_of_cgroup("0::/system.slice/docker-abc.scope") == "docker-abc.scope"
    assert unit_of_cgroup("/user.slice/x") == ""


def test_diagnostics_are_those_of_one_unit_whatever_its_name() -> None:
    text = """\
/run/systemd/system/specd-a.service:9: Unknown key 'Foo' in section [Service], ignoring.
/etc/systemd/system/other.service:1: Unknown section 'X'. Ignoring.
specd-a.service: Command /nope is not executable: No such file or directory
/etc/systemd/system/my-specd-a.service:3: not about it
specd-a.service.bak: neither
"""
    found = diagnostics(text, "specd-a.service")
    assert found[0] == "Unknown key 'Foo' in section [Service], ignoring."
    assert found[1] == "Command /nope is not executable: No such file or directory"
    of_base = diagnostics(
        "/etc/systemd/system/b@.service:2: Unknown key 'Foo' in section [Service], ignoring.", "b@x.service"
    )
    assert of_base == found[:1]


def test_the_first_word_that_differs_is_named_and_secrets_are_not() -> None:
    intended = ["/bin/x", "--api-key", "sk-secret-a", "--c", '{"a": 1}']
    assert argv_check(intended, intended).status is CheckStatus.PASSED
    assert "1 JSON" in argv_check(intended, intended).evidence
    failed = argv_check(intended, [*intended[:4], "{a: 1}"])
    assert "word 4 after '--c': intended '{\"a\": 1}', systemd would give '{a: 1}'" in failed.evidence
    assert "nothing" in argv_check(intended, intended[:4]).evidence
    assert "nothing" in argv_check(intended[:4], intended).evidence
    failed = argv_check(intended, [*intended[:2], "sk-secret-b", *intended[3:]], ["sk-secret-a", "sk-secret-b"])
    assert "secret" not in failed.evidence
    failed = environment_check({"HF_TOKEN": "a", "B": "1"}, {"HF_TOKEN": "b", "B": "1"})
    assert failed.evidence == "HF_TOKEN: intended ***, systemd would give ***"
    assert "nothing" in environment_check({}, {"B": "1"}).evidence


def test_a_running_process_is_matched_behind_its_interpreter() -> None:
    argv = ["vllm", "serve", "m"]
    assert argv_matches(["/venv/bin/python", "/venv/bin/vllm", "serve", "m"], argv, "/venv/bin/vllm")
    assert argv_matches(["vllm", "serve", "m"], argv, "/venv/bin/vllm")
    assert not argv_matches(["vllm", "serve", "n"], argv, "/venv/bin/vllm")
    assert not argv_matches(["vllm", "serve"], argv, "/venv/bin/vllm")
    assert not argv_matches(["other", "serve", "m"], argv, "/venv/bin/vllm")


@pytest.mark.parametrize("name", ["", "-x", "a/b", "a b", "x.timer", "a@.service", "é", "a" * 300, ".service", "x;y"])
def test_names_that_are_no_service(name: str) -> None:
    with pytest.raises(UnitError):
        check_unit_name(name)


def test_names_are_completed_and_escaped_for_the_bus() -> None:
    assert check_unit_name("vllm@qwen2.5") == "vllm@qwen2.5.service"
    assert object_path("a-1.service").endswith("/a_2d1_2eservice")
    assert object_path("1a.service").endswith("/_31a_2eservice")


def test_commands_of_an_older_systemd_have_no_flags() -> None:
    row = ["/bin/x", ["/bin/x", "a"], True, 0, 0, 0, 0, 0, 0, 0]
    (command,) = Properties({"ExecStart": [row]}).commands("ExecStart")
    assert (command.argv, command.prefix, command.expands) == (("/bin/x", "a"), "-", True)
