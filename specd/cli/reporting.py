"""`specd report`: results of trials in a form to read, to share or to compute with."""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from specd.cli.client import ApiClient
from specd.cli.place import api
from specd.errors import UsageError
from specd.report import FORMS, REQUEST_FORMS
from states.table import PARKED, TERMINAL

__all__ = ["report"]

_ENDINGS = {".html": "html", ".htm": "html", ".md": "md", ".csv": "csv", ".json": "json", ".parquet": "parquet"}
_SETTLED = frozenset(state.value for state in TERMINAL | PARKED)
_MOST = 1000
_SIDES = ("baseline", "candidate")


def report(args: argparse.Namespace) -> int:
    """Write the report of the named trials, or of all that have settled, oldest first."""
    form = args.format or ("json" if args.json else _ENDINGS.get(Path(args.output).suffix.lower(), "md"))
    by_request = args.requests or form == "parquet"
    if by_request and form not in REQUEST_FORMS:
        raise UsageError(f"--requests goes with {', '.join(REQUEST_FORMS)}, not with {form}")
    trials = asyncio.run(_trials(args, with_requests=by_request or form == "html"))
    made = (REQUEST_FORMS if by_request else FORMS)[form](trials)
    content = made if isinstance(made, bytes) else made.encode(errors="replace")
    if args.output:
        _write(Path(args.output), content)
    else:
        # Names and logs may hold what the locale can't say; the report's own encoding is UTF-8.
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
    return 0


async def _trials(args: argparse.Namespace, *, with_requests: bool) -> list[dict[str, Any]]:
    async with api(args) as client:
        names = list(args.id)
        if not names:
            listed = await client.trials(_MOST)
            names = [str(trial["id"]) for trial in reversed(listed) if trial.get("state") in _SETTLED]
        return [await _trial(client, name, args.policy, with_requests=with_requests) for name in names]


async def _trial(client: ApiClient, name: str, policy: str, *, with_requests: bool) -> dict[str, Any]:
    trial = await client.trial(name)
    if not (with_requests or policy):
        return trial
    levels = await client.get(f"/v1/trials/{trial['id']}/levels")
    if policy:
        # Judging needs more of the program than the other commands do.
        from specd.cli.rejudging import rejudged

        trial = rejudged(trial, levels, policy)
    if with_requests:
        trial["requests"] = [
            {"side": side, "rate": level["level"].get("rate", 0.0), **sample}
            for side in _SIDES
            for level in levels.get(side) or []
            for sample in level["samples"]
        ]
    return trial


def _write(path: Path, content: bytes) -> None:
    """Write the file whole or not at all."""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise UsageError(f"{path} can't be written: {(error.strerror or str(error)).lower()}") from None
