"""One unit as it runs: what systemd does for a Type=simple service with KillMode=control-group, in its words."""

import asyncio
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass

from specd.supervisor.capture import Capture
from specd.supervisor.journal import Journal
from specd.supervisor.keeper import EXIT_CHDIR, EXIT_EXEC, Spawned, kill_below, spawn
from specd.supervisor.proc import Stat, descendants, process_table
from specd.supervisor.unit import BadUnit, UnitFile, base_environment, read_environment

__all__ = ["Service", "State"]

RESTART_DELAY_S = 0.1
RESTART_BURST = 5
RESTART_WINDOW_S = 10.0
RESCAN_S = 0.5
CLEAN_SIGNALS = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE}
REPORT_BYTES = 4096


@dataclass(slots=True)
class State:
    """What a client is told, in systemd's words; `code` is exited, killed, dumped or ""."""

    active: str = "inactive"
    sub: str = "dead"
    invocation: str = ""
    main_pid: int = 0
    result: str = "success"
    code: str = ""
    status: int = 0
    restarts: int = 0
    job: str = ""


class Service:
    """A unit's life. `persist` is called whenever the set of running invocations changes."""

    def __init__(self, file: UnitFile, journal: Journal, persist: Callable[[], None]) -> None:
        self.file = file
        self.journal = journal
        self.state = State()
        self.keeper = 0
        self.down = asyncio.Event()
        self.down.set()
        self._persist = persist
        self._running_file = file
        self._capture = Capture(journal, "")
        self._report = -1
        self._report_rest = b""
        self._main_ended = False
        self._stop_asked = False
        self._timer: asyncio.TimerHandle | None = None
        self._starts: deque[float] = deque(maxlen=RESTART_BURST)
        self._strays: set[int] = set()

    @property
    def is_down(self) -> bool:
        """True when nothing of the unit runs and nothing is about to."""
        return self.state.active in {"inactive", "failed"} and not self.state.job

    def start(self) -> None:
        """Start unless it runs or starts; one that is stopping starts again when it has stopped."""
        self._starts.clear()
        if self.state.active == "deactivating":
            self.state.job = "start"
            self.down.clear()
        elif self.state.active != "active":
            self.state.restarts = 0
            self._start()

    def stop(self) -> None:
        """SIGTERM to all of the unit's processes, SIGKILL to what is left after its stop timeout."""
        self.state.job = ""
        self._stop_asked = True
        if self.state.sub == "auto-restart":
            self._settle("inactive", "dead")
        elif self.state.active == "active":
            self._capture.say("stopping")
            self._terminate()

    def kill(self) -> None:
        """SIGKILL to all of the unit's processes, now."""
        kill_below(self.keeper)
        self.kill_strays()

    def stop_within(self, limit_s: float) -> None:
        """Stop with a shorter stop timeout than the unit's own, also when a stop is under way."""
        self.stop()
        if not self.is_down:
            self._arm(min(limit_s, self._running_file.stop_timeout_s), self._escalate)

    def clear_failure(self) -> None:
        """Forget a failed state and the restarts counted, as reset-failed does."""
        self._starts.clear()
        self.state.restarts = 0
        if self.state.active == "failed":
            self.state.active, self.state.sub, self.state.result = "inactive", "dead", "success"

    def members(self) -> list[Stat]:
        """List the unit's living processes, main process first."""
        if not self.keeper and not self._strays:
            return []
        table = process_table()
        found = descendants(self.keeper, table)
        for pid in self._strays:
            found += [stat for stat in (table.get(pid),) if stat is not None and stat.is_alive]
            found += descendants(pid, table)
        return sorted(found, key=lambda stat: stat.pid != self.state.main_pid)

    def as_json(self) -> dict[str, object]:
        """Return the state as a JSON object."""
        return asdict(self.state)

    def keeper_ended(self, strays: set[int]) -> None:
        """Take note that the keeper was reaped: the unit has no process but `strays`, orphans of a killed keeper."""
        self._read_report()
        if self.state.main_pid == 0 and not self._main_ended:
            self.state.result = "resources"
            self._capture.say("there could be no main process")
        elif not self._main_ended:
            # Only a keeper that was killed leaves without a word; the kernel killed the main process with it.
            self._main_exited(int(signal.SIGKILL))
        self.keeper = 0
        self._strays = strays
        if strays:
            self.kill_strays()
        else:
            self._emptied()

    def kill_strays(self) -> None:
        """SIGKILL what a killed keeper left behind."""
        for pid in list(self._strays):
            kill_below(pid)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def stray_ended(self, pid: int) -> None:
        """Take note that a stray was reaped; the unit is down with its last one."""
        if pid in self._strays:
            self._strays.discard(pid)
            if not self._strays:
                self._emptied()

    def adopt_strays(self, pids: set[int]) -> None:
        """Take more orphans of the killed keeper, whose parents have died meanwhile."""
        if self._strays and pids - self._strays:
            self._strays |= pids
            self.kill_strays()

    def _start(self) -> None:
        self._disarm()
        file = self._running_file = self.file
        self.state = State(restarts=self.state.restarts, invocation=os.urandom(16).hex())
        self._stop_asked = self._main_ended = False
        self._capture = Capture(self.journal, self.state.invocation)
        self.down.clear()
        self._starts.append(time.monotonic())
        try:
            own, _ = read_environment(file)
            environment = base_environment() | own | {"INVOCATION_ID": self.state.invocation}
            self.state.active, self.state.sub = "active", "running"
            # The invocation is on the disk before any process of it exists, so that a later supervisor can find it.
            self._persist()
            spawned = spawn(file.argv, environment, file.working_directory or environment["HOME"])
        except (BadUnit, OSError) as error:
            self._capture.say(f"can't start: {error}")
            self.state.result = "resources"
            self._settle("failed", "failed")
            return
        self._attach(spawned)
        self._persist()
        self._capture.say(f"started {file.description or file.name}")

    def _attach(self, spawned: Spawned) -> None:
        self.keeper = spawned.keeper
        self.state.main_pid = self._capture.pid = spawned.main
        self._report, self._report_rest = spawned.report, b""
        asyncio.get_running_loop().add_reader(spawned.report, self._read_report)
        self._capture.attach("stdout", spawned.stdout)
        self._capture.attach("stderr", spawned.stderr)

    def _read_report(self) -> None:
        while self._report >= 0:
            try:
                chunk = os.read(self._report, REPORT_BYTES)
            except BlockingIOError:
                return
            if not chunk:
                asyncio.get_running_loop().remove_reader(self._report)
                os.close(self._report)
                self._report = -1
            *lines, self._report_rest = (self._report_rest + chunk).split(b"\n")
            for line in lines:
                self._take_report(line.decode().split())

    def _take_report(self, words: list[str]) -> None:
        match words:
            case ["exit", status]:
                self._main_exited(int(status))
            case ["error", str() as status, step, number]:
                place = {EXIT_CHDIR: self._running_file.working_directory, EXIT_EXEC: self._running_file.argv[0]}
                self._capture.say(f"failed at step {step} with {place[int(status)]}: {os.strerror(int(number))}")

    def _main_exited(self, status: int) -> None:
        self._main_ended = True
        if os.WIFEXITED(status):
            self.state.code, self.state.status = "exited", os.WEXITSTATUS(status)
            ended = "success" if self.state.status == 0 else "exit-code"
        else:
            number = os.WTERMSIG(status)
            self.state.code, self.state.status = ("dumped" if os.WCOREDUMP(status) else "killed"), number
            ended = "success" if number in CLEAN_SIGNALS else "core-dump" if os.WCOREDUMP(status) else "signal"
        if self.state.result == "success":
            self.state.result = ended
        self.state.main_pid = 0
        if ended != "success" or not self._stop_asked:
            self._capture.say(f"main process ended, code={self.state.code}, status={self.state.status}")
        if self.state.active == "active":
            self._terminate()

    def _terminate(self) -> None:
        self.state.active, self.state.sub = "deactivating", "stop-sigterm"
        for stat in descendants(self.keeper, process_table()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(stat.pid, signal.SIGTERM)
                # A stopped process takes its SIGTERM only when it goes on.
                os.kill(stat.pid, signal.SIGCONT)
        self._arm(self._running_file.stop_timeout_s, self._escalate)

    def _escalate(self) -> None:
        """Kill what is left, and look again for what may have been forked meanwhile, until nothing is."""
        if self.state.sub != "stop-sigkill":
            self.state.sub = "stop-sigkill"
            self._capture.say("stop timed out; killing what is left")
            if self.state.result == "success":
                self.state.result = "timeout"
        kill_below(self.keeper)
        self.kill_strays()
        self._arm(RESCAN_S, self._escalate)

    def _emptied(self) -> None:
        """End the invocation: no process of it is left."""
        self._disarm()
        self._capture.drain()
        failed = self.state.result != "success"
        if self.state.job == "start":
            self.state.job = ""
            self.state.restarts = 0
            self._start()
        elif failed and not self._stop_asked and self._running_file.restart == "on-failure":
            self._restart_later()
        else:
            self._settle("failed" if failed else "inactive", "failed" if failed else "dead")

    def _restart_later(self) -> None:
        if len(self._starts) == RESTART_BURST and time.monotonic() - self._starts[0] < RESTART_WINDOW_S:
            self._capture.say("started too often in a short time")
            self.state.result = "start-limit-hit"
            self._settle("failed", "failed")
            return
        self.state.active, self.state.sub = "activating", "auto-restart"
        self._persist()
        self._arm(RESTART_DELAY_S, self._restart)

    def _restart(self) -> None:
        self.state.restarts += 1
        self._start()

    def _settle(self, active: str, sub: str) -> None:
        self._disarm()
        self.state.active, self.state.sub = active, sub
        self._capture.say(f"ended with result {self.state.result}" if active == "failed" else "ended")
        self._persist()
        self.journal.close()
        self.down.set()

    def _arm(self, delay_s: float, action: Callable[[], None]) -> None:
        self._disarm()
        self._timer = asyncio.get_running_loop().call_later(delay_s, action)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
