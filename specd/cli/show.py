"""`specd show`: one trial's story for a person, or the API's object with --json; `--log` prints the engine's log."""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from specd.cli.client import ApiClient
from specd.cli.figures import comparison_words, level_rows
from specd.cli.place import api
from specd.cli.terminal import Terminal, print_json
from specd.cli.text import clean, duration, local_day, local_time, moment, table, value_text
from specd.engines.masking import MASK, is_secret_name, mask_words
from states.table import DESCRIPTIONS, PARKED, TERMINAL, State

__all__ = ["ending", "show", "story", "tell"]

Trial = Mapping[str, Any]

_PAGE = 1000
_TITLES = {state.value: text for state, text in DESCRIPTIONS.items()}
_SETTLED = frozenset(state.value for state in TERMINAL | PARKED)


def show(args: argparse.Namespace) -> int:
    """Print one trial."""
    return asyncio.run(_show(args))


async def _show(args: argparse.Namespace) -> int:
    terminal = Terminal.of(sys.stdout)
    async with api(args) as client:
        trial = await client.trial(args.id)
        if args.log:
            await _print_log(client, str(trial["id"]), terminal, as_json=args.json)
        elif args.json:
            print_json(trial)
        else:
            tell(story(trial, terminal), terminal)
    return 0


async def _print_log(client: ApiClient, trial: str, terminal: Terminal, *, as_json: bool) -> None:
    after = 0
    while page := await client.log(trial, after=after, limit=_PAGE):
        for line in page:
            after = max(after, int(line["n"]))
            if as_json:
                print_json(line)
                continue
            at = (
                datetime.fromtimestamp(line["at"], UTC).isoformat()
                if isinstance(line["at"], int | float)
                else line["at"]
            )
            # A record may hold a whole bar, redrawn with carriage returns: its last drawing is what counts.
            last = str(line["text"]).rstrip("\r\n").rpartition("\r")[2]
            terminal.line(f"{local_time(at)} {line.get('pid') or '-'} {clean(last)}")
        if len(page) < _PAGE:
            return


def tell(lines: Sequence[str], terminal: Terminal) -> None:
    """Print a story's lines, on a terminal broken between words."""
    for line in lines:
        terminal.paragraph(line, len(line) - len(line.lstrip()) + 4)


def story(trial: Trial, terminal: Terminal, *, goes_on: bool = True) -> list[str]:
    """Return the whole story, section by section; without what to do next when nothing of it `goes_on`."""
    sections = (_heading, _changes, _history, _progress, _checks)
    lines: list[str] = []
    for section in sections:
        part = section(trial, terminal)
        lines += [*part, ""] if part else []
    return lines + ending(trial, terminal, goes_on=goes_on)


def ending(trial: Trial, terminal: Terminal, *, goes_on: bool = True) -> list[str]:
    """Return what came of a trial: figures, verdict, failure, what serves now, where to look next."""
    lines: list[str] = []
    for section in (_measured, _verdict, _failure, _serving, *([_next] if goes_on else [])):
        part = section(trial, terminal)
        lines += [*part, ""] if part else []
    return lines[:-1] if lines else lines


def _heading(trial: Trial, terminal: Terminal) -> list[str]:
    state = clean(trial.get("state"))
    rows = [
        ("service", f"{clean(trial.get('service'))} on {clean(trial.get('host'))}"),
        ("state", f"{state}: {_TITLES.get(state, '')}"),
    ]
    if trial.get("outcome"):
        rows.append(("outcome", clean(trial["outcome"])))
    if trial.get("created_at"):
        rows.append(("created", local_day(trial["created_at"])))
    if trial.get("deadline_at") and state not in _SETTLED:
        rows.append(("deadline", local_day(trial["deadline_at"])))
    if words := _guard_words(trial.get("guard")):
        rows.append(("guard", words))
    title = terminal.style(f"Trial {clean(trial.get('name'))}", "bold")
    return [f"{title}  ({clean(trial.get('id'))})", *table(rows, indent="  ")]


def _guard_words(guard: Any) -> str:
    """Return what an armed guard is about to do, or that one has fired; nothing where there is none."""
    if not isinstance(guard, dict):
        return ""
    if guard.get("state") == "fired":
        return f"fired at {local_time(guard.get('at'))}: it stopped the candidate and started the baseline"
    left_s = guard.get("remaining_s")
    if guard.get("state") != "armed" or not isinstance(left_s, int | float):
        return ""
    return f"armed on the host: unless it is renewed, it brings the baseline back in {duration(left_s)}"


def _changes(trial: Trial, terminal: Terminal) -> list[str]:
    changes = trial.get("changes") or {}
    lines = []
    for flag, value in (changes.get("flags") or {}).items():
        lines.append(f"  --{clean(flag)} {_changed(flag, value)}")
    for name, value in (changes.get("env") or {}).items():
        lines.append(f"  {clean(name)} = {_changed(name, value)}")
    return [terminal.style("What it changes", "bold"), *lines] if lines else []


def _changed(name: str, value: Any) -> str:
    if value is None:
        return "(removed)"
    return MASK if is_secret_name(name) else value_text(value)


def _history(trial: Trial, terminal: Terminal) -> list[str]:
    entries = list(trial.get("history") or [])
    rows = []
    for entry, following in zip(entries, [*entries[1:], None], strict=True):
        begin, end = moment(entry.get("at")), moment(following.get("at")) if following else None
        if following is None and entry.get("state") not in _SETTLED:
            end = datetime.now(UTC)
        took = duration((end - begin).total_seconds()) if begin and end else ""
        why = _cause(following) if following else ""
        rows.append((local_time(entry.get("at")), clean(entry.get("state")), took, why))
    return [terminal.style("What happened", "bold"), *table(rows, right=(2,), indent="  ")] if rows else []


def _cause(move: Mapping[str, Any]) -> str:
    trigger = clean(move.get("trigger"))
    return f"{trigger}: {clean(move['cause'])}" if move.get("cause") else trigger


def _progress(trial: Trial, terminal: Terminal) -> list[str]:
    from specd.cli.event_words import progress_words

    if trial.get("state") in _SETTLED or not trial.get("progress"):
        return []
    return [terminal.style("Now", "bold"), f"  {clean(trial.get('state'))}: {progress_words(trial['progress'])}"]


def _checks(trial: Trial, terminal: Terminal) -> list[str]:
    checks = [check for check in trial.get("checks") or [] if isinstance(check, dict)]
    lines = check_lines([check for check in checks if check.get("status") != "passed"], terminal)
    passed = sum(check.get("status") == "passed" for check in checks)
    title = f"Checks: {passed} passed" + (", but" if lines else "")
    return [terminal.style(title, "bold"), *lines] if checks else []


def check_lines(checks: Sequence[Mapping[str, Any]], terminal: Terminal) -> list[str]:
    """Return checks as lines: status, name, evidence, and what would mend it."""
    colours = {"passed": "green", "failed": "red", "warning": "yellow", "unchecked": "cyan"}
    width = max((len(clean(check.get("name"))) for check in checks), default=0)
    lines = []
    for check in checks:
        status = clean(check.get("status"))
        word = terminal.style(f"{status:<9}", colours.get(status, "bold"))
        lines.append(f"  {word}  {clean(check.get('name')):<{width}}  {clean(check.get('evidence') or '')}".rstrip())
        if check.get("fix"):
            lines.append(f"  {'':9}  {'':{width}}  to mend it: {clean(check['fix'])}")
    return lines


def _measured(trial: Trial, terminal: Terminal) -> list[str]:
    rows = level_rows(trial)
    return [terminal.style("Measured", "bold"), *table(rows, right=(1, 2, 3), indent="  ")] if rows else []


def _verdict(trial: Trial, terminal: Terminal) -> list[str]:
    if not trial.get("outcome"):
        return []
    lines = [terminal.style(f"Verdict: {clean(trial['outcome'])}", "bold")]
    words = comparison_words(trial.get("comparison") or {})
    if words:
        lines.append(f"  {words}")
    answers, drift = trial.get("answers"), trial.get("drift")
    if isinstance(answers, dict) and answers.get("words"):
        lines.append(f"  {clean(answers['words'])}")
    if isinstance(drift, dict) and drift.get("reason"):
        lines.append(f"  the baseline, measured once more: {clean(drift['reason'])}")
    failure = trial.get("failure") or {}
    if trial.get("reason") and trial["reason"] != failure.get("sentence"):
        lines.append(f"  {clean(trial['reason'])}")
    return lines


def _failure(trial: Trial, terminal: Terminal) -> list[str]:
    failure = trial.get("failure")
    if not isinstance(failure, dict):
        return []
    kind = clean(failure.get("kind") or trial.get("class") or "unknown")
    lines = [terminal.style(f"Why it failed: {kind}", "red"), f"  {clean(failure.get('sentence') or '')}"]
    lines += [f"  | {clean(line)}" for line in failure.get("lines") or []]
    if failure.get("hint"):
        lines.append(f"  hint: {clean(failure['hint'])}")
    return lines


def _serving(trial: Trial, terminal: Terminal) -> list[str]:
    serving = trial.get("serving")
    if not serving:
        return []
    if isinstance(serving, dict):
        serving = ", ".join(f"{key} {value_text(value)}" for key, value in serving.items() if value not in (None, ""))
    return [terminal.style("Now serving", "bold"), f"  {clean(serving)}"]


def _next(trial: Trial, terminal: Terminal) -> list[str]:
    name, service = clean(trial.get("id")), clean(trial.get("service"))
    state = trial.get("state")
    lines = []
    if state == State.ROLLBACK_FAILED.value:
        lines.append(f"specd rollback {service}        try to bring the baseline back again")
    elif state == State.KEPT.value:
        lines.append(f"specd rollback {service}        take the decision back: the baseline serves again")
    elif state not in _SETTLED:
        lines += [f"specd watch {name}", f"specd cancel {name}"]
    if trial.get("failure") or state in _SETTLED:
        lines.append(f"specd show {name} --log    what the engine wrote")
    if trial.get("comparison"):
        lines.append(f"specd report {name} -o report.html")
    return [terminal.style("Next", "bold"), *(f"  {line}" for line in lines)]


def argv_text(argv: Sequence[str]) -> str:
    """Return a command line as one line of shell words, secrets masked."""
    import shlex

    return clean(" ".join(shlex.quote(word) for word in mask_words([str(word) for word in argv])))
