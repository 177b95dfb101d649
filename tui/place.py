"""Where the daemon is: its socket or address, and the token for an address."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

__all__ = ["NoToken", "default_socket", "read_token", "state_directory"]

_MACHINE_SOCKET = "/run/specd/specd.sock"


class NoToken(Exception):
    """The token file can't be read; the text says which and why."""


def default_socket(environ: Mapping[str, str], is_root: bool, machine_socket: str = _MACHINE_SOCKET) -> str:
    """Return the socket to ask when none is named.

    $SPECD_SOCKET; for root the machine's; else the user's own below $XDG_RUNTIME_DIR (without one, below
    $XDG_STATE_HOME), or the machine's where the user has none and the machine has.
    """
    if environ.get("SPECD_SOCKET"):
        return environ["SPECD_SOCKET"]
    if is_root:
        return machine_socket
    own = _own_socket(environ)
    return machine_socket if not _is_socket(own) and _may_be_socket(Path(machine_socket)) else str(own)


def _own_socket(environ: Mapping[str, str]) -> Path:
    runtime = _absolute(environ.get("XDG_RUNTIME_DIR"))
    if runtime is not None:
        return runtime / "specd" / "specd.sock"
    state = _absolute(environ.get("XDG_STATE_HOME")) or Path.home() / ".local/state"
    return state / "specd" / "run" / "specd.sock"


def _absolute(text: str | None) -> Path | None:
    return Path(text) if text and Path(text).is_absolute() else None


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


def _may_be_socket(path: Path) -> bool:
    """True for a socket, and for what this user may not even look at."""
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except PermissionError:
        return True
    except OSError:
        return False


def read_token(token_file: str) -> str:
    """Return the token in a file; "" for no file. Raises NoToken."""
    if not token_file:
        return ""
    try:
        return Path(token_file).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NoToken(
            f"the token file {token_file} can't be read: {getattr(error, 'strerror', None) or error}"
        ) from None


def state_directory() -> Path:
    """Return where the console keeps its own few files; nothing is made."""
    state = _absolute(os.environ.get("XDG_STATE_HOME")) or Path.home() / ".local/state"
    return state / "specd-tui"
