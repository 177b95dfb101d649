"""How the work of a state ends: with the trigger that moves the trial on, and why."""

from dataclasses import dataclass

from specd.engines.engine import Failure
from states.table import Outcome, Trigger

__all__ = ["Step"]


@dataclass(frozen=True, slots=True)
class Step:
    """A trigger with its cause in words; `outcome` and `failure` where the trial's result became known here."""

    trigger: Trigger
    cause: str = ""
    outcome: Outcome | None = None
    failure: Failure | None = None

    @classmethod
    def failed(cls, kind: str, sentence: str, *, hint: str = "", lines: tuple[str, ...] = ()) -> "Step":
        """End the trial as failed, with a class and a reason."""
        return cls.because(Failure(kind=kind, sentence=sentence, hint=hint, lines=lines))

    @classmethod
    def because(cls, failure: Failure, outcome: Outcome = Outcome.FAILED) -> "Step":
        """End the trial for a failure that is known."""
        return cls(Trigger.FAILED, failure.sentence, outcome, failure)
