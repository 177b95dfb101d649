"""Whatever comes in the same instant, in whatever order: one move wins, the others are recorded as ignored."""

import itertools
from collections.abc import Iterator
from datetime import timedelta
from functools import partial

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from specd import clock
from specd.errors import HostUnreachable, Refused, SpecdError
from specd.phases import Step
from specd.phases.guard import fired_step
from states.table import BEFORE_RESTART, CANDIDATE_OWNS, MOVES, PARKED, TERMINAL, Outcome, State, Trigger, destination
from tests.unit.scripted import SERVICES, Bench

WATCHED = CANDIDATE_OWNS[1:]
FORWARD = {
    move.source: [other.trigger for other in MOVES if other.source is move.source and other.trigger in WORK]
    for WORK in [
        {
            *(Trigger.BASELINE_MEASURED, Trigger.UNIT_WRITTEN, Trigger.VERIFIED, Trigger.CANDIDATE_STARTED),
            *(Trigger.WEIGHTS_LOADED, Trigger.ENGINE_UP, Trigger.TOKEN_SEEN, Trigger.RESTORE, Trigger.KEEP),
            *(Trigger.RESTORED, Trigger.FAILED),
        }
    ]
    for move in MOVES
}
DIED = Step.failed("engine-died", "the engine died")


def act(bench: Bench, trial: str, what: str) -> None:
    """Do one thing to a trial, as the part of the daemon would from which it comes."""
    run = bench.run(trial)
    match what:
        case "cancel":
            run and run.cancel("a test", "")
        case "rollback":
            run and run.cancel("a test", "", Trigger.ROLLBACK)
        case "guard":
            run and run.interrupt(fired_step(), only_in=CANDIDATE_OWNS)
        case "died":
            run and run.interrupt(DIED, only_in=WATCHED)
        case "deadline":
            if run:
                run.ctx.deadline.allowed_s = 0.0
        case "extend":
            run and run.extend(1)
        case _:
            work = bench.working.get(trial)
            if work is not None and not work.done():
                finish(bench, trial, what)


def finish(bench: Bench, trial: str, how: str) -> None:
    """Let the work of a trial's state end."""
    work, state = bench.working[trial], bench.state(trial)
    if how == "unreachable":
        work.set_exception(HostUnreachable("no answer"))
    elif how == "fault":
        work.set_exception(RuntimeError("a fault of ours"))
    else:
        choices = FORWARD[state]
        trigger = Trigger.FAILED if how == "failed" else choices[0 if how == "forward" else -2]
        outcome = Outcome.WORSE if state is State.BENCHMARK else Outcome.FAILED if how == "failed" else None
        work.set_result(Step(trigger, how, outcome))


def both(bench: Bench, trial: str, first: str, second: str) -> None:
    """Do two things without giving the loop a turn in between."""
    act(bench, trial, first)
    act(bench, trial, second)


INTERRUPTS = ("cancel", "rollback", "guard", "died", "deadline", "extend")
ENDINGS = ("forward", "other", "failed", "unreachable", "fault")


def prove_history(bench: Bench, trial: str) -> None:
    """Prove that a trial's moves are legal, without gap, and that its row says the last one."""
    state = State.QUEUED
    for move in bench.store.moves(trial):
        assert State(move["source"]) is state, "a gap in the history"
        target = destination(state, Trigger(move["trigger"]))
        assert target is not None, f"{move['trigger']} is no move from {state.value}"
        assert target is State(move["target"])
        state = target
    assert bench.state(trial) is state


def lead_to_the_end(bench: Bench, trial: str) -> None:
    """Let a trial go on undisturbed; it must settle, and a parked one must be restored by the command."""
    for _ in range(40):
        if bench.state(trial) in PARKED:
            service = bench.store.trial(trial).service
            bench.turn(partial(bench.scheduler.rollback, service, "a test"))
        if bench.state(trial) in TERMINAL:
            return
        bench.turn(lambda: act(bench, trial, "forward"))
    raise AssertionError(f"{trial} never leaves {bench.state(trial).value}")


class Races(RuleBasedStateMachine):
    """Two services, several trials, and everything that can happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.trials: list[str] = []
        self.outcomes: dict[str, Outcome] = {}

    def pick(self, number: int) -> str:
        return self.trials[number % len(self.trials)]

    @precondition(lambda self: len(self.trials) < 4)
    @rule(service=st.sampled_from(SERVICES))
    def submit(self, service: str) -> None:
        try:
            self.trials.append(self.bench.submit(service))
        except Refused:
            held = self.bench.store.holding(service)
            assert held is not None

    @precondition(lambda self: self.trials)
    @rule(number=st.integers(0, 3), what=st.sampled_from((*INTERRUPTS, *ENDINGS, "forward", "forward")))
    def one(self, number: int, what: str) -> None:
        trial = self.pick(number)
        self.bench.turn(lambda: act(self.bench, trial, what))

    @precondition(lambda self: self.trials)
    @rule(number=st.integers(0, 3), several=st.lists(st.sampled_from((*INTERRUPTS, *ENDINGS)), min_size=2, max_size=4))
    def in_one_instant(self, number: int, several: list[str]) -> None:
        trial = self.pick(number)
        self.bench.turn(lambda: [act(self.bench, trial, what) for what in several])

    @precondition(lambda self: self.trials)
    @rule(number=st.integers(0, 3))
    def by_command(self, number: int) -> None:
        row = self.bench.store.trial(self.pick(number))
        for ask in (
            lambda: self.bench.scheduler.cancel(row, "a test", ""),
            lambda: self.bench.scheduler.rollback(row.service, "a test"),
        ):
            try:
                self.bench.turn(ask)
            except SpecdError:
                continue

    @rule(gracefully=st.booleans())
    def daemon_restarts(self, gracefully: bool) -> None:
        if gracefully:
            self.bench.turn()
        self.bench.end()
        self.bench.start()
        self.bench.turn()

    @invariant()
    def histories_hold(self) -> None:
        assert not self.bench.doubled, self.bench.doubled
        busy = [row.service for row in self.bench.store.open_trials() if row.state is not State.QUEUED]
        assert len(busy) == len(set(busy)), "two trials are at work on one service"
        for trial in self.trials:
            prove_history(self.bench, trial)
            row = self.bench.store.trial(trial)
            known = self.outcomes.setdefault(trial, row.outcome) if row.outcome else None
            assert row.outcome is known, "a result was changed"
            assert row.outcome is not None or row.state not in TERMINAL, "it ended without an outcome"

    def teardown(self) -> None:
        try:
            for trial in self.trials:
                lead_to_the_end(self.bench, trial)
            self.histories_hold()
        finally:
            self.bench.close()


def test_random_orders_of_everything() -> None:
    run_state_machine_as_test(
        Races,
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def brought_to(bench: Bench, state: State) -> str:
    """Return a trial that works in a state."""
    trial = bench.submit("a")
    while bench.state(trial) is not state:
        assert not bench.is_settled(trial)
        bench.turn(lambda: act(bench, trial, "forward"))
    return trial


@pytest.mark.parametrize("state", [*BEFORE_RESTART[1:], *CANDIDATE_OWNS, State.ROLLBACK], ids=lambda state: state.value)
def test_of_two_in_one_instant_one_wins(bench: Bench, state: State) -> None:
    """Every ordered pair in every state: at most one move, the loser recorded where it was an interruption."""
    pairs = 0
    for first, second in itertools.permutations((*INTERRUPTS, *ENDINGS), 2):
        trial = brought_to(bench, state)
        moves, ignored = len(bench.store.moves(trial)), bench.ignored()
        bench.turn(partial(both, bench, trial, first, second))
        new = bench.store.moves(trial)[moves:]
        left = [move for move in new if move["source"] == state.value]
        assert len(left) <= 1, f"{first} and {second} in {state.value} made {new}"
        interrupts = {"cancel", "rollback", "guard", "died"} & {first, second}
        if len(interrupts) == 2:
            assert bench.ignored() > ignored, f"of {first} and {second} the loser is not recorded"
        lead_to_the_end(bench, trial)
        prove_history(bench, trial)
        assert not bench.doubled
        pairs += 1
    assert pairs == 110


def test_a_candidate_s_end_told_late_does_not_park_its_rollback(bench: Bench) -> None:
    trial = brought_to(bench, State.LOADING)
    bench.turn(lambda: act(bench, trial, "guard"))
    assert bench.state(trial) is State.ROLLBACK
    ignored = bench.ignored()
    bench.turn(lambda: act(bench, trial, "died"))
    assert bench.state(trial) is State.ROLLBACK
    assert bench.ignored() == ignored + 1


@pytest.mark.parametrize("step", [timedelta(hours=-30), timedelta(hours=30)])
def test_a_step_of_the_clock_moves_no_deadline_also_over_a_restart(
    bench: Bench, step: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = brought_to(bench, State.LOADING)
    monkeypatch.setattr(clock, "now", lambda real=clock.now: clock.after(step.total_seconds(), real()))
    bench.turn()
    bench.end()
    bench.start()
    bench.turn()
    assert bench.state(trial) is State.LOADING
    run = bench.run(trial)
    assert run is not None
    assert 0 < run.ctx.deadline.spent_s < 60
    lead_to_the_end(bench, trial)


def test_time_while_the_daemon_was_away_counts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = brought_to(bench, State.LOADING)
    bench.end()
    allowed_s = bench.config.services["a"].deadlines.loading_s
    with monkeypatch.context() as patch:
        patch.setattr(clock, "elapsed_s", lambda since, real=clock.elapsed_s: real(since) + allowed_s)
        bench.start()
    bench.turn()
    assert bench.store.moves(trial)[-1]["trigger"] == "timed-out"
    lead_to_the_end(bench, trial)


def test_a_kept_trial_whose_task_has_not_ended_yet_is_taken_back(bench: Bench) -> None:
    trial = brought_to(bench, State.BENCHMARK)
    bench.may_leave.clear()
    bench.turn(lambda: bench.working[trial].set_result(Step(Trigger.KEEP, "better", Outcome.BETTER)))
    assert bench.state(trial) is State.KEPT
    bench.turn(lambda: bench.scheduler.rollback("a", "a test"))
    assert bench.state(trial) is State.ROLLBACK, "the command was taken and forgotten"
    assert not bench.working, "two tasks of one trial are at work"
    bench.turn(bench.may_leave.set)
    assert list(bench.working) == [trial]
    lead_to_the_end(bench, trial)
    assert bench.state(trial) is State.RESTORED
