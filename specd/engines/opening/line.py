"""A unit's command line as the server's own process gets it, and the way back to the unit."""

import contextlib
import dataclasses
import posixpath
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from specd.engines.container import CONTAINER_PROGRAMS, ContainerRun, read_container
from specd.engines.opening.shell import ShellCommand, ShellText
from specd.engines.registry import starts_server
from specd.engines.wrappers import SHELLS, find_launch, shell_words
from specd.errors import CommandFailed, EngineError, PrivilegeRefused
from specd.hosts.host import Host

__all__ = ["Opened", "open_line"]

_LONGEST_SCRIPT = 100_000
_DEEPEST = 4
_ANY_SHELL = ("fish", "zsh", "csh", "tcsh")
_OTHER_CONTAINERS = frozenset({"apptainer", "singularity", "enroot"})
_SPLIT_OPTIONS = frozenset({"-S", "--split-string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """`words` are what the server's process gets, behind the wrappers that a change need not look at.

    `inside` says what had to be opened ("" for nothing), outermost first. `environment`, `directory` and `path` (to be
    put in front of PATH) are what stands there besides. `container` is the innermost `run`, where there is one.
    """

    argv: tuple[str, ...]
    words: tuple[str, ...]
    inside: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    path: str = ""
    container: ContainerRun | None = None
    _back: Callable[[tuple[str, ...]], tuple[str, ...]] = tuple

    def embed(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return the unit's command line whose server gets these words instead; raises EngineError."""
        return self.argv if tuple(words) == self.words else self._back(tuple(words))


async def open_line(host: Host, argv: Sequence[str], environment: Mapping[str, str], directory: str = "") -> Opened:
    """Look through shells, scripts and containers for the server's own words.

    `environment` and `directory` are the unit's. A command line in which nothing has to be opened is given back as it
    is, a server or not. Raises EngineError, saying where the change would have to go, and HostUnreachable.
    """
    return await _Opening(host).open(tuple(argv), environment, directory, _DEEPEST)


class _Opening:
    def __init__(self, host: Host) -> None:
        self._host = host

    async def open(self, argv: tuple[str, ...], environment: Mapping[str, str], directory: str, depth: int) -> Opened:
        launch = find_launch(argv)
        at = launch.program_at
        if launch.container_at is None and (at >= len(argv) or starts_server(argv)):
            return Opened(argv=argv, words=argv)
        if not depth:
            raise EngineError(
                f"the server is more than {_DEEPEST} shells deep", next_step="start it from the unit itself"
            )
        if launch.container_at is not None:
            return await self._container(argv, launch.container_at, environment, directory, depth)
        name = posixpath.basename(argv[at])
        if name in CONTAINER_PROGRAMS:
            # Only its reading says what is wrong with it.
            read_container(argv, at)
        if name in _OTHER_CONTAINERS:
            raise EngineError(f"`{name}` is not looked into", next_step="change its command line in the unit by hand")
        if name in _SPLIT_OPTIONS and at + 1 < len(argv):
            return await self._split(argv, at, environment, directory, depth)
        if name in SHELLS:
            return await self._shell(argv, at, environment, directory, depth)
        if (text := await self._script(argv[at], directory)) is not None:
            shell = _shebang(text)
            if shell is not None:
                return await self._text(
                    _Place(argv, at, (*shell, "-c"), argv[at], argv[at:]), text, environment, directory, depth
                )
        return Opened(argv=argv, words=argv)

    async def _split(
        self, argv: tuple[str, ...], at: int, environment: Mapping[str, str], directory: str, depth: int
    ) -> Opened:
        """`env -S`: what it splits may as well stand there split."""
        text = argv[at + 1]
        if any(character in text for character in "\\$#"):
            raise EngineError(
                "`env -S` splits a text with escapes or variables", next_step="write its words one by one"
            )
        flat = (*argv[:at], *shlex.split(text), *argv[at + 2 :])
        inner = await self.open(flat, environment, directory, depth - 1)
        return dataclasses.replace(inner, argv=argv, inside=("`env -S`", *inner.inside), _back=inner.embed)

    async def _shell(
        self, argv: tuple[str, ...], at: int, environment: Mapping[str, str], directory: str, depth: int
    ) -> Opened:
        shell = shell_words(argv[at:])
        name = posixpath.basename(argv[at])
        if shell is None:
            raise EngineError(f"the options of `{name}` in the unit can't be read")
        if name in _ANY_SHELL:
            raise EngineError(
                f"`{name}` is no shell whose quoting is known here", next_step="start the server with bash"
            )
        if shell.is_text:
            word_at = at + shell.rest_at
            place = _Place(argv, at, argv[at:word_at], "", argv[word_at + 1 :] or (argv[at],))
            return await self._text(place, argv[word_at], environment, directory, depth)
        if shell.rest_at >= len(argv) - at:
            raise EngineError(f"`{name}` in the unit is given nothing to run")
        script = argv[at + shell.rest_at]
        text = await self._script(script, directory, must=True)
        place = _Place(argv, at, (*argv[at : at + shell.rest_at], "-c"), script, argv[at + shell.rest_at :])
        return await self._text(place, text or "", environment, directory, depth)

    async def _text(
        self, place: "_Place", text: str, environment: Mapping[str, str], directory: str, depth: int
    ) -> Opened:
        command, inner = await self._server(place, text, environment, directory, depth)
        front = place.argv[: place.at]

        def back(words: tuple[str, ...]) -> tuple[str, ...]:
            changed = command.rewritten(inner.embed(words[place.at :]))
            where = place.words(changed)
            if place.script and ("BASH_SOURCE" in text or len(changed) > _LONGEST_SCRIPT):
                raise EngineError(
                    f"{place.script} can't be run from the unit itself",
                    next_step=f"change it in line {command.line} of it",
                )
            return where

        return dataclasses.replace(
            inner,
            argv=place.argv,
            words=(*front, *_with_path(inner.words, command.path)),
            inside=(place.told, *inner.inside),
            environment={**command.environment, **inner.environment},
            directory=inner.directory or command.directory,
            path=inner.path or command.path,
            _back=lambda words: back((*front, *_without_path(words[place.at :], command.path))),
        )

    async def _server(
        self, place: "_Place", text: str, environment: Mapping[str, str], directory: str, depth: int
    ) -> tuple[ShellCommand, Opened]:
        """Find the one command of a text that starts a server."""
        try:
            commands = list(ShellText(text, environment, place.arguments).commands())
        except EngineError as error:
            raise EngineError(
                f"{place.told}: {error.what}", next_step="start the server from the unit itself"
            ) from None
        found: list[tuple[ShellCommand, Opened]] = []
        for command in commands:
            if command.words and (inner := await self._inner(command, directory, depth)) is not None:
                found.append((command, inner))
        if len(found) != 1:
            words = "no LLM server is started" if not found else f"{len(found)} servers are started"
            raise EngineError(f"{words} in {place.told}", next_step="name the unit that runs the server itself")
        command, inner = found[0]
        where = f"line {command.line} of {place.told}"
        if command.inside:
            raise EngineError(
                f"the server is started inside a {command.inside} in {where}", next_step="change it there"
            )
        if loose := _loose(command, inner):
            raise EngineError(
                f"what {loose} becomes in {where} can't be told before it runs", next_step=f"make the change in {where}"
            )
        return command, inner

    async def _inner(self, command: ShellCommand, directory: str, depth: int) -> Opened | None:
        if starts_server(command.words):
            return Opened(argv=command.words, words=command.words)
        at = find_launch(command.words).program_at
        name = posixpath.basename(command.words[at]) if at < len(command.words) else ""
        if name not in SHELLS | CONTAINER_PROGRAMS and not name.endswith(".sh"):
            return None
        try:
            inner = await self.open(command.words, command.environment, command.directory or directory, depth - 1)
        except EngineError:
            return None
        return inner if starts_server(inner.words) else None

    async def _container(
        self, argv: tuple[str, ...], at: int, environment: Mapping[str, str], directory: str, depth: int
    ) -> Opened:
        run = read_container(argv, at)
        start = run.command_at
        flat = (*run.entrypoint, *argv[start:])
        inner = await self.open(flat, _inside_environment(run, environment), "", depth - 1)
        width = len(run.entrypoint)

        def back(words: tuple[str, ...]) -> tuple[str, ...]:
            return (*argv[:start], *inner.embed(words[start:])[width:])

        return dataclasses.replace(
            inner,
            argv=argv,
            words=(*argv[:start], *inner.words),
            inside=(f"`{posixpath.basename(argv[at])} run` of {run.image}", *inner.inside),
            container=inner.container or run,
            _back=back,
        )

    async def _script(self, path: str, directory: str, *, must: bool = False) -> str | None:
        """Return a shell script's text; None for what is no text, or is not there, unless it `must` be."""
        full = path if path.startswith("/") else posixpath.join(directory.lstrip("-!") or "/", path)
        command = ["head", "-c", str(_LONGEST_SCRIPT + 1), "--", full]
        read = await self._host.run(command, check=False)
        if read.status != 0:
            with contextlib.suppress(CommandFailed, PrivilegeRefused):
                read = await self._host.run(command, check=False, privileged=True)
        if must and (read.status != 0 or len(read.stdout) > _LONGEST_SCRIPT):
            why = "is longer than a script that is looked into" if read.status == 0 else read.error_text.strip()[-200:]
            raise EngineError(
                f"the script {full} can't be read: {why}", next_step="start the server from the unit itself"
            )
        if read.status != 0 or b"\0" in read.stdout or len(read.stdout) > _LONGEST_SCRIPT:
            return None
        return read.stdout.decode(errors="surrogateescape")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a shell's text stands: argv[at] begins the shell; `script` is the file it came from, "" for a word.

    `shell` are the words in front of the text when it is a word; `arguments` what the text gets, $0 first.
    """

    argv: tuple[str, ...]
    at: int
    shell: tuple[str, ...]
    script: str
    arguments: tuple[str, ...]

    @property
    def told(self) -> str:
        return f"the script {self.script}" if self.script else f"`{posixpath.basename(self.shell[0])} -c`"

    def words(self, text: str) -> tuple[str, ...]:
        """Return the whole command line with another text."""
        front = (*self.argv[: self.at], *self.shell, text)
        if self.script:
            return (*front, *self.arguments)
        return (*front, *self.argv[len(front) :])


def _shebang(text: str) -> tuple[str, ...] | None:
    """Return the shell that a script's first line names, with its options; None for another program."""
    first = text.split("\n", 1)[0]
    words = first[2:].split() if first.startswith("#!") else []
    if words and posixpath.basename(words[0]) == "env":
        words = words[1:]
        if words[:1] == ["-S"]:
            words = words[1:]
    return tuple(words) if words and posixpath.basename(words[0]) in SHELLS else None


def _loose(command: ShellCommand, inner: Opened) -> str:
    """Return a word of which it can't be told how many it becomes, "" for none."""
    return next((word for word in command.untold if not word.startswith('"') and '"$' not in word), "")


def _with_path(words: tuple[str, ...], path: str) -> tuple[str, ...]:
    """Return the words with the program found in the directory in front of PATH, as the shell finds it."""
    at = find_launch(words).program_at
    if not path or at >= len(words) or "/" in words[at]:
        return words
    return (*words[:at], posixpath.join(path, words[at]), *words[at + 1 :])


def _without_path(words: tuple[str, ...], path: str) -> tuple[str, ...]:
    at = find_launch(words).program_at
    if not path or at >= len(words) or not words[at].startswith(f"{path}/"):
        return words
    return (*words[:at], words[at].removeprefix(f"{path}/"), *words[at + 1 :])


def _inside_environment(run: ContainerRun, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a container is given by name; those of its image are not known."""
    given: dict[str, str] = {}
    for text in (*run.options.get("-e", ()), *run.options.get("--env", ())):
        name, equals, value = text.partition("=")
        if equals:
            given[name] = value
        elif name in environment:
            given[name] = environment[name]
    return given
