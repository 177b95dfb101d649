"""`docker run` and its kin in a unit: where the server's own words stand, and what is different around them."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specd.checks import Check
from specd.errors import EngineError

__all__ = ["CONTAINER_PROGRAMS", "ContainerRun", "container_checks", "read_container", "with_environment"]

CONTAINER_PROGRAMS = frozenset({"docker", "podman", "nerdctl"})
# Options without a value; every other one takes the next word unless it has `=`.
_SWITCHES = frozenset(
    {"--rm", "--detach", "-d", "--interactive", "-i", "--tty", "-t", "--init", "--privileged", "--read-only", "--rmi"}
    | {"--no-healthcheck", "--oom-kill-disable", "--publish-all", "-P", "--replace", "--quiet", "-q", "--systemd"}
    | {"--disable-content-trust", "--env-host", "--http-proxy", "--no-hostname", "--no-hosts", "--tls-verify"}
    | {"--sig-proxy", "--debug", "-D", "--tls", "--tlsverify", "--remote", "-r", "--help"}
)
_CLUSTERED = re.compile(r"-[ditqP]{2,}$")
# The program that an image starts by itself, by a part of its name.
_ENTRYPOINTS = (
    (re.compile(r"(^|/)(vllm-openai|vllm-openai-[\w.-]+|vllm-cpu[\w.-]*|vllm)(:|@|$)"), ("vllm", "serve")),
    (re.compile(r"(^|/)llama\.cpp:(full-)?server"), ("llama-server",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRun:
    """The parts of a `run`: argv[:options_at] is the client, then options, the image, and from `command_at` the words
    that the image gets. `entrypoint` starts inside without standing there."""

    options_at: int
    image_at: int
    command_at: int
    image: str
    entrypoint: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_on_host_network(self) -> bool:
        """True where the server's port is the host's own."""
        return "host" in (*self.options.get("--network", ()), *self.options.get("--net", ()))

    def published(self, port: int) -> tuple[str, int] | None:
        """Return address and port of the host that lead to a port inside; None where none does."""
        if self.is_on_host_network:
            return "", port
        for text in (*self.options.get("-p", ()), *self.options.get("--publish", ())):
            outer, _, inner = text.removesuffix("/tcp").rpartition(":")
            address, _, outer_port = outer.rpartition(":")
            if inner == str(port) and outer_port.isdigit():
                return address.strip("[]"), int(outer_port)
        return None

    def host_path(self, path: str) -> str | None:
        """Return where a path inside lies on the host, by the directories that are bound; None where none is."""
        binds = [text.split(":")[:2] for key in ("-v", "--volume") for text in self.options.get(key, ())]
        for text in self.options.get("--mount", ()):
            given = dict(part.partition("=")[::2] for part in text.split(","))
            if given.get("type", "bind") == "bind":
                inside = given.get("target") or given.get("dst") or given.get("destination") or ""
                binds.append([given.get("source") or given.get("src") or "", inside])
        for outer, inner in sorted((bind for bind in binds if len(bind) == 2), key=lambda bind: -len(bind[1])):
            if outer.startswith("/") and (path == inner or path.startswith(inner.rstrip("/") + "/")):
                return outer.rstrip("/") + path[len(inner.rstrip("/")) :]
        return None


def read_container(argv: Sequence[str], at: int) -> ContainerRun:
    """Read the `run` that begins at argv[at]; raises EngineError for one that a unit's main process does not stand
    for."""
    name = posixpath.basename(argv[at])
    place = _skip_globals(argv, at + 1)
    words = tuple(argv[place : place + 2])
    place += 2 if words == ("container", "run") else 1
    if words[:1] != ("run",) and words != ("container", "run"):
        raise EngineError(f"`{name} {' '.join(words)}` is not a `run` of a server")
    options_at, found = place, dict[str, list[str]]()
    while place < len(argv) and argv[place].startswith("-"):
        option, equals, value = argv[place].partition("=")
        if equals:
            found.setdefault(option, []).append(value)
        elif option in _SWITCHES or _CLUSTERED.fullmatch(option):
            for each in [option] if option in _SWITCHES else [f"-{letter}" for letter in option[1:]]:
                found.setdefault(each, []).append("")
        elif not option.startswith("--") and len(option) > 2:
            found.setdefault(option[:2], []).append(option[2:])
        else:
            place += 1
            found.setdefault(option, []).append(argv[place] if place < len(argv) else "")
        place += 1
    if place >= len(argv):
        raise EngineError(f"`{name} run` names no image")
    if {"-d", "--detach"} & {key for key, values in found.items() if "false" not in values}:
        raise EngineError(
            f"`{name} run` detaches, so the unit's process is not the server's and its end is not seen",
            next_step="run it in the foreground: take -d away",
        )
    image, rest = argv[place], tuple(argv[place + 1 :])
    entrypoint = _entrypoint(image, rest, [word for word in found.get("--entrypoint", []) if word])
    return ContainerRun(
        options_at=options_at,
        image_at=place,
        command_at=place + 1,
        image=image,
        entrypoint=entrypoint,
        options={key: tuple(values) for key, values in found.items()},
    )


def _skip_globals(argv: Sequence[str], place: int) -> int:
    while place < len(argv) and argv[place].startswith("-"):
        word = argv[place]
        place += 1 if "=" in word or word in _SWITCHES else 2
    return place


def _entrypoint(image: str, command: Sequence[str], asked: Sequence[str]) -> tuple[str, ...]:
    if asked:
        return (asked[-1],)
    own = next((words for pattern, words in _ENTRYPOINTS if pattern.search(image)), ())
    # Some images want the sub-command said.
    return own[:1] if own and tuple(command[: len(own) - 1]) == own[1:] and len(own) > 1 else own


def with_environment(argv: Sequence[str], env: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the command line with variables set for the container's process, or, where None, no longer given to it."""
    launch_at = next(at for at, word in enumerate(argv) if posixpath.basename(word) in CONTAINER_PROGRAMS)
    run = read_container(argv, launch_at)
    kept: list[str] = []
    place = run.options_at
    while place < run.image_at:
        width = 2 if argv[place] in {"-e", "--env"} else 1
        name = _variable(argv[place : place + width])
        if name is None or name not in env:
            kept += argv[place : place + width]
        place += width
    new = [word for name, value in env.items() if value is not None for word in ("--env", f"{name}={value}")]
    return (*argv[: run.options_at], *kept, *new, *argv[run.image_at :])


def _variable(words: Sequence[str]) -> str | None:
    """Return the name of the variable that an option gives, None for another option."""
    if words[0] in {"-e", "--env"}:
        return words[1].partition("=")[0] if len(words) > 1 else None
    option, equals, text = words[0].partition("=")
    if option == "--env" and equals:
        return text.partition("=")[0]
    if words[0].startswith("-e") and not words[0].startswith("--"):
        return words[0][2:].partition("=")[0]
    return None


def container_checks(run: ContainerRun, unit_text: str) -> list[Check]:
    """Check that a unit with a `run` can be started again and again, and starts the same each time."""
    before = [line.partition("=")[2] for line in unit_text.splitlines() if line.startswith("ExecStartPre=")]
    name = next(iter(run.options.get("--name", ())), "")
    checks = []
    goes = {"--rm", "--replace"} & run.options.keys() or any(" rm " in line and name in line for line in before)
    if name and not goes:
        fix = f"add --rm, or ExecStartPre=-/usr/bin/docker rm -f {name}"
        checks.append(Check.failed("container.name", f"{name} stays after its end: the next start ends with 125", fix))
    elif name:
        checks.append(Check.passed("container.name", f"{name} is free again after its end"))
    if pulled := [line for line in before if " pull " in line]:
        words = f"each start may bring another image ({pulled[0].strip()[:120]}): then other things differ, too"
        checks.append(Check.warning("container.image", words, "name the image by its digest while trials go on"))
    return checks
