"""The JSON that the API shows of trials and services; `show --json` is `whole`."""

from collections.abc import Mapping
from typing import Any

from specd import clock
from specd.engines.masking import MASK, is_secret_name
from specd.phases.guard import guard_json
from specd.store import Store, TrialRow
from specd.trial import TrialRun
from states.table import CANDIDATE_OWNS, State

__all__ = ["brief", "serving", "whole"]


def brief(row: TrialRow, run: TrialRun | None) -> dict[str, Any]:
    """Return a trial as the list shows it."""
    return {
        "id": row.id,
        "name": row.name,
        "service": row.service,
        "host": row.host,
        "state": row.state.value,
        "outcome": row.outcome.value if row.outcome else None,
        "reason": row.reason,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "progress": _progress(run),
    }


def _progress(run: TrialRun | None) -> dict[str, Any] | None:
    if run is None or run.ctx.progress is None:
        return None
    now = run.ctx.progress
    shown = ("state", "stage", "fraction", "overall", "source", "eta_s")
    return {key: getattr(now, key) for key in shown}


def serving(row: TrialRow, unit: str) -> str:
    """Return in words what serves while a trial is in this state."""
    if row.state is State.KEPT:
        return f"the candidate of {row.name}, by decision"
    if row.state is State.ROLLBACK_FAILED:
        return "unknown: the baseline is not proven"
    if row.state in (State.READY, State.BENCHMARK):
        return f"the candidate of {row.name}"
    if row.state in CANDIDATE_OWNS or row.state is State.ROLLBACK:
        return "nothing yet"
    return f"the baseline {unit}"


_FACTS = ("answers", "baseline", "candidate", "levels", "comparison", "drift", "guard", "checks")


def whole(row: TrialRow, run: TrialRun | None, store: Store, unit: str) -> dict[str, Any]:
    """Return a trial as `show --json` shows it."""
    facts = {key: store.fact(row.id, key) for key in _FACTS}
    levels = facts["levels"] or {}
    invocation = store.fact(row.id, "candidate.invocation")
    moves = store.moves(row.id)
    expected = run.ctx.history_s() if run else {}
    return {
        **brief(row, run),
        "class": row.failure.kind if row.failure else None,
        "failure": _failure(row),
        "serving": serving(row, unit),
        "deadline_at": run.ctx.deadline.at if run and run.ctx.deadline.allowed_s != float("inf") else None,
        "expected_s": expected,
        "expected_end_at": _ends_at(moves, expected.get(row.state.value)),
        "history": [
            {"state": move["target"], "trigger": move["trigger"], "at": move["at"], "cause": move["cause"]}
            for move in moves
        ],
        "changes": {"flags": _shown(row.spec.flags), "env": _shown(row.spec.env)},
        "baseline": _side(facts["baseline"], levels.get("baseline")),
        "candidate": _side({**(facts["candidate"] or {}), "invocation": invocation}, levels.get("candidate")),
        "comparison": facts["comparison"],
        "drift": facts["drift"],
        "answers": facts["answers"],
        "guard": guard_json(facts["guard"]),
        "checks": facts["checks"] or [],
        "note": row.spec.note,
        "rehearsal": row.spec.rehearsal,
    }


def _ends_at(moves: list[dict[str, str]], expected_s: float | None) -> str | None:
    """Return when the running state may be expected to end; None when nothing is known of its like."""
    return clock.after(expected_s, since=moves[-1]["at"]) if moves and expected_s is not None else None


def _shown(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial's changes without the values of those whose names say that they are secret."""
    return {
        name: MASK if is_secret_name(name) and value is not None and not isinstance(value, bool) else value
        for name, value in changes.items()
    }


def _side(known: Mapping[str, Any] | None, levels: list[Any] | None) -> dict[str, Any]:
    return {**{key: value for key, value in (known or {}).items() if key != "files"}, "levels": levels or []}


def _failure(row: TrialRow) -> dict[str, Any] | None:
    if row.failure is None:
        return None
    failure = row.failure
    return {"kind": failure.kind, "sentence": failure.sentence, "lines": list(failure.lines), "hint": failure.hint}
