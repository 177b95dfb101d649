"""Binds the table to a synchronous transitions.Machine: a move is judged, committed, and only then made."""

from collections.abc import Callable

from transitions import EventData, Machine, MachineError

from states.errors import IllegalMove
from states.table import MOVES, State, Trigger, destination

__all__ = ["TrialMachine"]


class TrialMachine:
    """One trial's state. `commit(source, trigger, target)` must make the move durable; if it raises, nothing moved."""

    def __init__(self, commit: Callable[[State, Trigger, State], None], initial: State = State.QUEUED) -> None:
        self._commit = commit
        self._machine = Machine(
            model=self,
            states=State,
            initial=initial,
            auto_transitions=False,
            send_event=True,
            before_state_change=self._before,
            model_attribute="state",
            model_override=False,
        )
        for move in MOVES:
            self._machine.add_transition(move.trigger.value, move.source, move.target)

    state: State

    def fire(self, trigger: Trigger) -> State:
        """Make the move that `trigger` names and return the new state; raises IllegalMove or the commit's error."""
        source = self.state
        try:
            self._machine.events[trigger.value].trigger(self)
        except MachineError as error:
            raise IllegalMove(source, trigger) from error
        return self.state

    def _before(self, event: EventData) -> None:
        trigger = Trigger(event.event.name)
        target = destination(self.state, trigger)
        if target is None:
            raise IllegalMove(self.state, trigger)
        self._commit(self.state, trigger, target)
