"""Runs one command: finds its function, turns errors into words on stderr and an exit status."""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, cast

from specd.cli.options import parse

if TYPE_CHECKING:
    import argparse

    from specd.errors import SpecdError

__all__ = ["run"]

_INTERRUPTED = 130


def run(words: list[str]) -> int:
    """Run the command line `words`; returns the exit status, never a traceback for what a user can do wrong."""
    _fill_standard_streams()
    # Names and logs may hold anything; what the locale can't say becomes a question mark, not an error.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        args = parse(words)
        return _call(args)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough. What is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _fill_standard_streams() -> None:
    """Put /dev/null where standard input, output or error is closed; the next file opened would take its place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8")  # noqa: SIM115


def _call(args: "argparse.Namespace") -> int:
    from specd.errors import SpecdError

    module, _, name = args.function.partition(":")
    try:
        function = cast("Callable[[argparse.Namespace], int]", getattr(import_module(module), name))
        status = function(args)
        sys.stdout.flush()
        return status
    except SpecdError as error:
        sys.stdout.flush()
        _explain(error)
        return error.exit_code


def _explain(error: "SpecdError") -> None:
    from specd.cli.text import clean
    from specd.errors import ConfigError

    lines = str(error).splitlines() or [error.code]
    problems = getattr(error, "problems", [])
    if isinstance(error, ConfigError):
        lines.append(f"{len(problems)} problem{'s' if len(problems) != 1 else ''}; nothing was done")
    elif problems:
        # The daemon's message may hold them already.
        listed = [_problem_text(problem) for problem in problems if isinstance(problem, dict)]
        lines += [text for text in listed if not any(text in line for line in lines)]
    prefix = "specd: "
    for line in lines:
        sys.stderr.write(prefix + clean(line, lines=True) + "\n")
        prefix = ""


def _problem_text(problem: "dict[str, object]") -> str:
    from specd.errors import Problem

    file, key, text = (str(problem.get(name) or "") for name in ("file", "key", "text"))
    line = problem.get("line")
    return str(Problem(file, line if isinstance(line, int) else 0, key, text))
