"""What may stand in front of a server's own program in a unit's command line, and how a shell's own words are read."""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

from specd.engines.container import CONTAINER_PROGRAMS, ContainerRun, read_container
from specd.errors import EngineError

__all__ = ["SHELLS", "Launch", "ShellWords", "find_launch", "shell_words"]

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "csh", "tcsh"})
# Options of a shell that take the next word; a cluster may end with such a one (`-euo pipefail`).
_SHELL_VALUED = frozenset({"--rcfile", "--init-file"})


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """A program that runs the command after it: options that take a word, and words before that command.

    `shapes` says that it decides which program or environment is found, so a question to the engine needs it too.
    """

    valued: frozenset[str] = frozenset()
    subcommand: str = ""
    positionals: int = 0
    assignments: bool = False
    shapes: bool = False


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CONDA = _Wrapper(_names("-n --name -p --prefix --cwd"), subcommand="run", shapes=True)
_WRAPPERS = {
    "env": _Wrapper(_names("-u --unset -C --chdir"), assignments=True),
    "numactl": _Wrapper(
        _names(
            "-i --interleave -N --cpunodebind -C --physcpubind -m --membind -p --preferred -P --preferred-many "
            "-w --weighted-interleave"
        )
    ),
    "taskset": _Wrapper(positionals=1),
    "nice": _Wrapper(_names("-n --adjustment")),
    "ionice": _Wrapper(_names("-c --class -n --classdata")),
    "chrt": _Wrapper(_names("-T --sched-runtime -P --sched-period -D --sched-deadline"), positionals=1),
    "stdbuf": _Wrapper(_names("-i --input -o --output -e --error")),
    "setpriv": _Wrapper(
        _names(
            "--ambient-caps --inh-caps --bounding-set --ruid --euid --rgid --egid --reuid --regid --groups "
            "--securebits --pdeathsig --selinux-label --apparmor-profile"
        )
    ),
    "setsid": _Wrapper(),
    "nohup": _Wrapper(),
    "prlimit": _Wrapper(),
    "time": _Wrapper(_names("-f --format -o --output")),
    "tini": _Wrapper(_names("-p -e")),
    "dumb-init": _Wrapper(_names("--rewrite -r")),
    "systemd-inhibit": _Wrapper(),
    "uv": _Wrapper(
        _names(
            "--python -p --project --directory --with --with-editable --with-requirements --extra --group --only-group "
            "--no-group --env-file --package --index --default-index --index-url --extra-index-url --cache-dir "
            "--config-file --color"
        ),
        subcommand="run",
        shapes=True,
    ),
    "poetry": _Wrapper(_names("-C --directory -P --project"), subcommand="run", shapes=True),
    "conda": _CONDA,
    "mamba": _CONDA,
    "micromamba": _CONDA,
}


@dataclass(frozen=True, slots=True)
class Launch:
    """The program behind the wrappers: argv[program_at:] is its command line.

    `wrapper` names the wrappers, outermost first; `shaping` are the words in front that decide which program or
    environment is found. `assignments` are the variables that `env` sets. `container_at` is where a container's client
    begins, None where there is none.
    """

    program_at: int
    wrapper: str = ""
    shaping: tuple[str, ...] = ()
    assignments: tuple[tuple[str, str], ...] = ()
    container_at: int | None = None


@dataclass(frozen=True, slots=True)
class ShellWords:
    """A shell's own words: words[rest_at] is the text it runs (`is_text`) or the script's path; what follows are its
    arguments, $0 first."""

    rest_at: int
    is_text: bool


def find_launch(argv: Sequence[str]) -> Launch:
    """Look through the transparent wrappers in front of a command line."""
    at = 0
    names: list[str] = []
    shaping: list[str] = []
    assignments: list[tuple[str, str]] = []
    container_at: int | None = None
    while at < len(argv):
        name = posixpath.basename(argv[at])
        if name in CONTAINER_PROGRAMS and container_at is None and (run := _container(argv, at)) is not None:
            names.append(f"{name} run")
            container_at, at = at, run.command_at
            continue
        wrapper = _WRAPPERS.get(name)
        after = _after_wrapper(wrapper, argv, at) if wrapper else None
        if wrapper is None or after is None or after >= len(argv):
            break
        names.append(f"{name} {wrapper.subcommand}".strip())
        if wrapper.shapes:
            shaping.extend(argv[at:after])
        if wrapper.assignments:
            pairs = (word.partition("=") for word in argv[at + 1 : after] if _ASSIGNMENT.match(word))
            assignments.extend((key, value) for key, _, value in pairs)
        at = after
    return Launch(at, ", ".join(names), tuple(shaping), tuple(assignments), container_at)


def _container(argv: Sequence[str], at: int) -> ContainerRun | None:
    try:
        return read_container(argv, at)
    except EngineError:
        return None


def _after_wrapper(wrapper: _Wrapper, argv: Sequence[str], at: int) -> int | None:
    """Return where the wrapped command starts; None where the wrapper's form is not the one that runs a command."""
    place = at + 1
    if wrapper.subcommand:
        place = _skip_options(wrapper, argv, place)
        if place >= len(argv) or argv[place] != wrapper.subcommand:
            return None
        place += 1
    place = _skip_options(wrapper, argv, place)
    for _ in range(wrapper.positionals):
        place = _skip_options(wrapper, argv, place + 1)
    while wrapper.assignments and place < len(argv) and _ASSIGNMENT.match(argv[place]):
        place += 1
    return place


def _skip_options(wrapper: _Wrapper, argv: Sequence[str], place: int) -> int:
    while place < len(argv) and argv[place].startswith("-"):
        word = argv[place]
        if word == "--":
            return place + 1
        if word in {"-S", "--split-string", "-m", "--module"} and word not in wrapper.valued:
            return place
        place += 2 if word in wrapper.valued else 1
    return place


def shell_words(words: Sequence[str]) -> ShellWords | None:
    """Read what stands between a shell's name and what it runs; None where nothing is left to run."""
    at, is_text = 1, False
    while at < len(words) and words[at][:1] in {"-", "+"} and words[at] not in {"-", "--"}:
        word = words[at]
        if word.startswith("--"):
            at += 2 if word in _SHELL_VALUED else 1
            continue
        is_text = is_text or (word[0] == "-" and "c" in word)
        at += 1 + sum(letter in "oO" for letter in word[1:])
    if at < len(words) and words[at] in {"-", "--"}:
        at += 1
    return ShellWords(at, is_text) if at < len(words) else None
