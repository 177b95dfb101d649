"""Where the console looks for the daemon, and its token."""

import socket
from pathlib import Path

import pytest

from tui.clipboard import save_copy
from tui.place import NoToken, default_socket, read_token, state_directory


def bound(path: Path) -> str:
    """Make a real socket file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    return str(path)


def test_the_environment_names_the_socket() -> None:
    assert default_socket({"SPECD_SOCKET": "/x.sock"}, is_root=True) == "/x.sock"


def test_root_asks_the_machines_daemon() -> None:
    assert default_socket({"XDG_RUNTIME_DIR": "/run/user/0"}, is_root=True) == "/run/specd/specd.sock"


def test_a_users_own_daemon_comes_first(tmp_path: Path) -> None:
    machine = bound(tmp_path / "machine.sock")
    own = bound(tmp_path / "run/specd/specd.sock")
    assert default_socket({"XDG_RUNTIME_DIR": str(tmp_path / "run")}, False, machine) == own


def test_without_one_of_their_own_a_user_asks_the_machines(tmp_path: Path) -> None:
    machine = bound(tmp_path / "machine.sock")
    assert default_socket({"XDG_RUNTIME_DIR": str(tmp_path / "run")}, False, machine) == machine


def test_without_a_runtime_directory_the_socket_is_with_the_state(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": "relative"}
    assert default_socket(environ, False, str(tmp_path / "none")) == str(tmp_path / "specd/run/specd.sock")


def test_a_token_is_read_without_its_line_end(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    assert read_token(str(tmp_path / "token")) == "abc"
    assert read_token("") == ""


def test_a_token_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoToken, match="gone can't be read: No such file or directory"):
        read_token(str(tmp_path / "gone"))


def test_a_copy_is_private_and_replaces_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    save_copy(state_directory(), "one")
    path = save_copy(state_directory(), "two")
    assert path.read_text() == "two\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["copied.txt"]
