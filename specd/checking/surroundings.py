"""All checks of a host and a unit that a restart depends on and that change nothing."""

import asyncio

from specd.checking.accelerator import gpu_check
from specd.checking.draft import draft_checks
from specd.checking.machine import machine_checks
from specd.checking.others import dependents_check
from specd.checking.outage import outage_checks
from specd.checking.trial import Plan
from specd.checking.unit import unit_checks
from specd.checks import Check

__all__ = ["surroundings"]


async def surroundings(plan: Plan) -> list[Check]:
    """Return the checks, in one order whatever comes first; raises HostUnreachable."""
    machine, gpu, others, draft = await asyncio.gather(
        machine_checks(plan), gpu_check(plan), dependents_check(plan), draft_checks(plan)
    )
    return [*unit_checks(plan), *others, *machine, *gpu, *draft, *outage_checks(plan)]
