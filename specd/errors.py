"""The errors a person can meet. Text is made here from fields, so that CLI, API and console say the same.

SpecdError
├── UsageError            bad words on the command line                       exit 2
├── ConfigError           config or trial file refused, with every problem    exit 2
├── NotFound              no such trial, service or host                      exit 2
├── Refused               a rule forbids it (verify, lock, state)             exit 4
│   └── Degraded          the daemon only reads its database now
├── DaemonUnreachable     no daemon answers on the socket                     exit 3
├── StoreError            the database can't be read or written
├── HostError             anything about one host
│   ├── HostUnreachable   no answer: unknown what happened; look again (retryable)
│   ├── HostKeyRejected   unknown or changed host key; never retried
│   ├── LoginRefused      authentication failed; never retried
│   ├── PrivilegeRefused  sudo wants a password, a terminal, or says no
│   ├── CommandFailed     a command ended with a status other than 0
│   ├── CommandTimedOut   a command did not end in time: unknown what it did (retryable)
│   ├── FileProblem       missing, read-only, no space, not permitted
│   └── BadAnswer         a host's tool printed something we can't read
├── UnitError             the unit is not what a service must be
├── EngineError           engine not recognised, flag can't be placed
├── BenchError            the benchmark process failed
└── InternalFault         a fault of specd itself
"""

from dataclasses import dataclass

__all__ = [
    "BadAnswer",
    "BenchError",
    "CommandFailed",
    "CommandTimedOut",
    "ConfigError",
    "DaemonUnreachable",
    "Degraded",
    "EngineError",
    "FileProblem",
    "HostError",
    "HostKeyRejected",
    "HostUnreachable",
    "InternalFault",
    "LoginRefused",
    "NotFound",
    "PrivilegeRefused",
    "Problem",
    "Refused",
    "SpecdError",
    "StoreError",
    "UnitError",
    "UsageError",
]


class SpecdError(Exception):
    """Root: `what` happened, on which host and unit, what is `serving` now, and what to do `next`."""

    code = "error"
    exit_code = 1
    retryable = False

    def __init__(self, what: str, *, host: str = "", unit: str = "", serving: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.host = host
        self.unit = unit
        self.serving = serving
        self.next_step = next_step

    def __str__(self) -> str:
        where = " ".join(part for part in (self.host and f"on {self.host}", self.unit and f"({self.unit})") if part)
        tail = [self.what + (f" {where}" if where and self.host not in self.what else "")]
        if self.serving:
            tail.append(f"now serving: {self.serving}")
        if self.next_step:
            tail.append(f"next: {self.next_step}")
        return "; ".join(tail)


class UsageError(SpecdError):
    """The command line makes no sense."""

    code = "usage"
    exit_code = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in a file: `line` counts from 1 (0: the file as a whole), `key` is the dotted path.

    `column` counts from 1 and is 0 where only the line is known.
    """

    file: str
    line: int
    key: str
    text: str
    column: int = 0

    def __str__(self) -> str:
        where = ":".join([self.file, *(str(number) for number in (self.line, self.column) if number)])
        return f"{where}: {self.key + ': ' if self.key else ''}{self.text}"


class ConfigError(SpecdError):
    """A config or trial file was refused; `problems` holds all of them."""

    code = "config"
    exit_code = 2

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class NotFound(SpecdError):
    """A name or id that nothing answers to."""

    code = "not-found"
    exit_code = 2


class Refused(SpecdError):
    """A rule forbids what was asked."""

    code = "refused"
    exit_code = 4


class Degraded(Refused):
    """The daemon can't store anything now, so it begins nothing."""

    code = "degraded"


class DaemonUnreachable(SpecdError):
    """No daemon answers."""

    code = "unreachable"
    exit_code = 3


class StoreError(SpecdError):
    """The database can't be read or written."""

    code = "store"


class HostError(SpecdError):
    """Something about one host."""

    code = "host"


class HostUnreachable(HostError):
    """No answer; what was asked may or may not have happened."""

    code = "host-unreachable"
    retryable = True


class HostKeyRejected(HostError):
    """The host's key is unknown or has changed."""

    code = "host-key"


class LoginRefused(HostError):
    """The host accepted none of our keys."""

    code = "login"


class PrivilegeRefused(HostError):
    """sudo refused, or wants a password or a terminal; `reason` is password, tty, or denied."""

    code = "sudo"

    def __init__(self, what: str, *, reason: str, host: str = "", next_step: str = "") -> None:
        super().__init__(what, host=host, next_step=next_step)
        self.reason = reason


class CommandFailed(HostError):
    """A command ended with a status other than 0; `stderr` is its last words, `argv` masked by the raiser."""

    code = "command"

    def __init__(self, argv: tuple[str, ...], status: int, stderr: str, *, host: str = "", stdout: str = "") -> None:
        super().__init__(f"{argv[0]} ended with status {status}: {stderr.strip()[-400:]}", host=host)
        self.argv = argv
        self.status = status
        self.stderr = stderr
        self.stdout = stdout


class CommandTimedOut(HostError):
    """A command did not end in time; what it did is unknown."""

    code = "command-timeout"
    retryable = True


class FileProblem(HostError):
    """A file can't be read or written; `reason` is missing, read-only, no-space, denied or other."""

    code = "file"

    def __init__(self, what: str, *, path: str, reason: str, host: str = "", next_step: str = "") -> None:
        super().__init__(what, host=host, next_step=next_step)
        self.path = path
        self.reason = reason


class BadAnswer(HostError):
    """A tool on the host printed what we can't read."""

    code = "bad-answer"


class UnitError(SpecdError):
    """The unit is missing, not a service, or not one that can be tried."""

    code = "unit"
    exit_code = 4


class EngineError(SpecdError):
    """The engine is not recognised, or a flag can't be placed."""

    code = "engine"
    exit_code = 4


class BenchError(SpecdError):
    """The benchmark could not be run; says nothing about the engine."""

    code = "benchmark"


class InternalFault(SpecdError):
    """Specd itself failed; its log has the traceback."""

    code = "internal"
