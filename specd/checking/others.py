"""Units that stop when the baseline stops: a rollback has to bring them back, too."""

from specd.checking.trial import Plan
from specd.checks import Check

__all__ = ["dependents_check"]


async def dependents_check(plan: Plan) -> list[Check]:
    """Name the active units that a stop of the baseline takes along."""
    name = "unit.dependents"
    found = [each for each in await plan.manager.dependents(plan.service.unit) if not each.unit.endswith(".target")]
    active = [each for each in found if each.is_active]
    if not active:
        return [Check.passed(name, "no other running unit stops with it")]
    words = ", ".join(f"{each.unit} ({each.relation})" for each in active)
    fix = "specd starts them again behind the baseline; they are down for as long as the trial lasts"
    return [Check.warning(name, f"these stop with {plan.service.unit}: {words}", fix)]
