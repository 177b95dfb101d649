"""A candidate that is to be kept: its guard goes last, and only if it has not fired."""

from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from specd.errors import BadAnswer, HostUnreachable, SpecdError
from specd.phases import Step
from states.table import Outcome, State, Trigger
from tests.unit import scripted
from tests.unit.scripted import Bench

WAY = (
    *(Trigger.BASELINE_MEASURED, Trigger.UNIT_WRITTEN, Trigger.VERIFIED, Trigger.CANDIDATE_STARTED),
    *(Trigger.WEIGHTS_LOADED, Trigger.ENGINE_UP, Trigger.TOKEN_SEEN),
)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def measured(bench: Bench, *answers: bool | SpecdError) -> str:
    """Return a trial whose verdict says keep, on a host that answers the disarming so, one time after another."""
    trial = bench.submit("a")
    for trigger in WAY:
        bench.turn(partial(bench.working[trial].set_result, Step(trigger)))
    assert bench.state(trial) is State.BENCHMARK
    left = list(answers)

    async def disarm(_manager: Any, _trial: str, *, fired_too: bool = True) -> bool:
        assert not fired_too, "a guard at work would be cut short"
        answer = left.pop(0)
        if isinstance(answer, SpecdError):
            raise answer
        return answer

    with patch.object(scripted._Manager, "disarm_guard", disarm):
        keep = Step(Trigger.KEEP, "faster", Outcome.BETTER)
        bench.turn(partial(bench.working[trial].set_result, keep))
        bench.turn()
    assert not left, "it was not asked so often"
    return trial


def test_it_is_kept_once_the_guard_is_away(bench: Bench) -> None:
    assert bench.state(measured(bench, True)) is State.KEPT


def test_a_host_that_is_away_for_a_moment_does_not_cost_a_load(bench: Bench) -> None:
    trial = measured(bench, HostUnreachable("no answer"), HostUnreachable("no answer"), True)
    assert bench.state(trial) is State.KEPT
    assert bench.store.trial(trial).outcome is Outcome.BETTER


def test_a_guard_that_fires_first_has_ended_it(bench: Bench) -> None:
    trial = measured(bench, False)
    assert bench.state(trial) is State.ROLLBACK
    row = bench.store.trial(trial)
    assert row.outcome is Outcome.FAILED
    assert row.failure is not None
    assert row.failure.kind == "guard"


def test_a_guard_that_cant_be_taken_away_keeps_nothing(bench: Bench) -> None:
    trial = measured(bench, BadAnswer("no JSON"))
    assert bench.state(trial) is State.ROLLBACK
    assert "could not be taken away" in bench.store.moves(trial)[-1]["cause"]
