"""What the console knows, as frozen records, and how JSON becomes one. Missing fields are unknown, not wrong."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tui.words import clean, number

__all__ = [
    "Bench",
    "Check",
    "Detail",
    "Failure",
    "Guard",
    "HostLink",
    "Note",
    "Progress",
    "Service",
    "Step",
    "Trial",
    "detail_from",
    "service_from",
    "trial_from",
]

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the work of a state is: `fraction` 0..1 or None, `source` what it was read from, `at` when."""

    state: str
    stage: str = ""
    fraction: float | None = None
    source: str = ""
    eta_s: float | None = None
    detail: str = ""
    at: str = ""
    overall: float | None = None

    @property
    def share(self) -> float | None:
        """The share of the whole start where it is known, else of the stage."""
        return self.fraction if self.overall is None else self.overall


@dataclass(frozen=True, slots=True)
class Bench:
    """Requests of the running level so far."""

    side: str
    load: str
    repeat: int
    done: int
    total: int
    failed: int = 0
    output_tok_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A trial as the list shows it; `measured` are the finished levels: side, load in words, repeat."""

    id: str
    name: str = ""
    service: str = ""
    host: str = ""
    state: str = ""
    outcome: str = ""
    reason: str = ""
    created_at: str = ""
    updated_at: str = ""
    expected_end_at: str = ""
    progress: Progress | None = None
    bench: Bench | None = None
    measured: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Guard:
    """The dead-man's switch: state is armed, fired or disarmed; `until` the end of its lease."""

    state: str
    until: str = ""


@dataclass(frozen=True, slots=True)
class HostLink:
    """The daemon's link to a host; `since_contact_s` was true at `at`."""

    connected: bool | None = None
    since_contact_s: float | None = None
    why_down: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service: what serves, what holds it, how long a trial would take it away (None: nothing known)."""

    name: str
    host: str = ""
    unit: str = ""
    serving: str = ""
    trial: str = ""
    guard: Guard | None = None
    expected_outage_s: float | None = None
    link: HostLink = HostLink()


@dataclass(frozen=True, slots=True)
class Step:
    """One move of a trial's history: the state reached, by which trigger, when and why."""

    state: str
    trigger: str
    at: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of preflight or verify: passed, failed, warning or unchecked."""

    name: str
    status: str
    evidence: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a trial failed: its class, a sentence, the root cause's lines, a hint."""

    kind: str
    sentence: str = ""
    lines: tuple[str, ...] = ()
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Something a person should know: level is info, warning or alarm."""

    level: str
    text: str
    at: str = ""
    trial: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """All that the console shows of one trial beyond its row; flags, levels and comparison stay as the API has them."""

    serving: str = ""
    deadline_at: str = ""
    history: tuple[Step, ...] = ()
    flags: Json = field(default_factory=dict)
    env: Json = field(default_factory=dict)
    baseline: tuple[Json, ...] = ()
    candidate: tuple[Json, ...] = ()
    comparison: Json = field(default_factory=dict)
    guard: Guard | None = None
    checks: tuple[Check, ...] = ()
    failure: Failure | None = None
    note: str = ""
    rehearsal: bool = False
    expected_s: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    asked: str = ""
    at: str = ""


def trial_from(body: Json, at: str) -> Trial:
    """Return the row of a trial's JSON, brief or whole, as read at the time `at`."""
    return Trial(
        id=clean(body.get("id") or ""),
        name=_text(body, "name"),
        service=_text(body, "service"),
        host=_text(body, "host"),
        state=_text(body, "state"),
        outcome=_text(body, "outcome"),
        reason=_text(body, "reason"),
        created_at=_text(body, "created_at"),
        updated_at=_text(body, "updated_at"),
        expected_end_at=_text(body, "expected_end_at"),
        progress=_progress(body.get("progress"), at),
    )


def _progress(body: Any, at: str) -> Progress | None:
    if not isinstance(body, Mapping):
        return None
    return Progress(
        state=_text(body, "state"),
        stage=_text(body, "stage"),
        fraction=number(body.get("fraction")),
        source=_text(body, "source"),
        eta_s=number(body.get("eta_s")),
        detail=_text(body, "detail"),
        at=_text(body, "at") or at,
        overall=number(body.get("overall")),
    )


def service_from(body: Json, at: str) -> Service:
    """Return a service's JSON as read at the time `at`."""
    link = _mapping(body.get("link"))
    connected = link.get("connected")
    return Service(
        name=_text(body, "name"),
        host=_text(body, "host"),
        unit=_text(body, "unit"),
        serving=_text(body, "serving"),
        trial=_text(body, "trial"),
        guard=guard_from(body.get("guard")),
        expected_outage_s=number(body.get("expected_outage_s")),
        link=HostLink(
            connected=connected if isinstance(connected, bool) else None,
            since_contact_s=number(link.get("since_contact_s")),
            why_down=_text(link, "why_down"),
            at=at,
        ),
    )


def guard_from(body: Any) -> Guard | None:
    """Return the guard of a JSON object, None when there is none."""
    if not isinstance(body, Mapping) or not body.get("state"):
        return None
    return Guard(_text(body, "state"), _text(body, "until"))


def detail_from(body: Json, at: str) -> Detail:
    """Return what is more than the row in a whole trial's JSON, as read at the time `at`."""
    changes = _mapping(body.get("changes"))
    return Detail(
        serving=_text(body, "serving"),
        deadline_at=_text(body, "deadline_at"),
        history=tuple(
            Step(_text(step, "state"), _text(step, "trigger"), _text(step, "at"), _text(step, "cause"))
            for step in _mappings(body.get("history"))
        ),
        flags=_mapping(changes.get("flags")),
        env=_mapping(changes.get("env")),
        baseline=_levels(body.get("baseline")),
        candidate=_levels(body.get("candidate")),
        comparison=_mapping(body.get("comparison")),
        guard=guard_from(body.get("guard")),
        checks=tuple(check_from(check) for check in _mappings(body.get("checks"))),
        failure=_failure(body.get("failure")),
        note=_text(body, "note"),
        rehearsal=body.get("rehearsal") is True,
        expected_s={
            str(state): seconds
            for state, value in _mapping(body.get("expected_s")).items()
            if (seconds := number(value)) is not None
        },
        at=at,
    )


def check_from(body: Json) -> Check:
    """Return a check's JSON as a record."""
    return Check(_text(body, "name"), _text(body, "status"), _text(body, "evidence"), _text(body, "fix"))


def _failure(body: Any) -> Failure | None:
    if not isinstance(body, Mapping):
        return None
    lines = body.get("lines")
    words = tuple(clean(line) for line in lines) if isinstance(lines, list) else ()
    return Failure(_text(body, "kind") or "unknown", _text(body, "sentence"), words, _text(body, "hint"))


def _levels(side: Any) -> tuple[Json, ...]:
    return _mappings(_mapping(side).get("levels"))


def _mapping(body: Any) -> Json:
    return body if isinstance(body, Mapping) else {}


def _mappings(body: Any) -> tuple[Json, ...]:
    return tuple(item for item in body if isinstance(item, Mapping)) if isinstance(body, list) else ()


def _text(body: Json, key: str) -> str:
    value = body.get(key)
    return "" if value is None else clean(value)
