"""`specd check`: preflight by the daemon, or from this process when none answers."""

import argparse
import asyncio
import getpass
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specd.cli.place import api, config_of
from specd.cli.show import check_lines
from specd.cli.terminal import Terminal, print_json
from specd.cli.text import clean
from specd.errors import DaemonUnreachable

__all__ = ["check"]

_REFUSED = 4


def check(args: argparse.Namespace) -> int:
    """Print every check of every host and service; status 4 when one failed."""
    found = asyncio.run(_check(args))
    groups = [*found.get("hosts", []), *found.get("services", [])]
    failed = sum(item.get("status") == "failed" for group in groups for item in group.get("checks", []))
    if args.json:
        print_json(found)
        return _REFUSED if failed else 0
    terminal = Terminal.of(sys.stdout)
    for kind in ("hosts", "services"):
        for group in found.get(kind, []):
            for line in _group_lines(kind[:-1], group, terminal):
                terminal.line(line)
    if failed:
        terminal.line(terminal.style(f"{failed} check{'s' if failed != 1 else ''} failed", "red"))
    elif groups:
        terminal.line(terminal.style("no check failed", "green"))
    else:
        terminal.line("the config names no hosts and no services")
    return _REFUSED if failed else 0


async def _check(args: argparse.Namespace) -> dict[str, Any]:
    if args.config:
        config_of(args)
    if not args.here:
        try:
            async with api(args) as client:
                return dict(await client.post("/v1/check"))
        except DaemonUnreachable:
            if args.socket:
                raise
            who = getpass.getuser()
            sys.stderr.write(f"no daemon answers; checking from here, as {who}: its keys and rights may differ\n")
    config = config_of(args)
    from specd.preflight import check as check_config

    # A directory of its own: the daemon's may belong to someone else, or not be there.
    with tempfile.TemporaryDirectory(prefix="specd-") as runtime:
        return await check_config(config, Path(runtime))


def _group_lines(kind: str, group: Mapping[str, Any], terminal: Terminal) -> list[str]:
    title = terminal.style(f"{kind} {clean(group.get('name'))}", "bold")
    return [title, *check_lines(group.get("checks") or [], terminal), ""]
