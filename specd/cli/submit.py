"""`specd submit` and `specd rehearse`: queue the trials of a file, and wait for their end on request."""

import argparse
import asyncio
import sys
from typing import Any

from specd.cli.client import ApiClient
from specd.cli.place import api, trial_text
from specd.cli.terminal import Terminal, print_json
from specd.cli.text import clean

__all__ = ["rehearse", "submit"]


def submit(args: argparse.Namespace) -> int:
    """Queue the trials of a file."""
    return _run(args, rehearsal=False)


def rehearse(args: argparse.Namespace) -> int:
    """Queue the trials of a file with the rehearsal engine."""
    return _run(args, rehearsal=True)


def _run(args: argparse.Namespace, *, rehearsal: bool) -> int:
    try:
        return asyncio.run(_submit(args, rehearsal=rehearsal))
    except KeyboardInterrupt:
        if args.wait:
            sys.stderr.write("\nspecd: stopped waiting; what was queued goes on; see it with: specd trials\n")
        raise


async def _submit(args: argparse.Namespace, *, rehearsal: bool) -> int:
    file, text = trial_text(args)
    async with api(args) as client:
        queued = await client.submit(file, text, rehearsal=rehearsal)
        if not args.json:
            _tell(queued)
        if not args.wait:
            if args.json:
                print_json({"trials": queued})
            return 0
        return await _wait(args, client, queued)


def _tell(queued: list[dict[str, Any]]) -> None:
    """Print the ids for programs on stdout, and words for a person on stderr."""
    for trial in queued:
        if sys.stderr.isatty():
            name, state, service = (clean(trial.get(key) or "") for key in ("name", "state", "service"))
            sys.stderr.write(f"{name} is {state} for {service}; follow it: specd watch {clean(trial['id'])}\n")
        sys.stdout.write(f"{clean(trial['id'])}\n")
    sys.stdout.flush()


async def _wait(args: argparse.Namespace, client: ApiClient, queued: list[dict[str, Any]]) -> int:
    from specd.cli.show import ending
    from specd.cli.watch import exit_status, follow
    from specd.cli.watch_view import LineView, LiveView

    # stdout belongs to the ids and the JSON; the story of the wait goes where people look.
    terminal = Terminal.of(sys.stderr)
    ended = []
    for trial in queued:
        view = LiveView(terminal) if terminal.live else LineView(terminal)
        ended.append(await follow(client, str(trial["id"]), view))
        for line in ending(ended[-1], terminal):
            terminal.line(line)
    if args.json:
        print_json({"trials": ended})
    return exit_status(*ended)
