"""What the work of a state may use: the trial, its seams, its checkpoints, and what can be seen on the host."""

import asyncio
import contextlib
import dataclasses
import os
import statistics
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from specd import clock
from specd.bench.plan import Benchmark, BenchPlan, Target
from specd.bus import Bus
from specd.checks import Check
from specd.deadline import Deadline
from specd.engines.engine import Engine, ServerCommand, Stage
from specd.engines.masking import mask
from specd.engines.openai_probe import ServerProbe
from specd.engines.progress import Estimate
from specd.engines.server import Server, read_server
from specd.errors import EngineError, FileProblem, UnitError
from specd.hosts.host import Host, Route
from specd.services.service import Candidate, JournalRecord, ServiceManager, UnitFacts, UnitStatus
from specd.settings import BenchSettings, ServiceSettings
from specd.store import Store, TrialRow
from specd.uncut import end_task
from specd.watch import UnitWatch, WatchSource
from states.events import CheckFinished, NoteAdded, StageProgressed
from states.table import CANDIDATE_OWNS, State

__all__ = ["Baseline", "Context", "find_server", "server_address"]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Baseline:
    """The baseline as the host shows it: its unit, what it does now, and the server's command line in it."""

    facts: UnitFacts
    status: UnitStatus
    server: Server

    @property
    def engine(self) -> Engine:
        """The server's engine."""
        return self.server.engine

    @property
    def command(self) -> ServerCommand:
        """The server's command line."""
        return self.server.command


@dataclass(slots=True, kw_only=True)
class Context:
    """One trial at work. Everything a state needs to know after a crash is a fact in the store or on the host."""

    row: TrialRow
    service: ServiceSettings
    real_service: ServiceSettings
    bench: BenchSettings
    host: Host
    manager: ServiceManager
    benchmark: Benchmark
    store: Store
    bus: Bus
    deadline: Deadline
    machine_state: Callable[[], State]
    guarding: asyncio.Lock = field(default_factory=asyncio.Lock)
    renewal: asyncio.Task[Any] | None = None
    candidate_facts: UnitFacts | None = None
    guard_renewed_at: float = float("-inf")
    claim_lost: str = ""
    claim_renewed_at: float = float("-inf")
    claim_is_ours: bool = False
    secrets: set[str] = field(default_factory=set)
    watch: UnitWatch | None = None
    progress: StageProgressed | None = None

    @property
    def candidate_name(self) -> str:
        """The candidate unit's name."""
        return self.manager.candidate_name(self.row.id)

    # -- telling

    def mask(self, text: str) -> str:
        """Hide the secrets known so far."""
        return mask(text, self.secrets)

    def note(self, level: str, text: str) -> None:
        """Say something that is no move: info, warning or alarm."""
        log.log(30 if level == "warning" else 40 if level == "alarm" else 20, "trial.note", text=self.mask(text))
        self.bus.emit(NoteAdded(trial=self.row.id, service=self.service.name, level=level, text=self.mask(text)))

    def report(self, checks: list[Check], state: str) -> None:
        """Store and publish the results of checks."""
        masked = [Check(c.name, c.status, self.mask(c.evidence), self.mask(c.fix)) for c in checks]
        kept = self.store.fact(self.row.id, "checks") or []
        fresh = {check.name for check in masked}
        kept = [check for check in kept if check["name"] not in fresh] + [check.as_json() for check in masked]
        self.store.put_fact(self.row.id, "checks", kept)
        for check in masked:
            body = check.as_json()
            self.bus.emit(CheckFinished(trial=self.row.id, service=self.service.name, state=state, **body))

    def progressed(self, event: StageProgressed) -> None:
        """Publish progress and remember the latest for `show`."""
        self.progress = event
        self.bus.emit(event)

    # -- checkpoints

    def fact(self, key: str) -> Any:
        """Return a checkpoint of this trial, None before it was stored."""
        return self.store.fact(self.row.id, key)

    def put(self, key: str, value: Any) -> None:
        """Store a checkpoint of this trial."""
        self.store.put_fact(self.row.id, key, value)

    def spent_s(self, state: State) -> float:
        """Return for how many seconds the trial has been in a state; its first question begins the count.

        No step of the wall clock bends it, in this process or in one that takes the trial up.
        """
        entry = len(self.store.moves(self.row.id))
        since = self.fact(f"since.{state.value}")
        if since is None or since["entry"] != entry:
            since = {"entry": entry, **clock.mark()}
            self.put(f"since.{state.value}", since)
        return clock.elapsed_s(since)

    def candidate_left_s(self) -> float:
        """Return for how many seconds more the candidate may have the service, extensions included."""
        since = self.fact(f"since.{State.RESTART.value}")
        extended = sum(float(self.fact(f"extended.{state.value}") or 0.0) for state in CANDIDATE_OWNS)
        return self.service.deadlines.candidate_s + extended - (clock.elapsed_s(since) if since else 0.0)

    # -- claim and guard

    @contextlib.asynccontextmanager
    async def holding(self) -> AsyncIterator[None]:
        """Have claim and guard for the trial's own work: a renewal under way, which may hang, gives way."""
        if self.renewal is not None:
            await end_task(self.renewal)
        async with self.guarding:
            yield

    # -- looking

    async def look_at_baseline(self, *, as_loaded: bool = False) -> Baseline:
        """Read the baseline's unit and recognise its engine; raises UnitError or EngineError.

        With `as_loaded`, what the manager would start now counts, whatever has happened to the files since.
        """
        unit = self.service.unit
        facts, status = await asyncio.gather(self.manager.facts(unit, as_loaded=as_loaded), self.manager.status(unit))
        server = await find_server(self.service, self.host, facts)
        self.secrets.update(server.secrets)
        return Baseline(facts, status, server)

    def render_candidate(self, baseline: Baseline) -> Candidate:
        """Make the candidate's unit from what the baseline is now; the same input gives the same bytes."""
        spec = self.row.spec
        argv, env = baseline.server.changed(spec.flags, spec.env)
        self.secrets.update(baseline.engine.secrets(argv, {k: v for k, v in spec.env.items() if v is not None}))
        return self.manager.render(
            baseline.facts,
            trial=self.row.id,
            installation=self.store.installation,
            argv=argv,
            env=env,
            stop_timeout_s=self.service.stop_timeout_s,
        )

    def watch_source(self, engine: Engine, *, of_baseline: bool = False) -> WatchSource:
        """Return where a watch of this trial's units reads from and writes to; a baseline's start takes what its last
        one took, whatever candidates compiled since."""
        return WatchSource(
            host=self.host,
            manager=self.manager,
            engine=engine,
            history_s=(of_baseline and self.fact("baseline.start")) or self.stage_history_s(),
            store_records=self._store_records,
            stored_lines=lambda invocation: self.store.log_records(self.row.id, invocation),
            progressed=self._stage_progressed,
        )

    def stage_history_s(self) -> dict[str, float]:
        """Return how many seconds each start-up stage took lately: median of recent trials, else the baseline's
        start."""
        return self.store.stage_durations(self.service.name) or dict(self.fact("baseline.start") or {})

    def history_s(self) -> dict[str, float]:
        """Return how many seconds each state may be expected to take, by state name.

        From the service's recent trials (median), else from the stages of the last start that is known; for what comes
        later in this trial, what the like took earlier in it.
        """
        stages = self.stage_history_s()
        after = Stage.ORDER.index(Stage.WEIGHTS) + 1
        known = {
            State.LOADING.value: sum(stages.get(stage, 0.0) for stage in Stage.ORDER[:after]),
            State.CUDAGRAPH_COMPILE.value: sum(stages.get(stage, 0.0) for stage in Stage.ORDER[after:]),
        }
        found = self.store.durations(self.service.name)
        known.update({state.value: statistics.median(seconds) for state, seconds in found.items() if seconds})
        spent = {move["source"]: move["took_s"] for move in self.store.timed_moves(self.row.id)}
        if State.BASELINE.value in spent:
            known.setdefault(State.BENCHMARK.value, spent[State.BASELINE.value])
        starts = [State.LOADING.value, State.CUDAGRAPH_COMPILE.value]
        known.setdefault(State.ROLLBACK.value, sum(spent.get(name, known[name]) for name in starts))
        return {name: seconds for name, seconds in known.items() if seconds > 0}

    def expected_s(self, state: State) -> float | None:
        """Return how long a state may be expected to take, in seconds; None when nothing is known."""
        return self.history_s().get(state.value)

    def _store_records(self, unit: str, invocation: str, records: list[JournalRecord]) -> None:
        masked = [dataclasses.replace(record, text=self.mask(record.text)) for record in records]
        self.store.add_log(self.row.id, unit, invocation, masked)

    def _stage_progressed(self, state: State, estimate: Estimate) -> None:
        now = self.machine_state() if state is not State.ROLLBACK else state
        self.progressed(
            StageProgressed(
                trial=self.row.id,
                service=self.service.name,
                state=now.value,
                stage=estimate.stage,
                fraction=estimate.fraction,
                overall=estimate.overall,
                source=estimate.source,
                eta_s=estimate.eta_s,
            )
        )

    # -- reaching the server

    def api_key(self, facts: UnitFacts, command: ServerCommand) -> str:
        """Return the key that clients of this server need: configured, else from the unit itself; "" for none."""
        if self.service.api_key_env:
            return os.environ.get(self.service.api_key_env, "")
        if self.service.api_key_file:
            try:
                return Path(self.service.api_key_file).expanduser().read_text().strip()
            except OSError as error:
                path = self.service.api_key_file
                raise FileProblem(f"api_key_file can't be read: {error}", path=path, reason="missing") from error
        key = command.flags.get("api-key") or facts.environment.get("VLLM_API_KEY", "")
        return str(key[0] if isinstance(key, list) and key else key or "")

    def model(self, command: ServerCommand) -> str:
        """Return the model name to ask for."""
        return self.service.model or command.served_name

    @contextlib.asynccontextmanager
    async def route(self, command: ServerCommand) -> AsyncIterator[Route]:
        """Give a route to the server's port."""
        address, port = server_address(self.service, command)
        async with self.host.reach(address, port) as route:
            yield route

    @contextlib.asynccontextmanager
    async def probe(self, facts: UnitFacts, command: ServerCommand) -> AsyncIterator[ServerProbe]:
        """Give a probe of the server."""
        key = self.api_key(facts, command)
        if key:
            self.secrets.add(key)
        async with self.route(command) as route, ServerProbe(route, model=self.model(command), api_key=key) as probe:
            yield probe

    def target(self, route: Route, facts: UnitFacts, command: ServerCommand) -> Target:
        """Return the server as the benchmark sees it."""
        return Target(
            base_url=route.base_url,
            model=self.model(command),
            api_key=self.api_key(facts, command),
            unix_socket=route.unix_socket,
            route=route.kind,
        )

    def plan(self) -> BenchPlan:
        """Return the benchmark plan of this trial."""
        bench = self.bench
        return BenchPlan(
            levels=bench.levels,
            rates=bench.rates,
            arrivals=bench.arrivals,
            ramp_s=bench.ramp_s,
            repeats=bench.repeats,
            requests=bench.requests,
            prompts=bench.prompts,
            max_tokens=bench.max_tokens,
            temperature=bench.temperature,
            warmup_requests=bench.warmup_requests,
            first_token_s=bench.first_token_s,
            idle_s=bench.idle_s,
            seed=bench.seed,
            extra_body=bench.extra_body,
        )


async def find_server(service: ServiceSettings, host: Host, facts: UnitFacts) -> Server:
    """Find the server in a unit's command line, as configured or by itself; raises EngineError, UnitError."""
    if not facts.argv:
        raise UnitError(f"{service.unit} starts nothing")
    found = await read_server(host, facts.argv, facts.environment, facts.working_directory, engine=service.engine)
    if found is None:
        raise EngineError(
            f"no LLM server is recognised in the command of {service.unit}: {' '.join(facts.argv[:3])[:120]}",
            unit=service.unit,
            next_step=f"set `engine` of services.{service.name}, or name the unit that runs the server itself",
        )
    return found


def server_address(service: ServiceSettings, command: ServerCommand) -> tuple[str, int]:
    """Return where a server listens, as its host sees it; wildcard addresses become loopback.

    A trial may change the port, so of a configured endpoint only the address is taken when the command line names one.
    """
    address, port = command.address.strip("[]"), command.port
    if service.endpoint:
        name, _, configured = service.endpoint.partition("://")[2].rstrip("/").rpartition(":")
        address, port = name.strip("[]"), port or int(configured)
    loopback = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "localhost": "127.0.0.1", "::": "::1"}
    return loopback.get(address, address), port
