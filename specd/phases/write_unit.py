"""State write-unit: renders the candidate from the baseline as it is, and puts it on the host."""

import difflib

from specd.phases.context import Context
from specd.phases.step import Step
from specd.uncut import to_the_end
from states.table import Trigger

__all__ = ["run", "unit_diff"]


async def run(ctx: Context) -> Step:
    """Write the candidate's unit and store what was intended."""
    baseline = await ctx.look_at_baseline()
    candidate = ctx.render_candidate(baseline)
    ctx.put("candidate", {"unit": candidate.name, "argv": [ctx.mask(word) for word in candidate.argv]})
    ctx.store.put_artefact(ctx.row.id, "candidate.unit", ctx.mask(candidate.content.decode(errors="replace")))
    ctx.store.put_artefact(
        ctx.row.id, "unit.diff", ctx.mask(unit_diff(baseline.facts.text, candidate.content.decode()))
    )
    await to_the_end(ctx.manager.install(candidate))
    return Step(Trigger.UNIT_WRITTEN, f"{candidate.path} written")


def unit_diff(before: str, after: str) -> str:
    """Return the unified diff of two unit texts."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "baseline", "candidate", lineterm="", n=2)
    return "\n".join(lines)
