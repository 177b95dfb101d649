"""Trials whose states' work does what a test says, under the real scheduler, store, bus, table and trial task."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from specd import scheduler as scheduler_module
from specd import trial as trial_module
from specd.bus import Bus
from specd.fleet import Fleet
from specd.phases import PHASES, Context, Step
from specd.scheduler import Scheduler
from specd.settings import BenchSettings, Config, DaemonSettings, HostSettings, ServiceSettings, TrialSpec
from specd.store import Store
from specd.trial import TrialRun
from states.table import PARKED, TERMINAL, State

__all__ = ["SERVICES", "Bench"]

SERVICES = ("a", "b")


class _Manager:
    """A service manager on whose host nothing is, and where everything asked for is done at once."""

    kind = "scripted"

    def candidate_name(self, trial: str) -> str:
        return f"specd-{trial}.service"

    async def claim(self, claim: Any, *, take: bool = False) -> None:
        return None

    async def release_claim(self, unit: str, installation: str) -> None: ...

    async def status(self, unit: str) -> Any:
        return SimpleNamespace(exists=False, name=unit)

    async def disarm_guard(self, trial: str, *, fired_too: bool = True) -> bool:
        return True

    async def uninstall(self, unit: str) -> None: ...

    async def guard(self, trial: str) -> None:
        return None

    async def life(self) -> str:
        return "one"


class _Companions:
    """Nothing runs beside the work: what would interrupt it, the test does itself."""

    def __init__(self, ctx: Context, interrupt: Callable[..., bool]) -> None: ...

    async def enter(self, state: State) -> None: ...

    async def leave(self) -> None:
        await _Companions.may_leave.wait()

    may_leave: asyncio.Event


class Bench:
    """Two services and any number of trials; everything happens in `turn`s of a loop of its own."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="specd-races-")
        self._loop = asyncio.new_event_loop()
        # Cleared, it holds up a task that has nothing left to do but to put its things away.
        self.may_leave = _Companions.may_leave = asyncio.Event()
        self.may_leave.set()
        self._patches = [
            patch.object(trial_module, "Companions", _Companions),
            patch.object(trial_module, "_PAUSES_S", (0.0,)),
            patch.object(trial_module, "_LOOK_AGAIN_S", 0.0),
            patch.object(scheduler_module, "BuiltinBenchmark", lambda: None),
            patch.dict(PHASES, {state: self._work for state in PHASES}),
        ]
        for each in self._patches:
            each.start()
        # What the work of a trial waits for; exactly one at a time.
        self.working: dict[str, asyncio.Future[Step]] = {}
        self.doubled = ""
        self.store = Store(Path(self._directory.name) / "specd.db")
        self.store.database.all("PRAGMA synchronous = OFF")
        hosts = {"h": HostSettings(name="h")}
        services = {name: ServiceSettings(name=name, host="h", unit=f"{name}.service") for name in SERVICES}
        benches = {"default": BenchSettings(name="default")}
        self.config = Config(
            path=Path("config.toml"), daemon=DaemonSettings(), hosts=hosts, services=services, benchmarks=benches
        )
        self.start()

    async def _work(self, ctx: Context) -> Step:
        if ctx.row.id in self.working:
            self.doubled = f"two tasks work on {ctx.row.id}"
        assert self.store.trial(ctx.row.id).state is ctx.machine_state(), "work began before its move was stored"
        self.working[ctx.row.id] = asyncio.get_running_loop().create_future()
        try:
            return await self.working[ctx.row.id]
        finally:
            del self.working[ctx.row.id]

    def start(self) -> None:
        """Start a daemon's part on what is stored."""
        fleet = cast(Fleet, _ScriptedFleet(self.config))
        self.scheduler = Scheduler(fleet, self.store, Bus(self.store))
        self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self.scheduler.take_up()
        self._running = asyncio.create_task(self.scheduler.run())

    def turn(self, act: Callable[[], Any] | None = None) -> Any:
        """Do something inside the loop, then let everything come to rest."""
        return self._loop.run_until_complete(self._turn(act))

    async def _turn(self, act: Callable[[], Any] | None) -> Any:
        result = act() if act else None
        for _ in range(40):
            await asyncio.sleep(0)
        return result

    def end(self) -> None:
        """SIGTERM: the tasks end, nothing else happens."""
        self._loop.run_until_complete(self._end())

    async def _end(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self.scheduler.stop()

    def submit(self, service: str) -> str:
        """Queue a trial."""
        (row,) = self.store.add_trials([(TrialSpec(name="t", service=service), "h")])
        self.turn(lambda: self.scheduler.submitted([row]))
        return row.id

    def run(self, trial: str) -> TrialRun | None:
        """Return the task of a trial, if it has one."""
        return self.scheduler.find(trial)

    def state(self, trial: str) -> State:
        return self.store.trial(trial).state

    def is_settled(self, trial: str) -> bool:
        return self.state(trial) in TERMINAL | PARKED

    def ignored(self) -> int:
        """Return how many triggers were recorded as ignored."""
        return self.store.database.number("SELECT count(*) FROM event WHERE body LIKE '%\"TriggerIgnored\"%'")

    def close(self) -> None:
        self.end()
        self.store.close()
        self._loop.close()
        for each in self._patches:
            each.stop()
        self._directory.cleanup()


class _ScriptedFleet:
    def __init__(self, config: Config) -> None:
        self.config = config
        self._manager = _Manager()

    def service(self, name: str) -> ServiceSettings:
        return self.config.services[name]

    def host(self, name: str) -> Any:
        return SimpleNamespace(name=name, link=SimpleNamespace(connected=True))

    def manager(self, service: ServiceSettings) -> _Manager:
        return self._manager
