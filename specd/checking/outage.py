"""How long the service would be away, by its own history, against what may end the trial before that."""

from specd.checking.trial import Plan
from specd.checks import Check
from specd.cli.text import duration
from specd.window import Windows
from states.table import CANDIDATE_OWNS, State

__all__ = ["outage_checks"]


def outage_checks(plan: Plan) -> list[Check]:
    """Check deadlines and the maintenance window against the expected outage."""
    states = [*CANDIDATE_OWNS, State.ROLLBACK]
    known = [plan.expected_s[state.value] for state in states if state.value in plan.expected_s]
    # Only a start that was seen says anything; the other parts are short beside it.
    expected_s = sum(known) if State.LOADING.value in plan.expected_s else None
    return [_deadlines(plan, expected_s), *_window(plan, expected_s)]


def _deadlines(plan: Plan, expected_s: float | None) -> Check:
    name = "outage.expected"
    limits = plan.service.deadlines
    for state in (State.LOADING, State.CUDAGRAPH_COMPILE, State.BENCHMARK, State.ROLLBACK):
        takes_s = plan.expected_s.get(state.value, 0.0)
        limit_s = float(getattr(limits, f"{state.name.lower()}_s"))
        if takes_s > limit_s:
            words = f"{state.value} is expected to take {duration(takes_s)}, and is ended after {duration(limit_s)}"
            return Check.warning(name, words, f"raise {state.name.lower()}_s of services.{plan.service.name}.deadlines")
    if expected_s is None:
        return Check.unchecked(name, "no start of this service was seen yet, so its outage is not known")
    if expected_s > limits.candidate_s + limits.rollback_s:
        words = (
            f"about {duration(expected_s)} without the baseline, more than the {duration(limits.candidate_s)} allowed"
        )
        return Check.warning(name, words, f"raise total_s of services.{plan.service.name}.deadlines")
    return Check.passed(name, f"about {duration(expected_s)} without the baseline")


def _window(plan: Plan, expected_s: float | None) -> list[Check]:
    name = "outage.window"
    windows = Windows(plan.service.windows)
    left_s = windows.left_s()
    if left_s == float("inf"):
        return []
    if left_s is None:
        return [Check.warning(name, f"closed; a trial waits in the queue until {windows.opens_words()}")]
    if expected_s is not None and expected_s > left_s:
        words = f"open for another {duration(left_s)}, and the outage is expected to take {duration(expected_s)}"
        return [Check.warning(name, words, "submit it earlier in the window, or lengthen that")]
    return [Check.passed(name, f"open for another {duration(left_s)}")]
