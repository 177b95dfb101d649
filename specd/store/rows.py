"""What the store hands out, and the JSON forms it keeps."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specd.bench.plan import LevelDone
from specd.engines.engine import Failure
from specd.settings import TrialSpec
from states.table import Outcome, State

__all__ = ["LogLine", "MeasuredLevel", "TrialRow", "level_from_text", "level_to_json", "trial_from_row"]


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


def _spec_from_json(body: dict[str, Any]) -> TrialSpec:
    """Return the spec of a stored trial; keys that this version does not know are dropped."""
    known = {field.name for field in dataclasses.fields(TrialSpec)}
    return TrialSpec(**{key: value for key, value in body.items() if key in known})


def level_to_json(done: LevelDone) -> dict[str, Any]:
    """Return a level's JSON form."""
    return dataclasses.asdict(done)


def level_from_text(text: str) -> LevelDone:
    """Return a level from the text of its JSON form."""
    return LevelDone.from_json(json.loads(text))


def trial_from_row(row: Sequence[Any]) -> TrialRow:
    """Return a trial from its columns, in the order of the fields."""
    failure = Failure(**json.loads(row[10])) if row[10] else None
    if failure is not None:
        failure = dataclasses.replace(failure, lines=tuple(failure.lines))
    return TrialRow(
        id=row[0],
        name=row[1],
        service=row[2],
        host=row[3],
        spec=_spec_from_json(json.loads(row[4])),
        created_at=row[5],
        updated_at=row[6],
        state=State(row[7]),
        outcome=Outcome(row[8]) if row[8] else None,
        reason=row[9],
        failure=failure,
    )
