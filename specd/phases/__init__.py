"""The work of each state: `async def (Context) -> Step`, safe to run again after a crash."""

from collections.abc import Awaitable, Callable

from specd.phases import baseline, benchmark, loading, ready, restart, rollback, verify, write_unit
from specd.phases.context import Context
from specd.phases.step import Step
from states.table import State

__all__ = ["PHASES", "Context", "Step"]

PHASES: dict[State, Callable[[Context], Awaitable[Step]]] = {
    State.BASELINE: baseline.run,
    State.WRITE_UNIT: write_unit.run,
    State.VERIFY: verify.run,
    State.RESTART: restart.run,
    State.LOADING: loading.loading,
    State.CUDAGRAPH_COMPILE: loading.compiling,
    State.READY: ready.run,
    State.BENCHMARK: benchmark.run,
    State.ROLLBACK: rollback.run,
}
