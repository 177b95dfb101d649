"""`specd plan`: what trials would change and what the checks say about it."""

import argparse
import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from specd.cli.place import api, trial_text
from specd.cli.show import check_lines
from specd.cli.terminal import Terminal, print_json
from specd.cli.text import clean, duration

__all__ = ["plan"]

_REFUSED = 4
_ORDER = ("failed", "warning", "unchecked", "passed")


def plan(args: argparse.Namespace) -> int:
    """Print the plan of each trial of a file; status 4 when a check failed."""
    return asyncio.run(_plan(args))


async def _plan(args: argparse.Namespace) -> int:
    file, text = trial_text(args)
    async with api(args) as client:
        plans = await client.plan(file, text, rehearsal=args.rehearsal)
    if args.json:
        print_json({"plans": plans})
    else:
        terminal = Terminal.of(sys.stdout)
        for number, found in enumerate(plans):
            if number:
                terminal.line()
            for line in plan_lines(found, terminal):
                terminal.line(line)
    return 0 if all(found.get("ok") for found in plans) else _REFUSED


def plan_lines(found: Mapping[str, Any], terminal: Terminal) -> list[str]:
    """Return one trial's plan for a person."""
    trial, baseline = found.get("trial") or {}, found.get("baseline") or {}
    name, service, host = (clean(trial.get(key)) for key in ("name", "service", "host"))
    lines = [terminal.style(f"Plan for {name}: {service} on {host}", "bold")]
    if baseline:
        invocation = f", invocation {clean(baseline['invocation'])}" if baseline.get("invocation") else ""
        lines.append(f"  baseline {clean(baseline.get('unit'))}{invocation}")
    outage = found.get("expected_outage_s")
    lines.append(
        f"  expected outage about {duration(outage)}"
        if isinstance(outage, int | float)
        else "  expected outage not known: this service has no history yet"
    )
    for title, key in (("Command line", "argv_diff"), ("Environment", "env_diff"), ("Unit", "unit_diff")):
        part = _diff_lines(found.get(key), terminal)
        lines += ["", terminal.style(title, "bold"), *part] if part else []
    checks = [check for check in found.get("checks") or [] if isinstance(check, dict)]
    # What stands in the way comes first; within a kind the order is the one in which a trial would meet them.
    checks.sort(key=lambda check: _ORDER.index(check["status"]) if check.get("status") in _ORDER else 0)
    lines += ["", terminal.style("Checks", "bold"), *check_lines(checks, terminal), ""]
    failed = sum(check.get("status") == "failed" for check in checks)
    if found.get("ok"):
        return [*lines, terminal.style("It can be submitted; nothing was touched.", "green")]
    count = f"{failed} check{'s' if failed != 1 else ''} failed" if failed else "the plan does not hold"
    return [*lines, terminal.style(f"It would be refused: {count}; nothing was touched.", "red")]


def _diff_lines(diff: Any, terminal: Terminal) -> list[str]:
    """Return a diff with its lines coloured by their first character, which also says it without colour."""
    raw = diff if isinstance(diff, list) else str(diff or "").splitlines()
    lines = []
    for line in raw:
        text = clean(line)
        is_header = text.startswith(("---", "+++", "@@"))
        colour = "dim" if is_header else {"+": "green", "-": "red"}.get(text[:1], "")
        lines.append("  " + (terminal.style(text, colour) if colour else text))
    return lines
