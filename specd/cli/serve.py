"""`specd start` and `specd demo`: the commands that run a daemon in this process."""

import argparse
from pathlib import Path

from specd.config import runtime_paths
from specd.errors import UsageError

__all__ = ["demo", "start"]


def start(args: argparse.Namespace) -> int:
    """Run the daemon in the foreground until it is told to stop."""
    from dataclasses import replace

    from specd.cli.place import config_of

    config = config_of(args)
    if args.socket.startswith(("http://", "https://")):
        raise UsageError("start listens on a unix socket; for TCP set tcp and token_file under [daemon]")
    if args.socket:
        config = replace(config, daemon=replace(config.daemon, socket=str(Path(args.socket).absolute())))
    from specd.daemon import run

    return run(config, runtime_paths(config))


def demo(args: argparse.Namespace) -> int:
    """Run a whole trial on this machine with what is embedded."""
    from specd.demo import main

    return main(args.json)
