"""One task per open trial: runs the work of each state, judges what interrupts it, commits every move before it
acts."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Container

import structlog

from specd import clock
from specd.companions import Companions
from specd.deadline import Deadline
from specd.engines.engine import Failure
from specd.errors import HostError, InternalFault, SpecdError, StoreError
from specd.phases import PHASES, Context, Step
from specd.phases.clearing import discard, let_go
from specd.phases.guard import disarm_guard, fired_step, has_fired
from specd.phases.stand_in import tear_down
from specd.settings import Deadlines
from specd.uncut import end_task
from states.events import (
    CancelRequested,
    DeadlineExtended,
    HostBack,
    HostLost,
    TrialMoved,
    TrialResumed,
    TriggerIgnored,
)
from states.machine import TrialMachine
from states.table import BEFORE_RESTART, CANDIDATE_OWNS, PARKED, TERMINAL, Outcome, State, Trigger, destination

__all__ = ["TrialRun"]

log = structlog.get_logger()

_ROLLBACK_TRIES = 5
_AWAY_S = 120.0
_STORE_RETRY_S = 0.5
_STORE_RETRY_MOST_S = 3.0
_LOOK_S = 10.0
_LOOK_AGAIN_S = 1.0
_PAUSES_S = (2.0, 4.0, 8.0, 15.0)


class TrialRun:
    """Drives one trial from the state it is in until it is settled or parked."""

    def __init__(self, make_context: Callable[[Deadline, Callable[[], State]], Context], state: State) -> None:
        self.machine = TrialMachine(self._commit, state)
        self.ctx = make_context(Deadline(float("inf")), lambda: self.machine.state)
        self.id = self.ctx.row.id
        self._companions = Companions(self.ctx, self.interrupt)
        self._step: Step | None = None
        self._interrupt: Step | None = None
        self._interrupted = asyncio.Event()
        self._trouble: SpecdError | None = None
        self._was_away = False

    # -- moves

    def _commit(self, source: State, trigger: Trigger, target: State) -> None:
        step = self._step or Step(trigger)
        cause = self.ctx.mask(step.cause)
        expected = self.ctx.expected_s(target)
        row = self.ctx.store.trial(self.id)
        event = TrialMoved(
            trial=self.id,
            service=row.service,
            source=source.value,
            trigger=trigger.value,
            target=target.value,
            cause=cause,
            outcome=(step.outcome.value if step.outcome else row.outcome.value if row.outcome else None),
            deadline_at=clock.after(_allowed_s(self.ctx.service.deadlines, target)) if target in PHASES else None,
            expected_end_at=clock.after(expected) if expected is not None else None,
        )
        # The first result of a trial is its result; what the rollback meets later is said in its moves.
        outcome = step.outcome if row.outcome is None else None
        failure = step.failure and _masked(step.failure, self.ctx)
        if target is State.ROLLBACK and source in TERMINAL | PARKED:
            self.ctx.put("cancel", None)
        stored = self.ctx.store.move(
            self.id, source, trigger, target, event=event, cause=cause, outcome=outcome, failure=failure
        )
        self.ctx.bus.publish(stored)

    def move(self, step: Step) -> None:
        """Make one move now, outside of a state's work; raises IllegalMove."""
        self._fire(step)

    def _fire(self, step: Step) -> None:
        self._step = step
        try:
            source = self.machine.state
            self.machine.fire(step.trigger)
            log.info("trial.moved", source=source.value, trigger=step.trigger.value, target=self.machine.state.value)
            # A move that could not be stored has not happened, and what asked for it still stands.
            self._interrupt = None
            self._interrupted.clear()
        finally:
            self._step = None

    def interrupt(self, step: Step, *, only_in: Container[State] = tuple(State)) -> bool:
        """End the running state's work with this step; False (and recorded as ignored) where it comes too late.

        `only_in` are the states for which it means anything: a candidate's end, told a moment later, is no failure of
        the rollback that it has led to.
        """
        state = self.machine.state
        # One that has settled works no more: whoever means to move it on starts another task.
        settled = state in TERMINAL | PARKED
        if self._interrupt is not None or settled or state not in only_in or destination(state, step.trigger) is None:
            why = "another trigger came first" if self._interrupt is not None else f"no such move from {state.value}"
            self.ctx.bus.emit(
                TriggerIgnored(
                    trial=self.id,
                    service=self.ctx.service.name,
                    state=state.value,
                    trigger=step.trigger.value,
                    why=why,
                )
            )
            return False
        self._interrupt = step
        self._interrupted.set()
        return True

    def cancel(self, by: str, why: str, trigger: Trigger = Trigger.CANCEL) -> bool:
        """Ask for the trial's end; durable before it is acted on."""
        if self.machine.state not in TERMINAL | PARKED and destination(self.machine.state, trigger) is not None:
            self.ctx.put("cancel", {"by": by, "why": why, "trigger": trigger.value})
        self.ctx.bus.emit(CancelRequested(trial=self.id, service=self.ctx.service.name, by=by, why=why))
        return self.interrupt(_cancelled(by, why, trigger))

    def extend(self, minutes: float) -> None:
        """Give the running state more time, and its no-progress limit with it."""
        state = self.machine.state
        self.ctx.put(f"extended.{state.value}", (self.ctx.fact(f"extended.{state.value}") or 0.0) + minutes * 60)
        self.ctx.deadline.extend(minutes * 60)
        self.ctx.bus.emit(
            DeadlineExtended(
                trial=self.id,
                service=self.ctx.service.name,
                state=state.value,
                minutes=minutes,
                deadline_at=self.ctx.deadline.at,
            )
        )

    # -- the task

    async def run(self, *, resumed: bool = False) -> State:
        """Work until the trial is settled or parked; returns the state reached."""
        with structlog.contextvars.bound_contextvars(trial=self.id):
            if resumed:
                self._was_away = True
                self._resume()
            pause = _STORE_RETRY_S
            try:
                while self.machine.state not in TERMINAL | PARKED:
                    try:
                        await self._through(self.machine.state)
                        pause = _STORE_RETRY_S
                    except StoreError as error:
                        if self.ctx.store.database.problem:
                            raise
                        # The disk is full or somebody else writes: the state's work looks again at what is true.
                        log.warning("trial.not-stored", error=str(error))
                        await asyncio.sleep(pause)
                        pause = min(pause * 1.5, _STORE_RETRY_MOST_S)
            finally:
                await self._companions.leave()
        return self.machine.state

    async def _through(self, state: State) -> None:
        """Do a state's work and leave it by one move."""
        self._set_deadline(state)
        found = await self._work(state)
        step = await self._settle_step(await self._explained(found))
        # Nothing awaits between this look and the move: an accepted interruption is never lost.
        self._fire(step if self._interrupt in (None, found) else self._interrupt)

    def _resume(self) -> None:
        state = self.machine.state
        asked = self.ctx.fact("cancel")
        if asked and destination(state, Trigger(asked["trigger"])) is not None:
            self.interrupt(_cancelled(asked["by"], asked["why"], Trigger(asked["trigger"])))

    def _set_deadline(self, state: State) -> None:
        extra = float(self.ctx.fact(f"extended.{state.value}") or 0.0)
        spent_s = self.ctx.spent_s(state)
        allowed_s = _allowed_s(self.ctx.service.deadlines, state) + extra
        if state in CANDIDATE_OWNS:
            allowed_s = min(allowed_s, spent_s + self.ctx.candidate_left_s())
        self.ctx.deadline = Deadline(
            allowed_s, stall_s=_stall_s(self.ctx.service.deadlines, state, extra), spent_s=spent_s
        )
        self.ctx.progress = None

    async def _work(self, state: State) -> Step:
        """Run the state's work until it ends, is interrupted, or its time is up; a lost host means: look again."""
        tries = 0
        lost_at: float | None = None
        self._trouble = None
        while True:
            try:
                step = await self._once(state)
            except StoreError:
                raise
            except SpecdError as error:
                trouble = error
            except Exception as error:
                log.exception("trial.fault", state=state.value)
                trouble = InternalFault(f"specd itself failed in {state.value}: {error!r}")
            else:
                if lost_at is not None:
                    self._tell_back(time.monotonic() - lost_at)
                return step
            tries += 1
            # A lost host is looked at until the deadline; a rollback does not give up at the first trouble of any kind.
            if not trouble.retryable and (state is not State.ROLLBACK or tries > _ROLLBACK_TRIES):
                return _from_error(state, trouble)
            self._trouble = trouble
            if not trouble.retryable:
                self.ctx.note("warning", f"rollback, attempt {tries}: {trouble}")
            elif lost_at is None:
                lost_at = time.monotonic()
                self._tell_lost(str(trouble))
            elif state in BEFORE_RESTART and time.monotonic() - lost_at > _AWAY_S:
                # Nothing is at stake yet, so nobody has to wait for the state's whole deadline.
                return _from_error(state, trouble)
            if step_now := await self._pause(_PAUSES_S[min(tries, len(_PAUSES_S)) - 1]):
                return step_now

    def _tell_lost(self, why: str) -> None:
        self.ctx.bus.emit(HostLost(trial=self.id, service=self.ctx.service.name, host=self.ctx.host.name, why=why))

    def _tell_back(self, away_s: float) -> None:
        name = self.ctx.host.name
        self.ctx.bus.emit(HostBack(trial=self.id, service=self.ctx.service.name, host=name, away_s=away_s))

    async def _once(self, state: State) -> Step:
        work = asyncio.ensure_future(self._accompanied(state))
        interrupted = asyncio.ensure_future(self._interrupted.wait())
        try:
            while True:
                # The loop looks again at a deadline that was moved while it waited.
                await asyncio.wait(
                    {work, interrupted},
                    timeout=min(_LOOK_AGAIN_S, max(0.0, self.ctx.deadline.remaining_s)),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if self._interrupt is not None:
                    return self._interrupt
                if work.done():
                    return work.result()
                if self.ctx.deadline.remaining_s <= 0:
                    away = not self.ctx.host.link.connected
                    return _timed_out(state, self.ctx, self._trouble if away else None)
        finally:
            interrupted.cancel()
            await end_task(work)

    async def _accompanied(self, state: State) -> Step:
        if self._was_away:
            # While nobody looked, the guard may have started the baseline, which answers where the candidate would.
            fired = state in CANDIDATE_OWNS and await has_fired(self.ctx)
            found = "the guard has fired" if fired else await self._found(state)
            service = self.ctx.service.name
            self.ctx.bus.emit(TrialResumed(trial=self.id, service=service, state=state.value, found=found))
            self._was_away = False
            if fired:
                return fired_step()
        await self._companions.enter(state)
        return await PHASES[state](self.ctx)

    async def _found(self, state: State) -> str:
        """Say what is true on the host of a trial that is taken up again."""
        if state in BEFORE_RESTART:
            return "the baseline has not been touched"
        status = await self.ctx.manager.status(self.ctx.candidate_name)
        if not status.exists:
            return f"there is no {status.name}"
        invocation = f", invocation {status.invocation}" if status.invocation else ""
        return f"{status.name} is {status.active} ({status.sub}){invocation}"

    async def _pause(self, seconds: float) -> Step | None:
        """Wait before another try; returns the step of an interruption or of the deadline meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, max(0.0, self.ctx.deadline.remaining_s))):
                await self._interrupted.wait()
        if self._interrupt is not None:
            return self._interrupt
        if self.ctx.deadline.remaining_s <= 0:
            return _timed_out(self.machine.state, self.ctx, self._trouble)
        return None

    # -- ways out

    async def _explained(self, step: Step) -> Step:
        """What went wrong with a candidate may be the doing of the guard or of a reboot: then that is what happened."""
        if step.failure is None or self.machine.state not in CANDIDATE_OWNS:
            return step
        try:
            async with asyncio.timeout(_LOOK_S):
                if await has_fired(self.ctx):
                    return fired_step()
                life = self.ctx.fact("host.life")
                if life is not None and life != await self.ctx.manager.life():
                    return _rebooted(self.machine.state, self.ctx)
        except (HostError, TimeoutError):
            pass
        return step

    async def _settle_step(self, step: Step) -> Step:
        """Do what must be done on the host before the move out of this state can be true."""
        target = destination(self.machine.state, step.trigger)
        if target is State.WITHDRAWN and self.machine.state in (State.WRITE_UNIT, State.VERIFY):
            await discard(self.ctx)
        if target in (State.WITHDRAWN, State.RESTORED) and self.ctx.row.spec.rehearsal:
            await tear_down(self.ctx)
        if target is State.WITHDRAWN and not self.ctx.claim_lost:
            await let_go(self.ctx)
        return await self._keep(step) if target is State.KEPT else step

    async def _keep(self, step: Step) -> Step:
        """Take the guard away from a candidate that is to stay; a host that is away meanwhile is waited for."""
        while True:
            try:
                if not await disarm_guard(self.ctx, fired_too=False):
                    return fired_step()
                await let_go(self.ctx)
                return step
            except HostError as error:
                if not error.retryable:
                    return Step.failed("guard", f"the guard could not be taken away, so nothing can be kept: {error}")
                self._trouble = error
            if (other := await self._pause(_PAUSES_S[0])) is not None:
                return other


def _cancelled(by: str, why: str, trigger: Trigger) -> Step:
    words = f"{'rollback' if trigger is Trigger.ROLLBACK else 'cancel'} asked by {by}" + (f": {why}" if why else "")
    return Step(trigger, words, Outcome.CANCELLED)


def _timed_out(state: State, ctx: Context, trouble: SpecdError | None) -> Step:
    """The state's time is up: by a trouble that has lasted until now, else by work that did not end."""
    sentence = f"{state.value} took longer than its {ctx.deadline.allowed_s:.0f} s"
    if state in CANDIDATE_OWNS and ctx.candidate_left_s() <= 0:
        sentence = f"the candidate had the service longer than its total of {ctx.service.deadlines.candidate_s:.0f} s"
    lines = ctx.watch.last_lines(20) if ctx.watch else ()
    failure = Failure(kind="hang", sentence=sentence, lines=lines, hint="see the log; `specd extend` gives more time")
    if trouble is not None:
        sentence = f"{sentence}: {trouble.what}"
        failure = Failure(kind=trouble.code, sentence=sentence, lines=lines, hint=trouble.next_step)
    return Step(Trigger.TIMED_OUT, sentence, Outcome.FAILED, failure)


def _rebooted(state: State, ctx: Context) -> Step:
    what = f"{ctx.host.name} was rebooted" if ctx.manager.kind == "systemd" else "its supervisor was started anew"
    sentence = f"{what} in {state.value}: that ended the candidate, and the baseline comes up by itself"
    return Step(Trigger.FAILED, sentence, Outcome.FAILED, Failure(kind="reboot", sentence=sentence))


def _from_error(state: State, error: SpecdError) -> Step:
    failure = Failure(kind=error.code, sentence=error.what, hint=error.next_step)
    return Step(Trigger.FAILED, f"{state.value}: {error.what}", Outcome.FAILED, failure)


def _masked(failure: Failure, ctx: Context) -> Failure:
    return dataclasses.replace(
        failure, sentence=ctx.mask(failure.sentence), lines=tuple(ctx.mask(line) for line in failure.lines)
    )


def _allowed_s(deadlines: Deadlines, state: State) -> float:
    return float(getattr(deadlines, f"{state.name.lower()}_s", float("inf")))


def _stall_s(deadlines: Deadlines, state: State, extra_s: float) -> float:
    limit = float(getattr(deadlines, f"{state.name.lower()}_stall_s", 0.0))
    return limit + extra_s if limit else 0.0
