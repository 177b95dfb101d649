"""What programs print, and what it means: sudo's refusals, problems with files."""

import errno

import pytest

from specd.hosts.files import file_problem, os_problem, temporary_name
from specd.hosts.privilege import refusal, with_sudo

DENIED = "denied"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("sudo: a password is required\n", "password"),
        ("sudo: sorry, a password is required to run sudo\n", "password"),
        ("sudo: a terminal is required to read the password; either use the -S option ...\n", "tty"),
        ("sudo: sorry, you must have a tty to run sudo\n", "tty"),
        ("sudo: no tty present and no askpass program specified\n", "tty"),
        ("Sorry, user op is not allowed to execute '/usr/bin/tee x' as root on gpu1.\n", DENIED),
        ("op is not in the sudoers file.\nThis incident has been reported to the administrator.\n", DENIED),
        ("op is not in the sudoers file.  This incident will be reported.\n", DENIED),
        ("Sorry, user op may not run sudo on gpu1.\n", DENIED),
        ("sudo: sorry, you are not allowed to set the following environment variables: A\n", DENIED),
        ('sudo: The "no new privileges" flag is set, which prevents sudo from running as root.\n', DENIED),
        ("warning of some module\nsudo: a password is required\n", "password"),
    ],
)
def test_refusals_of_sudo(words: str, reason: str) -> None:
    refused = refusal(["systemctl", "stop", "x"], 1, words, "gpu1")
    assert refused is not None
    assert refused.reason == reason
    assert "systemctl stop" in str(refused)
    assert "gpu1" in str(refused)
    assert refused.next_step


def test_sudo_that_is_not_there() -> None:
    for words in ("specd: 1: sudo: not found\n", "bash: line 1: sudo: command not found\n", "sudo: not found\n"):
        refused = refusal(["tee"], 127, words, "gpu1")
        assert refused is not None
        assert "not installed" in str(refused)
    assert refusal(["nvidia-smi"], 127, "sudo: nvidia-smi: command not found\n", "gpu1") is None


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (1, "Failed to stop x: a password is required\n"),
        (1, "Job for sudo: failed\n"),
        (3, "sudo: a password is required\n"),
        (0, "sudo: a password is required\n"),
        (1, "tee: /etc/x: Permission denied\n"),
    ],
)
def test_words_of_the_command_itself(status: int, words: str) -> None:
    assert refusal(["systemctl"], status, words, "gpu1") is None


def test_sudo_never_asks() -> None:
    assert with_sudo(["tee", "-a"]) == ["sudo", "-n", "--", "tee", "-a"]
    assert with_sudo(["x"], {"A": "b c"}) == ["sudo", "-n", "A=b c", "--", "x"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("sh: 1: cannot create /x/y: Directory nonexistent", "missing"),
        ("sh: 1: cannot open /x: No such file", "missing"),
        ("tee: /x/y: No such file or directory", "missing"),
        ("tee: /x: Read-only file system", "read-only"),
        ("cat: write error: No space left on device", "no-space"),
        ("tee: /x: Disk quota exceeded", "no-space"),
        ("sh: 1: cannot create /x: Permission denied", DENIED),
        ("mv: cannot overwrite directory '/x' with non-directory", "other"),
        ("", "other"),
    ],
)
def test_problems_with_files(words: str, reason: str) -> None:
    problem = file_problem("/x/y", words, "gpu1")
    assert problem.reason == reason
    assert problem.path == "/x/y"
    assert "/x/y" in str(problem)
    assert "gpu1" in str(problem)


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.ENOENT, "missing"), (errno.EROFS, "read-only"), (errno.ENOSPC, "no-space"), (errno.EIO, "other")],
)
def test_problems_of_system_calls(number: int, reason: str) -> None:
    assert os_problem("/x", OSError(number, "words"), "here").reason == reason


def test_temporary_names_stay_under_the_rule_for_the_target() -> None:
    names = {temporary_name("/etc/systemd/system/specd-a.service") for _ in range(50)}
    assert len(names) == 50
    assert all(name.startswith("/etc/systemd/system/specd-a.service.tmp-") for name in names)
