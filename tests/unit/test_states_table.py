"""The table is the machine: every (state, trigger) pair, judged by the table and made by the machine."""

import itertools

import pytest

from states.errors import IllegalMove
from states.machine import TrialMachine
from states.table import (
    BEFORE_RESTART,
    CANDIDATE_OWNS,
    DESCRIPTIONS,
    MOVES,
    PARKED,
    TERMINAL,
    WORKING,
    State,
    Trigger,
    destination,
    triggers_from,
)


@pytest.mark.parametrize(("state", "trigger"), list(itertools.product(State, Trigger)))
def test_the_machine_makes_exactly_the_moves_of_the_table(state: State, trigger: Trigger) -> None:
    committed: list[tuple[State, Trigger, State]] = []
    machine = TrialMachine(lambda *move: committed.append(move), state)
    target = destination(state, trigger)
    if target is None:
        with pytest.raises(IllegalMove):
            machine.fire(trigger)
        assert machine.state is state
        assert committed == []
    else:
        assert machine.fire(trigger) is target
        assert committed == [(state, trigger, target)]


def test_a_commit_that_fails_leaves_the_state_as_it_was() -> None:
    def refuse(*_: object) -> None:
        raise OSError("disk full")

    machine = TrialMachine(refuse, State.LOADING)
    with pytest.raises(OSError, match="disk full"):
        machine.fire(Trigger.ENGINE_UP)
    assert machine.state is State.LOADING


def test_the_commit_happens_before_the_state_changes() -> None:
    seen: list[State] = []
    machine = TrialMachine(lambda *_: seen.append(machine.state), State.VERIFY)
    machine.fire(Trigger.VERIFIED)
    assert seen == [State.VERIFY]


def test_no_pair_of_state_and_trigger_has_two_moves() -> None:
    pairs = [(move.source, move.trigger) for move in MOVES]
    assert len(pairs) == len(set(pairs))


@pytest.mark.parametrize("state", WORKING)
def test_every_working_state_can_fail_time_out_and_all_but_the_rollback_be_cancelled(state: State) -> None:
    way_out = State.WITHDRAWN if state in BEFORE_RESTART else State.ROLLBACK
    if state is State.ROLLBACK:
        way_out = State.ROLLBACK_FAILED
    assert destination(state, Trigger.FAILED) is way_out
    assert destination(state, Trigger.TIMED_OUT) is way_out
    assert destination(state, Trigger.CANCEL) is (None if state is State.ROLLBACK else way_out)


def test_every_state_reaches_an_end_and_ends_are_left_only_by_an_operator() -> None:
    ends = TERMINAL | PARKED
    for start in State:
        reached, todo = set(), [start]
        while todo:
            state = todo.pop()
            reached.add(state)
            todo += [move.target for move in MOVES if move.source is state and move.target not in reached]
        assert reached & ends, start
    assert {trigger for state in ends for trigger in triggers_from(state)} == {Trigger.ROLLBACK}
    assert triggers_from(State.RESTORED) == triggers_from(State.WITHDRAWN) == ()


def test_from_the_restart_on_nothing_is_withdrawn() -> None:
    for state in CANDIDATE_OWNS:
        targets = {move.target for move in MOVES if move.source is state}
        assert State.WITHDRAWN not in targets
        assert State.ROLLBACK in targets


def test_every_state_is_described() -> None:
    assert set(DESCRIPTIONS) == set(State)
