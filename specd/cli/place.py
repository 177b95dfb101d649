"""Which config and which daemon a command is about."""

import argparse
import os
import stat
import sys
from pathlib import Path

from specd.cli.client import ApiClient
from specd.config import default_config_path, load_config, peek_daemon, read_text, runtime_paths
from specd.errors import ConfigError, Problem, UsageError
from specd.settings import Config

__all__ = ["api", "config_of", "trial_text"]


def config_of(args: argparse.Namespace) -> Config:
    """Load the config that the words name, or the default one; raises ConfigError, UsageError."""
    path = Path(args.config) if args.config else default_config_path()
    if not args.config and not os.path.exists(path):
        raise UsageError(
            f"there is no config at {path}",
            next_step="name one with --config, or begin one with `specd import HOST UNIT`",
        )
    return load_config(path)


def api(args: argparse.Namespace) -> ApiClient:
    """Return a client for the daemon that the words, the environment or the config name."""
    socket = args.socket or os.environ.get("SPECD_SOCKET", "")
    if not socket:
        socket = str(_socket_of(args))
    token_file = args.token_file or os.environ.get("SPECD_TOKEN_FILE", "")
    if token_file and not socket.startswith(("http://", "https://")):
        token_file = ""
    try:
        token = Path(token_file).read_text().strip() if token_file else ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the token file {token_file} can't be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    return ApiClient(socket, token=token)


def trial_text(args: argparse.Namespace) -> tuple[str, str]:
    """Return a trial file's name and text; raises ConfigError."""
    if args.file == "-":
        try:
            return "<stdin>", sys.stdin.buffer.read().decode()
        except UnicodeDecodeError:
            raise ConfigError([Problem("<stdin>", 0, "", "not UTF-8 text")]) from None
    return args.file, read_text(Path(args.file))


def _socket_of(args: argparse.Namespace) -> Path:
    if args.config:
        return runtime_paths(load_config(Path(args.config))).socket
    path = default_config_path()
    own = runtime_paths(Config(path=str(path), daemon=peek_daemon(path))).socket
    shared = Path("/run/specd/specd.sock")
    # A user's own daemon first; without one, the machine's.
    return shared if not _is_socket(own) and _may_exist(shared) else own


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


def _may_exist(path: Path) -> bool:
    """True for a socket, and for one that this user may not even look at."""
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except PermissionError:
        return True
    except OSError:
        return False
