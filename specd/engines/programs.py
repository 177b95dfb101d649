"""Finding a server's program in a unit's command line, and what the programs' own command lines share."""

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specd.engines.wrappers import Launch, find_launch

__all__ = ["Found", "Programs", "find_program", "reachable_address"]

_PYTHON = re.compile(r"(python|pypy)[0-9.]*t?$")
_PYTHON_VALUED = frozenset({"-X", "-W", "--check-hash-based-pycs"})


@dataclass(frozen=True, slots=True)
class Programs:
    """How one engine is started.

    `executable` and `module` say how many words behind the program's name, or behind `-m NAME` or a script's path,
    belong to the program and not to the server (`serve`); None where it is not this engine.
    """

    engine: str
    executable: Callable[[str, Sequence[str]], int | None]
    module: Callable[[str, Sequence[str]], int | None]


@dataclass(frozen=True, slots=True)
class Found:
    """A server's program: argv[program_at] starts it, argv[server_at:] are the server's own words.

    `python` is the interpreter named on the command line, "" where the program is a script or binary of its own.
    """

    launch: Launch
    program_at: int
    server_at: int
    python: str = ""


def find_program(argv: Sequence[str], programs: Programs) -> Found | None:
    """Find this engine's program behind transparent wrappers."""
    return _direct(argv, find_launch(argv), programs)


def _direct(argv: Sequence[str], launch: Launch, programs: Programs) -> Found | None:
    at = launch.program_at
    if at >= len(argv):
        return None
    if argv[at] in {"-m", "--module"} and at + 1 < len(argv):
        own = programs.module(argv[at + 1], argv[at + 2 :])
        return None if own is None else Found(launch, at, at + 2 + own)
    name = posixpath.basename(argv[at])
    if not _PYTHON.fullmatch(name):
        own = programs.executable(argv[at], argv[at + 1 :])
        return None if own is None else Found(launch, at, at + 1 + own)
    place = at + 1
    while place < len(argv) and argv[place].startswith("-") and argv[place] != "-m":
        if argv[place] == "-c":
            return None
        place += 2 if argv[place] in _PYTHON_VALUED else 1
    if place < len(argv) and argv[place] == "-m":
        if place + 1 >= len(argv):
            return None
        own = programs.module(argv[place + 1], argv[place + 2 :])
        return None if own is None else Found(launch, at, place + 2 + own, argv[at])
    if place >= len(argv):
        return None
    own = programs.executable(argv[place], argv[place + 1 :])
    return None if own is None else Found(launch, at, place + 1 + own, argv[at])


def reachable_address(listens_on: str) -> str:
    """Return the address on which a server that listens there can be reached from its own host."""
    if listens_on in {"", "0.0.0.0", "*"}:
        return "127.0.0.1"
    return "::1" if listens_on in {"::", "[::]"} else listens_on
