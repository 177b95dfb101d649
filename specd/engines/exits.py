"""Why an invocation ended, from how its manager says it ended and from its log; what is not known stays `unknown`."""

import re
import signal
from dataclasses import dataclass, replace

from specd.engines.engine import Failure, LogReader
from specd.engines.log_reader import RuleReader

__all__ = ["LogEnd", "explain", "log_end"]

# systemd.exec(5), "Process exit codes": what systemd itself failed to do before the program ran.
_SYSTEMD_STATUS = {
    200: ("chdir", "the working directory can't be entered"),
    201: ("nice", "the nice level can't be set"),
    202: ("fds", "file descriptors can't be set up"),
    203: ("exec", "the program can't be executed: missing, or not permitted"),
    204: ("memory", "memory ran out"),
    205: ("limits", "a resource limit can't be set"),
    206: ("oom-adjust", "the OOM score can't be set"),
    207: ("signal-mask", "the signal mask can't be set"),
    208: ("stdin", "standard input can't be set up"),
    209: ("stdout", "standard output can't be set up"),
    210: ("chroot", "the root directory can't be changed"),
    211: ("ioprio", "the I/O priority can't be set"),
    212: ("timerslack", "the timer slack can't be set"),
    213: ("securebits", "the secure bits can't be set"),
    214: ("setscheduler", "the scheduling policy can't be set"),
    215: ("cpuaffinity", "the CPU affinity can't be set"),
    216: ("group", "the group does not exist, or can't be used"),
    217: ("user", "the user does not exist, or can't be used"),
    218: ("capabilities", "capabilities can't be set"),
    219: ("cgroup", "the control group can't be set up"),
    220: ("setsid", "a session can't be made"),
    221: ("confirm", "the start was refused at the console"),
    222: ("stderr", "standard error can't be set up"),
    224: ("pam", "a PAM session can't be opened"),
    225: ("network", "the network namespace can't be set up"),
    226: ("namespace", "the mount namespace can't be set up: a path of the sandbox is missing"),
    227: ("no-new-privileges", "new privileges can't be forbidden"),
    228: ("seccomp", "the system call filter can't be applied"),
    229: ("selinux", "the SELinux context can't be set"),
    230: ("personality", "the execution domain can't be set"),
    231: ("apparmor", "the AppArmor profile can't be used"),
    232: ("address-families", "address families can't be restricted"),
    233: ("runtime-directory", "the runtime directory can't be made"),
    235: ("chown", "the ownership of a socket can't be changed"),
    236: ("smack", "the SMACK label can't be set"),
    237: ("keyring", "the kernel keyring can't be set up"),
    238: ("state-directory", "the state directory can't be made"),
    239: ("cache-directory", "the cache directory can't be made"),
    240: ("logs-directory", "the logs directory can't be made"),
    241: ("configuration-directory", "the configuration directory can't be made"),
    242: ("numa-policy", "the NUMA policy can't be set"),
    243: ("credentials", "a credential can't be set up"),
}
_RESULTS = {
    "timeout": (
        "the unit's own start or stop timeout ended it",
        "raise the unit's timeout; the engine did nothing wrong",
    ),
    "start-limit-hit": ("systemd refuses to start the unit: too many starts in a short time", "reset the failed state"),
    "watchdog": ("the unit's watchdog ended it: it sent no sign of life", ""),
    "resources": ("systemd could not start the unit: resources were missing", ""),
    "protocol": (
        "the unit did not behave as its Type= says",
        "an engine that never notifies needs Type=simple or exec",
    ),
    "exec-condition": ("a condition of the unit forbade the start", ""),
}
_CONTAINER_TOOL = re.compile(r"(?:Error response from daemon: |^Error: |^(?:docker|podman): )(?P<why>.+)")
_CONTAINER_WORDS = (
    (
        r"already in use by container|name \S+ is already in use",
        "unit",
        "an old container of that name is still present",
        "remove it first",
    ),
    (
        r"port is already allocated|address already in use",
        "port",
        "the container's port is in use already",
        "another server or container listens on it",
    ),
    (
        r"manifest unknown|not found: |No such image|pull access denied|unauthorized|image not known",
        "missing-file",
        "the container's image can't be had: {words}",
        "pull it before the trial",
    ),
    (
        r"no such file or directory|executable file not found|bind source path does not exist",
        "missing-file",
        "a path of the container is not there: {words}",
        "",
    ),
    (
        r"could not select device driver|nvidia-container|unresolvable CDI",
        "unit",
        "the container can't have the GPUs: {words}",
        "the host needs the NVIDIA container toolkit",
    ),
)
_NO_RESTART = "a unit with Restart=on-failure would stay down after this"
_CRASHES = frozenset({"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS", "SIGTRAP"})


@dataclass(frozen=True, slots=True)
class LogEnd:
    """What the log tells at the end: its root cause, else the exception it ends with, its last lines, and whether it
    announces an ordinary stop."""

    failure: Failure | None
    last_words: Failure | None
    last_lines: tuple[str, ...]
    is_stopping: bool


def log_end(reader: LogReader) -> LogEnd:
    """Return what a reader's log tells at its end."""
    if isinstance(reader, RuleReader):
        return LogEnd(reader.failure(), reader.last_words(), reader.last_lines(), reader.is_stopping)
    return LogEnd(reader.failure(), None, (), is_stopping=False)


def explain(log: LogEnd, *, result: str, code: str, status: int) -> Failure:
    """Return why an invocation ended that nobody asked to end.

    `result` is the unit's Result, `code` is exited, killed or dumped, `status` the exit status or signal number.
    """
    if result == "oom-kill":
        return _of(
            log,
            "host-memory",
            "the kernel's OOM killer ended a process of the unit",
            "lower host memory use, or raise MemoryMax",
        )
    if result in _RESULTS:
        sentence, hint = _RESULTS[result]
        return _of(log, "unit", sentence, hint)
    if code == "exited" and status in _SYSTEMD_STATUS and (log.failure is None or log.failure.kind == "unknown"):
        word, meaning = _SYSTEMD_STATUS[status]
        return _of(log, "unit", f"{meaning} (status {status}, {word})", "")
    if code == "exited":
        return _exited(log, status)
    if code in {"killed", "dumped"}:
        return _killed(log, status, dumped=code == "dumped")
    if log.failure is not None:
        return log.failure
    return _of(log, "unknown", f"it ended (result {result or 'not told'}), and its log does not say why", "")


def _exited(log: LogEnd, status: int) -> Failure:
    if status == 0:
        if log.failure is not None:
            return replace(
                log.failure,
                kind="unexpected-exit",
                sentence=f"unexpected exit (status 0): {log.failure.sentence}",
                hint=log.failure.hint or _NO_RESTART,
            )
        how = (
            "it shut down in an orderly way, though nobody here asked" if log.is_stopping else "nobody asked it to end"
        )
        return _of(
            log,
            "unexpected-exit",
            f"unexpected exit (status 0): {how}",
            _NO_RESTART,
        )
    cause = log.failure or log.last_words
    if cause is not None:
        return cause
    if status in {125, 126, 127}:
        refused = _container_refused(log)
        if refused is not None:
            return refused
    if status in {126, 127}:
        return _of(log, "unit", f"the command was not found or not executable (status {status})", "")
    if 128 < status < 128 + 65:
        return _killed(log, status - 128, dumped=False)
    return _of(log, "unknown", f"it exited with status {status}, and its log does not say why", "")


def _container_refused(log: LogEnd) -> Failure | None:
    """Return why docker or podman did not start a container; only their own words count."""
    words = next((found["why"] for line in log.last_lines if (found := _CONTAINER_TOOL.search(line))), None)
    if words is None:
        return None
    for pattern, kind, sentence, hint in _CONTAINER_WORDS:
        if re.search(pattern, words):
            return _of(log, kind, sentence.format(words=words[:200]), hint)
    return _of(log, "unit", f"the container was not started: {words[:200]}", "")


def _killed(log: LogEnd, number: int, *, dumped: bool) -> Failure:
    name = _signal_name(number)
    if log.failure is not None and log.failure.kind not in {"unknown", "killed"}:
        return log.failure
    if dumped or name in _CRASHES:
        return _of(log, "engine-died", f"the main process crashed ({name})", "")
    if name == "SIGKILL":
        return _of(
            log,
            "killed",
            "the main process was killed (SIGKILL)",
            "an operator, or the kernel's OOM killer: see the kernel log",
        )
    return _of(log, "killed", f"the main process was ended by {name}, not by specd", "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _of(log: LogEnd, kind: str, sentence: str, hint: str) -> Failure:
    lines = log.failure.lines if log.failure is not None and log.failure.lines else log.last_lines
    return Failure(kind=kind, sentence=sentence, lines=lines, hint=hint)
