"""Where things are: by config, by systemd, by user; and paths that no socket can have."""

import os
from pathlib import Path

import pytest

from specd.config import Paths, default_config_path, runtime_paths
from specd.errors import ConfigError
from specd.settings import Config, DaemonSettings

VARIABLES = (
    "STATE_DIRECTORY",
    "RUNTIME_DIRECTORY",
    "XDG_STATE_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "SPECD_CONFIG",
)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")


def as_user(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)


def test_root(monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 0)
    monkeypatch.setenv("XDG_STATE_HOME", "/elsewhere")
    assert runtime_paths(Config(path="c")) == Paths(
        Path("/var/lib/specd"), Path("/run/specd/specd.sock"), Path("/run/specd")
    )
    assert default_config_path() == Path("/etc/specd/config.toml")


def test_a_user_with_a_login_session(monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert runtime_paths(Config(path="c")) == Paths(
        Path("/home/me/.local/state/specd"), Path("/run/user/1000/specd/specd.sock"), Path("/run/user/1000/specd")
    )


def test_a_user_without_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 1000)
    monkeypatch.setenv("XDG_STATE_HOME", "relative is to be ignored")
    assert runtime_paths(Config(path="c")).socket == Path("/home/me/.local/state/specd/run/specd.sock")


def test_a_user_s_config_before_the_system_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    as_user(monkeypatch, 1000)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    own = tmp_path / "specd" / "config.toml"
    own.parent.mkdir()
    own.write_text("")
    assert default_config_path() == own
    monkeypatch.setenv("SPECD_CONFIG", "/named.toml")
    assert default_config_path() == Path("/named.toml")


def test_systemd_s_directories_beat_the_user_s_and_the_config_beats_both(monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 0)
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/specd-a:/var/lib/other")
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/specd-a")
    assert runtime_paths(Config(path="c")) == Paths(
        Path("/var/lib/specd-a"), Path("/run/specd-a/specd.sock"), Path("/run/specd-a")
    )
    daemon = DaemonSettings(state_dir="/s", socket="/r/x.sock")
    assert runtime_paths(Config(path="c", daemon=daemon)) == Paths(Path("/s"), Path("/r/x.sock"), Path("/r"))


def test_a_socket_path_that_can_not_be_bound_is_refused_by_name() -> None:
    socket = "/" + "x" * 107
    with pytest.raises(ConfigError, match=r"^c: daemon\.socket: .* is longer than the 107 bytes"):
        runtime_paths(Config(path="c", daemon=DaemonSettings(socket=socket)))
    assert runtime_paths(Config(path="c", daemon=DaemonSettings(socket=socket[:107]))).socket == Path(socket[:107])
