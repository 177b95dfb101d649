"""How long the stages of a start took: read from the baseline's own journal, the first expectation for a candidate."""

import asyncio

from specd.engines.engine import Stage
from specd.engines.progress import Estimator
from specd.errors import HostError
from specd.phases.context import Baseline, Context

__all__ = ["last_start_s"]

_RECORDS = 20_000
_WITHIN_S = 5.0


async def last_start_s(ctx: Context, baseline: Baseline) -> dict[str, float]:
    """Return seconds by stage of the running baseline's start; empty when the journal no longer has it."""
    reader = baseline.engine.reader()
    estimator: Estimator | None = None
    count = 0
    invocation = baseline.status.invocation
    try:
        async with asyncio.timeout(_WITHIN_S), ctx.manager.journal(ctx.service.unit, invocation) as records:
            async for record in records:
                count += 1
                estimator = estimator or Estimator(record.at)
                for observation in reader.feed(record.text):
                    estimator.observe(observation, record.at)
                if estimator.stage == Stage.SERVER:
                    return dict(estimator.took_s)
                if count > _RECORDS:
                    break
    except (TimeoutError, HostError):
        pass
    return {}
