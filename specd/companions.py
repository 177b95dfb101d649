"""What runs beside the work of a state: the keeper of claim and guard, and the watch of a started candidate."""

import asyncio
from collections.abc import Container, Coroutine
from typing import Any, Protocol

import structlog

from specd.engines.engine import ServerCommand
from specd.errors import HostError, StoreError
from specd.phases.claim import renew_claim
from specd.phases.context import Context
from specd.phases.guard import fired_step, renew_guard
from specd.phases.lease import Lease
from specd.phases.ready import candidate_view
from specd.phases.step import Step
from specd.uncut import end_task
from specd.watch import UnitWatch
from states.events import TaskRestarted
from states.table import CANDIDATE_OWNS, State, Trigger

__all__ = ["Companions"]

log = structlog.get_logger()

_WATCHED = (State.LOADING, State.CUDAGRAPH_COMPILE, State.READY, State.BENCHMARK)
# A benchmark client started while the engine captures its graphs costs the trial no time.
_MEASURES_SOON = (State.BASELINE, State.CUDAGRAPH_COMPILE, State.READY, State.BENCHMARK)
_BEFORE_ROLLBACK = frozenset(State) - {State.ROLLBACK}
_RETRY_S = 5.0


class Interrupt(Protocol):
    """Ends the running state's work with a step, in the states for which it means anything."""

    def __call__(self, step: Step, *, only_in: Container[State] = ...) -> bool: ...


class Companions:
    """Two supervised tasks of one trial; `interrupt` ends the running state's work."""

    def __init__(self, ctx: Context, interrupt: Interrupt) -> None:
        self._ctx = ctx
        self._interrupt = interrupt
        self._lease = Lease(ctx)
        self._hold: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    async def enter(self, state: State) -> None:
        """Start and end what the state needs beside its work."""
        if state in _MEASURES_SOON:
            self._ctx.benchmark.prepare()
        else:
            await self._ctx.benchmark.close()
        # Before the preflight nothing is touched; from then on the claim was taken, by this process or an earlier one.
        self._ctx.claim_is_ours |= state is not State.BASELINE
        if self._hold is None or self._hold.done():
            self._hold = self._spawn(self._keep_hold(), "hold")
        if state in _WATCHED and self._watch is None:
            invocation = str(self._ctx.fact("candidate.invocation"))
            _, server = await candidate_view(self._ctx)
            source = self._ctx.watch_source(server.engine)
            self._ctx.watch = UnitWatch(source, self._ctx.candidate_name, invocation, state)
            self._watch = self._spawn(self._watch_candidate(self._ctx.watch, server.command), "watch")
        if state not in _WATCHED and self._watch is not None:
            await end_task(self._watch)
            if self._ctx.watch is not None:
                # Whatever kept its last lines out of the store is over: the move that has led here was stored.
                self._ctx.watch.store_lines()
            self._watch, self._ctx.watch = None, None

    async def leave(self) -> None:
        """End all that still runs."""
        for task in (self._watch, self._hold):
            if task is not None:
                await end_task(task)
        await self._ctx.benchmark.close()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._fault)
        return task

    def _fault(self, task: asyncio.Task[None]) -> None:
        """A companion that dies of an error no host explains takes the trial to its rollback, in words."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("trial.companion-fault", task=task.get_name(), exc_info=error)
        service = self._ctx.service.name
        self._ctx.bus.emit(
            TaskRestarted(trial=self._ctx.row.id, service=service, task=task.get_name(), error=repr(error))
        )
        self._interrupt(
            Step.failed("internal", f"specd's {task.get_name()} task failed: {error!r}"), only_in=_BEFORE_ROLLBACK
        )

    async def _keep_hold(self) -> None:
        """Renew claim and guard for as long as they are ours."""
        while True:
            pause = self._ctx.service.guard.renew_s
            renewal = self._ctx.renewal = asyncio.create_task(self._renewed(), name="renewal")
            try:
                await asyncio.wait({renewal})
            finally:
                await end_task(renewal)
            if renewal.cancelled():
                # The trial's own work came first.
                pause = min(pause, _RETRY_S)
            elif (error := renewal.exception()) is None:
                self._lease.renewed()
                if (step := renewal.result()) is not None:
                    # A guard that has fired says nothing about a rollback, which may have begun meanwhile.
                    has_fired = step.trigger is Trigger.GUARD_FIRED
                    taken = self._interrupt(step, only_in=CANDIDATE_OWNS if has_fired else frozenset(State))
                    if taken or not has_fired:
                        return
            elif isinstance(error, HostError | StoreError):
                log.warning("hold.not-renewed", error=str(error))
                self._lease.not_renewed(error)
                pause = min(pause, _RETRY_S)
            else:
                raise error
            await asyncio.sleep(pause)

    async def _renewed(self) -> Step | None:
        """Renew the claim and, once it is armed, the guard; without the claim nothing on the host is ours to renew.

        Returns the step to take when the claim is lost or the guard has fired.
        """
        trouble: HostError | None = None
        try:
            if (lost := await renew_claim(self._ctx)) is not None:
                return lost
        except HostError as error:
            # A host that can't be asked can't renew a guard either; one that takes no more files still can.
            if error.retryable:
                raise
            trouble = error
        if await renew_guard(self._ctx):
            return fired_step()
        if trouble is not None:
            raise trouble
        return None

    async def _watch_candidate(self, watch: UnitWatch, command: ServerCommand) -> None:
        while watch.exit is None:
            try:
                async with self._ctx.route(command) as route, watch.running(route):
                    await watch.exited.wait()
            except HostError as error:
                log.warning("watch.host-lost", error=str(error))
                await asyncio.sleep(_RETRY_S)
        self._interrupt(Step.because(watch.exit), only_in=_WATCHED)
