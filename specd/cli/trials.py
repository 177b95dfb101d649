"""`specd trials`: the list."""

import argparse
import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from specd.cli.place import api
from specd.cli.terminal import Terminal, print_json
from specd.cli.text import clean, local_day, table
from specd.errors import UsageError

__all__ = ["trials"]


def trials(args: argparse.Namespace) -> int:
    """Print the latest trials, newest first."""
    if args.limit < 1:
        raise UsageError(f"--limit must be at least 1, not {args.limit}")
    return asyncio.run(_trials(args))


async def _trials(args: argparse.Namespace) -> int:
    async with api(args) as client:
        found = await client.trials(args.limit)
        if client.problem:
            sys.stderr.write(f"specd: {clean(client.problem)}\n")
    if args.json:
        print_json({"trials": found})
        return 0
    terminal = Terminal.of(sys.stdout)
    if not found:
        terminal.line("no trials yet; queue some: specd submit FILE")
        return 0
    head = ("ID", "NAME", "SERVICE", "HOST", "STATE", "OUTCOME", "CREATED")
    head_line, *lines = table([head, *(_row(trial) for trial in found)])
    terminal.line(terminal.style(head_line, "bold"))
    for line in lines:
        terminal.line(line)
    return 0


def _row(trial: Mapping[str, Any]) -> tuple[str, ...]:
    state = clean(trial.get("state"))
    progress = trial.get("progress") or {}
    fraction = progress.get("fraction") if progress.get("overall") is None else progress["overall"]
    if isinstance(fraction, int | float):
        state += f" {fraction:.0%}"
    names = (clean(trial.get(key) or "-") for key in ("id", "name", "service", "host"))
    return (*names, state, clean(trial.get("outcome") or "-"), local_day(trial.get("created_at") or "-"))
