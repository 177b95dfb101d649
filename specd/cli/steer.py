"""`specd cancel`, `rollback`, `takeover` and `extend`: an operator's word to the daemon."""

import argparse
import asyncio
import getpass
import math
import os
import sys
from typing import Any
from urllib.parse import quote

from specd.cli.place import api
from specd.cli.terminal import Terminal, print_json
from specd.cli.text import clean, local_day
from specd.errors import Refused, UsageError

__all__ = ["cancel", "extend", "rollback", "takeover"]


def cancel(args: argparse.Namespace) -> int:
    """Ask for the end of a trial."""
    body = {"by": _operator(), "why": args.why}
    answer = asyncio.run(_post(args, f"/v1/trials/{quote(args.id, safe='')}/cancel", body))
    _tell(args, answer, f"{clean(args.id)} is being cancelled; follow it: specd watch {clean(args.id)}")
    return 0


def rollback(args: argparse.Namespace) -> int:
    """Ask for a service's baseline."""
    answer = asyncio.run(_post(args, f"/v1/services/{quote(args.service, safe='')}/rollback", {"by": _operator()}))
    _tell(args, answer, f"the baseline of {clean(args.service)} is being brought back; follow it: specd watch")
    return 0


def takeover(args: argparse.Namespace) -> int:
    """Take a service over from another daemon, after a question that names it."""
    return asyncio.run(_takeover(args))


async def _takeover(args: argparse.Namespace) -> int:
    path = f"/v1/services/{quote(args.service, safe='')}"
    service = clean(args.service)
    async with api(args) as client:
        claim = (await client.get(f"{path}/claim"))["claim"]
        if claim is None or claim["is_ours"]:
            _tell(args, {"taken_from": None}, f"nobody else drives {service}; there is nothing to take over")
            return 0
        if not args.yes:
            _ask(
                f"{clean(claim['unit'])} is driven by {clean(claim['words'])}.\n"
                "Its trial is not ended by this: it stops renewing its guard, which then brings the baseline back.\n"
                f"Take {service} over? [y/N] "
            )
        answer = await client.post(f"{path}/takeover", {"by": _operator()})
    _tell(args, answer, f"{service} is ours; `specd check` tells what serves there now")
    return 0


def _ask(question: str) -> None:
    """Ask a person; raises UsageError where there is none, Refused for any answer but yes."""
    if not sys.stdin.isatty():
        raise UsageError("there is nobody to ask; --yes takes it over without a question")
    sys.stderr.write(question)
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise Refused("nothing was taken over")


def extend(args: argparse.Namespace) -> int:
    """Give a trial's running state more time."""
    if not math.isfinite(args.minutes) or args.minutes <= 0:
        raise UsageError(f"MINUTES must be more than 0, not {args.minutes:g}")
    answer = asyncio.run(_post(args, f"/v1/trials/{quote(args.id, safe='')}/extend", {"minutes": args.minutes}))
    deadline = answer.get("deadline_at")
    until = f"; its deadline is now {local_day(deadline)}" if deadline else ""
    _tell(args, answer, f"{clean(args.id)} has {args.minutes:g} min more{until}")
    return 0


async def _post(args: argparse.Namespace, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with api(args) as client:
        return dict(await client.post(path, body))


def _tell(args: argparse.Namespace, answer: dict[str, Any], words: str) -> None:
    if args.json:
        print_json(answer)
    else:
        Terminal.of(sys.stdout).line(clean(answer.get("message") or words))


def _operator() -> str:
    """Return who asks, for the trial's history: under sudo, who typed it."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
