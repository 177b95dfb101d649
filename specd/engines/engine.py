"""Seam 3, the engine: its command line, start-up stages, failure classes, metrics and effective settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from specd.checks import Check
from specd.engines.programs import Programs
from specd.hosts.host import Host
from specd.settings import FlagValue

__all__ = [
    "NO_FILE_FLAGS",
    "Counters",
    "Engine",
    "Failure",
    "FileFlags",
    "FlagValue",
    "LogReader",
    "Observation",
    "ServerCommand",
    "Stage",
]


class Stage:
    """Names of the start-up stages that a log can show, in order; the daemon's states group them."""

    LAUNCH = "launch"
    CONFIG = "config"
    WEIGHTS = "weights"
    COMPILE = "compile"
    CAPTURE = "capture"
    SERVER = "server"
    ORDER = (LAUNCH, CONFIG, WEIGHTS, COMPILE, CAPTURE, SERVER)


@dataclass(frozen=True, slots=True)
class FileFlags:
    """Flags that a server reads from a file of its own, and the line of each; the command line wins over them."""

    path: str = ""
    flags: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)

    def where(self, flag: str) -> str:
        """Say where a flag stands."""
        return f"line {self.lines[flag]} of {self.path}" if flag in self.lines else self.path


NO_FILE_FLAGS = FileFlags()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """Where the server's own command line stands inside an opened one.

    `argv[:server_at]` is the program and its wrappers (`numactl ... /venv/bin/vllm serve`), `argv[server_at:]` the
    server's arguments. `flags` maps each flag (dashes, no leading --) to its parsed value (JSON decoded, True for a
    bare switch), those of `file_flags` among them. `model` is the path or name served from, `served_name` what clients
    must ask for.
    """

    engine: str
    server_at: int
    flags: Mapping[str, Any]
    model: str
    served_name: str
    address: str
    port: int
    wrapper: str = ""
    in_container: bool = False
    file_flags: FileFlags = NO_FILE_FLAGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one log line says: a stage reached, progress in it, or a fact (`facts`: version, checkpoint_bytes, ...)."""

    stage: str = ""
    done: float | None = None
    total: float | None = None
    finished: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a start or a run ended: a stable class, one sentence, the lines that show it, and a hint.

    Classes: bad-argument, bad-value, missing-file, port, gpu-memory, kv-cache, host-memory, distributed, compile, hub,
    unit (systemd's own status or timeout), engine-died, unexpected-exit, hang, no-token, killed, unknown.
    """

    kind: str
    sentence: str
    lines: tuple[str, ...] = ()
    hint: str = ""
    transient: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """An engine's counters at one moment, summed over its label sets; None where the engine shows no such series.

    Differences make sense only within one `process_start` (Unix seconds; None if not shown).
    """

    process_start: float | None = None
    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    accepted_by_position: tuple[float, ...] = ()
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    preemptions: float | None = None
    requests_finished: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None


class LogReader(Protocol):
    """Reads one invocation's log, line by line; keeps no more than it needs to explain a failure."""

    def feed(self, text: str) -> list[Observation]:
        """Take one journal record (it may hold carriage returns and several redraws) and say what it shows."""
        ...

    def failure(self) -> Failure | None:
        """Return the root cause seen so far, or None: terminal lines only, never a harmless line with the word
        error."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """Return what the log said of itself so far: version, speculative (method, tokens, ...), runner, cache hits,
        ..."""
        ...


class Engine(Protocol):
    """One kind of LLM server."""

    name: str
    uses_graphs: bool
    programs: Programs

    def recognise(self, argv: Sequence[str]) -> ServerCommand | None:
        """Find the server's command line in an opened one; None when it is not this engine's. Raises EngineError."""
        ...

    async def with_files(
        self, host: Host, command: ServerCommand, argv: Sequence[str], directory: str
    ) -> ServerCommand:
        """Return the command with the flags that it reads from files of its own; raises EngineError."""
        ...

    def change(
        self, argv: Sequence[str], flags: Mapping[str, FlagValue], file_flags: FileFlags = NO_FILE_FLAGS
    ) -> tuple[str, ...]:
        """Return argv with each flag set, replaced once in all its spellings, or removed; raises EngineError.

        One that stands in a file is set on the command line, which wins; it can't be removed from there.
        """
        ...

    def is_json(self, flag: str) -> bool:
        """True for a flag whose value is JSON."""
        ...

    def secrets(self, argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
        """Return the secret values in a command line and environment, to be masked wherever text is shown."""
        ...

    async def examine(
        self,
        host: Host,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        user: str,
        cwd: str,
        timeout_s: float,
        before: Sequence[str] = (),
    ) -> list[Check]:
        """Ask the engine installed on the host whether it would accept exactly this argv, and look for its files.

        `before` is the command line as it is now: what else the change would change is told, where it can be asked.
        Loads nothing, touches no GPU memory, time-boxed; what can't be asked is unchecked.
        """
        ...

    def reader(self) -> LogReader:
        """Return a fresh reader for one invocation's log."""
        ...

    def explain_exit(self, reader: LogReader, *, result: str, code: str, status: int) -> Failure:
        """Return why an invocation ended, from its log and from how the manager says it ended; `unknown` beats
        wrong."""
        ...

    def counters(self, exposition: str) -> Counters:
        """Parse a /metrics page."""
        ...

    def speculation_seen(self, reader: LogReader, counters: Counters | None) -> Mapping[str, Any] | None:
        """Return the speculation settings that the engine itself reports ({} for off), None when it does not tell."""
        ...

    def speculation_asked(self, command: ServerCommand) -> Mapping[str, Any]:
        """Return the speculation settings a command line asks for; {} for none."""
        ...
