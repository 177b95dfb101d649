"""`specd report`: results of trials in a form to read, to share or to compute with."""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from specd.cli.place import api
from specd.errors import UsageError
from specd.report import FORMS
from states.table import PARKED, TERMINAL

__all__ = ["report"]

_ENDINGS = {".html": "html", ".htm": "html", ".md": "md", ".csv": "csv", ".json": "json"}
_SETTLED = frozenset(state.value for state in TERMINAL | PARKED)
_MOST = 1000


def report(args: argparse.Namespace) -> int:
    """Write the report of the named trials, or of all that have settled, oldest first."""
    form = args.format or ("json" if args.json else _ENDINGS.get(Path(args.output).suffix.lower(), "md"))
    text = FORMS[form](asyncio.run(_trials(args)))
    if args.output:
        _write(Path(args.output), text)
    else:
        # Names and logs may hold what the locale can't say; the report's own encoding is UTF-8.
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode(errors="replace"))
    return 0


async def _trials(args: argparse.Namespace) -> list[dict[str, Any]]:
    async with api(args) as client:
        names = list(args.id)
        if not names:
            listed = await client.trials(_MOST)
            names = [str(trial["id"]) for trial in reversed(listed) if trial.get("state") in _SETTLED]
        return [await client.trial(name) for name in names]


def _write(path: Path, text: str) -> None:
    """Write the file whole or not at all."""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode(errors="replace"))
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise UsageError(f"{path} can't be written: {(error.strerror or str(error)).lower()}") from None
