"""What a unit's running invocation says of its own start: how long each stage took, and facts such as the version."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specd.engines.engine import Engine, Stage
from specd.engines.progress import Estimator
from specd.errors import HostError
from specd.services.service import ServiceManager

__all__ = ["Started", "read_start"]

_RECORDS = 20_000
_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Started:
    """Seconds by stage, {} when the journal no longer has the start, and what the log said of itself."""

    took_s: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


async def read_start(manager: ServiceManager, unit: str, invocation: str, engine: Engine) -> Started:
    """Read an invocation's journal until its server was up; what can't be read in a few seconds is left out."""
    reader = engine.reader()
    estimator: Estimator | None = None
    count = 0
    try:
        async with asyncio.timeout(_WITHIN_S), manager.journal(unit, invocation) as records:
            async for record in records:
                count += 1
                estimator = estimator or Estimator(record.at)
                for observation in reader.feed(record.text):
                    estimator.observe(observation, record.at)
                if estimator.stage == Stage.SERVER:
                    return Started(dict(estimator.took_s), dict(reader.facts()))
                if count > _RECORDS:
                    break
    except (TimeoutError, HostError):
        pass
    return Started({}, dict(reader.facts()))
