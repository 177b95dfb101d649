"""What the store hands out, and the JSON forms it keeps."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from specd.bench.plan import Level, LevelDone, Sample
from specd.engines.engine import Failure
from specd.settings import TrialSpec
from states.table import Outcome, State

__all__ = ["LogLine", "MeasuredLevel", "TrialRow", "level_from_json", "level_to_json", "spec_from_json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """A trial as stored."""

    id: str
    name: str
    service: str
    host: str
    spec: TrialSpec
    created_at: str
    updated_at: str
    state: State
    outcome: Outcome | None
    reason: str
    failure: Failure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLevel:
    """A finished level of one side and the invocation it was measured on."""

    side: str
    invocation: str
    at: str
    done: LevelDone


@dataclass(frozen=True, slots=True)
class LogLine:
    """A stored journal record; `n` counts from 1 within the trial."""

    n: int
    at: float
    unit: str
    pid: int
    text: str


def spec_from_json(body: dict[str, Any]) -> TrialSpec:
    """Return the spec of a stored trial; keys that this version does not know are dropped."""
    known = {field.name for field in dataclasses.fields(TrialSpec)}
    return TrialSpec(**{key: value for key, value in body.items() if key in known})


def level_to_json(done: LevelDone) -> dict[str, Any]:
    """Return a level's JSON form."""
    return dataclasses.asdict(done)


def level_from_json(body: dict[str, Any]) -> LevelDone:
    """Return a level from its JSON form."""
    samples = tuple(Sample(**sample) for sample in body["samples"])
    return LevelDone(**{**body, "level": Level(**body["level"]), "samples": samples})
