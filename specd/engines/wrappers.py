"""What may stand in front of a server's own program in a unit's command line, and what can't be looked through."""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Launch", "Opaque", "find_launch", "find_opaque"]

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish"})
_CONTAINERS = frozenset({"docker", "podman", "nerdctl", "apptainer", "singularity", "enroot"})
_SCRIPT_ENDINGS = (".sh", ".bash", ".zsh")


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
    environment is found. `assignments` are the variables that `env` sets.
    """

    program_at: int
    wrapper: str = ""
    shaping: tuple[str, ...] = ()
    assignments: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Opaque:
    """Something a change can't be carried through: what it is, the text in which a server may be named, and where to
    put the change instead."""

    what: str
    text: str
    instead: str


def find_launch(argv: Sequence[str]) -> Launch:
    """Look through the transparent wrappers in front of a command line."""
    at = 0
    names: list[str] = []
    shaping: list[str] = []
    assignments: list[tuple[str, str]] = []
    while at < len(argv):
        name = posixpath.basename(argv[at])
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
    return Launch(at, ", ".join(names), tuple(shaping), tuple(assignments))


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


def find_opaque(argv: Sequence[str]) -> Opaque | None:
    """Say what at the end of the transparent wrappers hides the server's command line, None if nothing does."""
    place = find_launch(argv).program_at
    rest = argv[place:]
    if not rest:
        return None
    name = posixpath.basename(rest[0])
    text = " ".join(rest)
    if name in _SHELLS:
        command = _shell_command(rest)
        if command is not None:
            return Opaque(f"`{name} -c`", command, "inside the shell command of the unit")
        script = next((word for word in rest[1:] if not word.startswith("-")), "")
        return Opaque(f"the script {script}", text, f"in {script}, or start the server from the unit itself")
    if name in _CONTAINERS:
        return Opaque(f"`{name} run`", text, "behind the image in the container's command line")
    if name.endswith(_SCRIPT_ENDINGS):
        return Opaque(f"the script {rest[0]}", text, f"in {rest[0]}, or start the server from the unit itself")
    if name in {"-S", "--split-string"}:
        return Opaque("`env -S`", text, "inside the string that env splits")
    return None


def _shell_command(words: Sequence[str]) -> str | None:
    """Return the text after -c (also inside a cluster such as -lc); None when a script file is run instead."""
    for place, word in enumerate(words[1:], start=1):
        if not word.startswith("-"):
            return None
        if not word.startswith("--") and "c" in word[1:] and place + 1 < len(words):
            return words[place + 1]
    return None
