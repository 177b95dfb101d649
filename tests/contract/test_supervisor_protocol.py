"""The supervisor's socket and command line: what it takes, what it turns away, and who may have a directory."""

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.supervised import ROOT, SLEEPER, Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


def talk(rig: Rig, *lines: bytes) -> list[dict[str, Any]]:
    """Send lines on one connection and return the answers, one a line."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(str(rig.directory / "supervisor.sock"))
        with client.makefile("rwb") as stream:
            answers = []
            for line in lines:
                stream.write(line + b"\n")
                stream.flush()
                answers.append(json.loads(stream.readline()))
            return answers


def start(rig: Rig, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program until it ends by itself."""
    argv = [sys.executable, "-m", "specd.supervisor", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)


def test_bad_requests_are_answered_and_the_connection_goes_on(rig: Rig) -> None:
    rig.write("one", SLEEPER)
    rig.boot()
    lines = [
        b"not json",
        b"[]",
        b"{}",
        b'{"id": 1, "do": "format-disk"}',
        b'{"id": 2, "do": "status"}',
        b'{"id": 3, "do": "status", "unit": 7}',
        b'{"id": 4, "do": "start", "unit": "../../etc/passwd"}',
        b'{"id": 5, "do": "start", "unit": "none.service"}',
        b'{"id": 6, "do": "ports", "port": 70000}',
        b'{"id": 7, "do": "guard-arm", "trial": "t", "candidate": "a", "baseline": "one", "lease_s": true}',
        b'{"id": 8, "do": "guard-arm", "trial": "t", "candidate": "a", "baseline": "one", "lease_s": -1}',
        b'{"id": 9, "do": "journal", "unit": "one", "after": "x"}',
        b'{"id": 10, "do": "status", "unit": "one.service"}',
    ]
    answers = talk(rig, *lines)
    assert [answer.get("code") for answer in answers] == [
        *["bad-request"] * 6,
        "bad-unit",
        "no-such-unit",
        *["bad-request"] * 4,
        None,
    ]
    assert [answer["id"] for answer in answers] == [None, None, None, *range(1, 11)]
    assert answers[-1]["ok"]["active"] == "inactive"


def test_a_line_without_end_costs_only_its_own_connection(rig: Rig) -> None:
    rig.write("one", SLEEPER)
    rig.boot()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(str(rig.directory / "supervisor.sock"))
        with pytest.raises(ConnectionError):
            client.sendall(b"x" * 2**24)
    assert talk(rig, b'{"id": 1, "do": "ping"}')[0]["ok"]["pid"] == rig.process.pid  # type: ignore[union-attr]


def test_the_directory_is_for_its_owner_only(rig: Rig) -> None:
    rig.directory.chmod(0o755)
    rig.boot()
    assert stat.S_IMODE(rig.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((rig.directory / "supervisor.sock").stat().st_mode) == 0o600
    assert stat.S_IMODE((rig.directory / "state.json").stat().st_mode) & 0o077 == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_users_process_is_turned_away(rig: Rig) -> None:
    rig.boot()
    client = socket.socket(socket.AF_UNIX)
    rig.directory.chmod(0o755)
    (rig.directory / "supervisor.sock").chmod(0o666)
    # The path to it is private too; a descriptor of its directory gets the other user there.
    directory = os.open(rig.directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.seteuid(65534)
        client.settimeout(10)
        client.connect(f"/proc/self/fd/{directory}/supervisor.sock")
        os.seteuid(0)
        client.sendall(b'{"id": 1, "do": "ping"}\n')
        assert client.recv(100) == b""
    except ConnectionError:
        pass
    finally:
        os.seteuid(0)
        os.close(directory)
        client.close()
    assert "another user" in rig.end()


def test_a_second_supervisor_is_refused_and_the_holder_named(rig: Rig) -> None:
    rig.write("one", SLEEPER, enabled=True)
    pid = rig.boot()
    for arguments in ((), ("--detach",)):
        second = start(rig, str(rig.directory), *arguments)
        assert second.returncode == 4
        assert f"pid {pid}" in second.stderr
    assert talk(rig, b'{"id": 1, "do": "ping"}')[0]["ok"]["pid"] == pid


def test_what_can_not_be_a_directory_is_named(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for arguments in ((), ("--detach",)):
        refused = start(rig, str(tmp_path / "file"), *arguments)
        assert refused.returncode == 2
        assert str(tmp_path / "file") in refused.stderr
    assert start(rig).returncode == 2


def test_the_word_shutdown_ends_it_with_all_units(rig: Rig) -> None:
    rig.write("one", SLEEPER, enabled=True)
    rig.boot()
    process = rig.process
    assert process is not None
    assert talk(rig, b'{"id": 1, "do": "shutdown"}') == [{"id": 1, "ok": None}]
    assert process.wait(timeout=20) == 0
    assert rig.marked() == []
    assert not (rig.directory / "supervisor.sock").exists()


def test_the_program_imports_nothing_but_the_standard_library() -> None:
    show = (
        "import sys, specd.supervisor.__main__\nprint('\\n'.join(sorted({n.partition('.')[0] for n in sys.modules})))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", show], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    )
    foreign = {name for name in loaded.stdout.split() if name not in sys.stdlib_module_names}
    assert {name for name in foreign if not name.startswith(("_", "specd"))} <= {"sitecustomize", "usercustomize"}
