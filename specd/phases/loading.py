"""States loading and cudagraph-compile: follow the candidate's start until it can answer, exits, or stops moving."""

from specd.engines.engine import Failure, Stage
from specd.engines.hangs import hang_hint
from specd.phases.context import Context
from specd.phases.step import Step
from specd.watch import UnitWatch
from states.table import Outcome, State, Trigger

__all__ = ["compiling", "loading", "stalled"]

_LINGER_S = 15.0
_COMPILING = (Stage.COMPILE, Stage.CAPTURE)


async def loading(ctx: Context) -> Step:
    """Wait until the weights are loaded, or the engine is up at once."""
    watch = _watch(ctx)
    step = await _first_of(ctx, watch, State.LOADING, weights=True)
    return step or Step(Trigger.WEIGHTS_LOADED, f"stage {watch.stage}")


async def compiling(ctx: Context) -> Step:
    """Wait until the engine answers its health check."""
    step = await _first_of(ctx, _watch(ctx), State.CUDAGRAPH_COMPILE, weights=False)
    assert step is not None, "without waiting for weights only an end is left"
    return step


def _watch(ctx: Context) -> UnitWatch:
    assert ctx.watch is not None, "the trial's task starts the watch before this state's work"
    return ctx.watch


async def _first_of(ctx: Context, watch: UnitWatch, state: State, *, weights: bool) -> Step | None:
    """Return the step for a running server or a stall; None when the engine compiles, which an eager one never does.

    An exit interrupts this work from outside, whatever the state.
    """
    while True:
        if watch.is_up:
            ctx.put("start.took", dict(watch.took_s))
            return Step(Trigger.ENGINE_UP, "health answers")
        if weights and watch.engine.uses_graphs and (watch.stage in _COMPILING or watch.took_s.keys() & _COMPILING):
            return None
        if stall := stalled(ctx, watch, state):
            return stall
        await watch.changed(timeout_s=1.0)


def stalled(ctx: Context, watch: UnitWatch, state: State) -> Step | None:
    """Return the step that ends a start in which nothing moves: at the no-progress limit, or soon after a fatal
    line."""
    idle = watch.still_s
    cause = watch.reader.failure()
    if cause is not None and idle > min(_LINGER_S, ctx.deadline.stall_s or _LINGER_S):
        # The engine said why it can't go on, but its process stays.
        return Step.because(cause)
    limit = ctx.deadline.stall_s
    if not limit or idle < limit:
        return None
    sentence = f"hung in {state.value} (stage {watch.stage}): nothing has moved for {idle:.0f} s"
    lines = watch.last_lines(20)
    failure = Failure(kind="hang", sentence=sentence, lines=lines, hint=hang_hint(watch.stage, lines))
    return Step(Trigger.TIMED_OUT, failure.sentence, Outcome.FAILED, failure)
