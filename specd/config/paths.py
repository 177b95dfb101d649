"""Where the config, the state and the socket are: by the config, by systemd, or by user."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specd.errors import ConfigError, Problem
from specd.settings import Config

__all__ = ["Paths", "default_config_path", "runtime_paths"]

# sun_path holds 108 bytes with its NUL; longer paths can't be bound.
_SOCKET_PATH_BYTES = 107


@dataclass(frozen=True, slots=True)
class Paths:
    """The daemon's places on this machine; `runtime_dir` (to be 0700) holds the socket and short-lived files."""

    state_dir: Path
    socket: Path
    runtime_dir: Path


def default_config_path() -> Path:
    """Return the config file to use when none is named: $SPECD_CONFIG, the user's, or /etc/specd/config.toml."""
    named = os.environ.get("SPECD_CONFIG")
    if named:
        return Path(named)
    system = Path("/etc/specd/config.toml")
    if os.geteuid() == 0:
        return system
    own = _xdg(os.environ, "XDG_CONFIG_HOME", ".config") / "specd" / "config.toml"
    # os.path.exists is False, and raises nothing, for what this user may not even look at.
    return own if os.path.exists(own) or not os.path.exists(system) else system


def runtime_paths(config: Config) -> Paths:
    """Return the places: those of [daemon], then systemd's directories, then the user's; raises ConfigError.

    Root has /var/lib/specd and /run/specd; others $XDG_STATE_HOME/specd and $XDG_RUNTIME_DIR/specd. Nothing is made.
    """
    env = os.environ
    is_root = os.geteuid() == 0
    state = (
        _path(config.daemon.state_dir)
        or _systemd(env, "STATE_DIRECTORY")
        or (Path("/var/lib/specd") if is_root else _xdg(env, "XDG_STATE_HOME", ".local/state") / "specd")
    )
    socket = _path(config.daemon.socket)
    if socket is None:
        runtime = _systemd(env, "RUNTIME_DIRECTORY")
        if runtime is None and is_root:
            runtime = Path("/run/specd")
        elif runtime is None:
            session = _absolute(env, "XDG_RUNTIME_DIR")
            runtime = session / "specd" if session else state / "run"
        socket = runtime / "specd.sock"
    if len(os.fsencode(socket)) > _SOCKET_PATH_BYTES:
        text = f"{socket} is longer than the {_SOCKET_PATH_BYTES} bytes a socket's path may have; set a shorter one"
        raise ConfigError([Problem(config.path, 0, "daemon.socket", text)])
    return Paths(state, socket, socket.parent)


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _absolute(env: Mapping[str, str], name: str) -> Path | None:
    path = _path(env.get(name, ""))
    return path if path is not None and path.is_absolute() else None


def _systemd(env: Mapping[str, str], name: str) -> Path | None:
    # Several directories come separated by colons; the unit has one.
    return _path(env.get(name, "").partition(":")[0])


def _xdg(env: Mapping[str, str], name: str, below_home: str) -> Path:
    return _absolute(env, name) or Path(os.path.expanduser("~")) / below_home
