"""Which trial runs when: one at a time for each service, in the order of submission; owns the trials' tasks."""

import asyncio
from collections.abc import Callable

import structlog

from specd.bench.builtin import BuiltinBenchmark
from specd.bus import Bus
from specd.deadline import Deadline
from specd.errors import NotFound, Refused, SpecdError, StoreError
from specd.fleet import Fleet
from specd.phases import Context, Step
from specd.phases.claim import our_claim
from specd.phases.stand_in import stand_in
from specd.services.service import Claim
from specd.store import Store, TrialRow
from specd.trial import TrialRun
from specd.window import Windows
from states.events import NoteAdded, TaskRestarted, TrialMoved, TrialSubmitted
from states.table import PARKED, TERMINAL, Outcome, State, Trigger

__all__ = ["Scheduler"]

log = structlog.get_logger()

_RETRY_S = 5.0
_STOP_S = 2.5
_WINDOW_LOOK_S = 15.0


class Scheduler:
    """Takes up open trials at the start, runs queued ones when their service is free, and steers running ones."""

    def __init__(self, fleet: Fleet, store: Store, bus: Bus) -> None:
        self.fleet = fleet
        self._store = store
        self._bus = bus
        self._runs: dict[str, TrialRun] = {}
        self._tasks: dict[str, asyncio.Task[State]] = {}
        self._look = asyncio.Event()
        self._stopping = False
        self._left: list[str] = []
        self._told_waiting: set[str] = set()

    def take_up(self) -> tuple[str, ...]:
        """Continue every open trial that is past the queue; returns their ids."""
        rows = [row for row in self._store.open_trials() if row.state not in PARKED and row.state is not State.QUEUED]
        for row in rows:
            try:
                self._begin(row, resumed=True)
            except SpecdError as error:
                text = f"the open trial {row.id} ({row.state.value}) can't be taken up: {error}"
                self._bus.emit(NoteAdded(trial=row.id, service=row.service, level="alarm", text=text))
        self._look.set()
        return tuple(row.id for row in rows)

    async def run(self) -> None:
        """Start queued trials as services become free; never returns."""
        while True:
            await self._look.wait()
            self._look.clear()
            try:
                self._start_queued()
            except StoreError as error:
                log.warning("scheduler.not-started", error=str(error))
                asyncio.get_running_loop().call_later(_RETRY_S, self._look.set)

    def _start_queued(self) -> None:
        """Start the next trial of each free service; none while the disk has no room for what it would store."""
        if self._store.database.problem or self._store.database.is_short:
            return
        busy = {row.service for row in self._store.open_trials() if row.state is not State.QUEUED}
        for row in self._store.open_trials():
            if row.state is State.QUEUED and row.service not in busy and row.id not in self._runs:
                busy.add(row.service)
                if self._is_open(row):
                    self._start(row)

    def _is_open(self, row: TrialRow) -> bool:
        """True unless a maintenance window has to be waited for; a rehearsal disturbs nobody."""
        service = self.fleet.config.services.get(row.service)
        if service is None or row.spec.rehearsal:
            return True
        windows = Windows(service.windows)
        if windows.left_s() is not None:
            self._told_waiting.discard(row.id)
            return True
        if row.id not in self._told_waiting:
            self._told_waiting.add(row.id)
            text = f"waits for the window of {row.service}, which opens {windows.opens_words()}"
            self._bus.emit(NoteAdded(trial=row.id, service=row.service, level="info", text=text))
        # Clocks are set and machines sleep: the calendar is looked at again and again.
        asyncio.get_running_loop().call_later(_WINDOW_LOOK_S, self._look.set)
        return False

    def submitted(self, rows: list[TrialRow]) -> None:
        """Tell about new trials and look for work."""
        for row in rows:
            self._bus.emit(TrialSubmitted(trial=row.id, service=row.service, name=row.name, host=row.host))
        self._look.set()

    def find(self, trial: str) -> TrialRun | None:
        """Return the run of a trial that is at work."""
        return self._runs.get(trial)

    def cancel(self, row: TrialRow, by: str, why: str) -> None:
        """End a trial; raises Refused where there is nothing to cancel."""
        run = self._runs.get(row.id)
        if run is None and row.state is State.QUEUED:
            self._withdraw(row, f"cancel asked by {by}" + (f": {why}" if why else ""))
            return
        if run is None and row.service not in self.fleet.config.services and row.state not in TERMINAL:
            raise Refused(
                f"trial {row.id} is in {row.state.value}, but {self.fleet.config.path} no longer has {row.service}",
                next_step=f"put the service back as it was and restart the daemon: it takes the trial up on {row.host}",
            )
        if run is None or not run.cancel(by, why):
            state = run.machine.state if run else row.state
            raise Refused(
                f"trial {row.id} is in {state.value}; there is nothing to cancel",
                next_step="`specd rollback SERVICE` retries a failed rollback or takes a kept candidate back",
            )

    def _withdraw(self, row: TrialRow, cause: str) -> None:
        """End a trial that nothing was done for yet; its service need not be in the config any more."""
        event = TrialMoved(
            trial=row.id,
            service=row.service,
            source=State.QUEUED.value,
            trigger=Trigger.CANCEL.value,
            target=State.WITHDRAWN.value,
            cause=cause,
            outcome=Outcome.CANCELLED.value,
        )
        moved = self._store.move(
            row.id, State.QUEUED, Trigger.CANCEL, State.WITHDRAWN, event=event, cause=cause, outcome=Outcome.CANCELLED
        )
        self._bus.publish(moved)
        self._look.set()

    def rollback(self, service: str, by: str, why: str = "") -> str:
        """Bring a service's baseline back: from a running trial, a kept candidate, or a failed rollback. Returns the
        id."""
        self.fleet.service(service)
        row = self._store.holding(service)
        if row is None:
            raise Refused(f"no trial holds {service}", serving=f"the baseline of {service}", next_step="nothing to do")
        run = self._runs.get(row.id)
        if run is None or row.state in TERMINAL | PARKED:
            run = self._begin(row, moving=Step(Trigger.ROLLBACK, why or f"rollback asked by {by}"))
        elif run.machine.state is State.ROLLBACK:
            log.info("rollback.already", trial=row.id)
        elif not run.cancel(by, "", Trigger.ROLLBACK) and not run.cancel(by, "rollback of the service"):
            raise Refused(f"trial {row.id} is in {run.machine.state.value} and can't be rolled back now")
        return row.id

    async def claim_on(self, service: str) -> Claim | None:
        """Return who drives a service, as its host has it; None for nobody."""
        settings = self.fleet.service(service)
        return await self.fleet.manager(settings).claimed(settings.unit)

    async def take_over(self, service: str, by: str) -> Claim | None:
        """Take another daemon's claim on a service; returns the one that was taken, None when there was none."""
        settings = self.fleet.service(service)
        before = await self.claim_on(service)
        if before is None or before.installation == self._store.installation:
            return None
        held = self._store.holding(service)
        ours = our_claim(settings.unit, self._store.installation, held.id if held else "", settings.guard.lease_s)
        await self.fleet.manager(settings).claim(ours, take=True)
        text = f"{by} took over {settings.unit} from {before.words}"
        self._bus.emit(NoteAdded(trial=held.id if held else None, service=service, level="alarm", text=text))
        return before

    def context(self, row: TrialRow) -> Callable[[Deadline, Callable[[], State]], Context]:
        """Return a maker of the trial's context; raises NotFound when the config no longer has its service."""
        real = service = self.fleet.service(row.service)
        if row.spec.rehearsal:
            service = stand_in(service, row.id)
        name = row.spec.benchmark or service.benchmark
        bench = self.fleet.config.benchmarks.get(name)
        if bench is None:
            raise NotFound(f"no benchmark {name!r} in {self.fleet.config.path}")

        def make(deadline: Deadline, machine_state: Callable[[], State]) -> Context:
            return Context(
                row=row,
                service=service,
                real_service=real,
                bench=bench,
                host=self.fleet.host(service.host),
                manager=self.fleet.manager(service),
                benchmark=BuiltinBenchmark(),
                store=self._store,
                bus=self._bus,
                deadline=deadline,
                machine_state=machine_state,
            )

        return make

    def _start(self, row: TrialRow) -> None:
        try:
            self._begin(row)
        except StoreError:
            raise
        except SpecdError as error:
            log.error("trial.not-started", trial=row.id, error=str(error))
            self._bus.emit(NoteAdded(trial=row.id, service=row.service, level="alarm", text=f"can't start: {error}"))

    def _begin(self, row: TrialRow, *, resumed: bool = False, moving: Step | None = None) -> TrialRun:
        run = TrialRun(self.context(row), row.state)
        if row.state is State.QUEUED:
            run.move(Step(Trigger.START, "the service is free"))
        if moving is not None:
            run.move(moving)
        before = self._tasks.get(row.id)
        self._runs[row.id] = run
        task = asyncio.create_task(_after(before, run, resumed=resumed), name=f"trial {row.id}")
        self._tasks[row.id] = task
        task.add_done_callback(lambda done: self._ended(row.id, done))
        return run

    def _ended(self, trial: str, task: asyncio.Task[State]) -> None:
        if self._tasks.get(trial) is task:
            del self._runs[trial], self._tasks[trial]
        if not task.cancelled() and (error := task.exception()) is not None and not self._stopping:
            # The database said no, or a fault of ours: the host goes on as it is, and the guard on it keeps its lease.
            log.error("trial.task-died", trial=trial, exc_info=error)
            asyncio.get_running_loop().call_later(_RETRY_S, self._again, trial, repr(error))
        self._look.set()

    def _again(self, trial: str, error: str) -> None:
        if self._stopping or trial in self._runs:
            return
        try:
            row = self._store.trial(trial)
            self._bus.emit(TaskRestarted(trial=trial, service=row.service, task="trial", error=error))
            if row.state not in PARKED | TERMINAL:
                self._begin(row, resumed=True)
        except SpecdError as trouble:
            log.error("trial.not-restarted", trial=trial, error=str(trouble))
            asyncio.get_running_loop().call_later(_RETRY_S, self._again, trial, error)

    def look(self) -> None:
        """Look for trials that can be started."""
        self._look.set()

    async def stop(self) -> list[str]:
        """End the tasks without touching the hosts; returns the trials that go on there, also when asked again."""
        self._stopping = True
        self._left += [trial for trial in self._tasks if trial not in self._left]
        for task in list(self._tasks.values()):
            task.cancel()
        if self._tasks:
            # What must be done to its end on a host that hangs is left to the next start, which looks first.
            await asyncio.wait(list(self._tasks.values()), timeout=_STOP_S)
        return list(self._left)

    def left_words(self, trial: str) -> str:
        """Say what of a trial goes on without us: its state, unit and host."""
        try:
            row = self._store.trial(trial)
        except SpecdError:
            return f"{trial}: specd-{trial}.service on its host"
        return f"{trial} in {row.state.value}: specd-{trial}.service on {row.host}"


async def _after(before: asyncio.Task[State] | None, run: TrialRun, *, resumed: bool) -> State:
    """Run a trial once an earlier task of it has put its things away: there are never two at work."""
    if before is not None:
        await asyncio.wait({before})
    return await run.run(resumed=resumed)
