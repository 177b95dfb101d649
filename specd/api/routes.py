"""Every HTTP route as data: method, path, what it does, what it takes; handlers and the OpenAPI page derive from it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from specd.api.service import Application
from specd.errors import UsageError

__all__ = ["ROUTES", "Field", "Route"]


@dataclass(frozen=True, slots=True)
class Field:
    """A path, query or body field: its JSON type, and its default (None: it must be given)."""

    name: str
    kind: type
    default: Any = None
    where: str = "body"

    def read(self, raw: Any) -> Any:
        """Return a value of the field's type; raises UsageError."""
        if raw is None:
            if self.default is None:
                raise UsageError(f"{self.name!r} is missing")
            return self.default
        if self.where == "body":
            fits = isinstance(raw, self.kind) or (self.kind is float and isinstance(raw, int))
            if not fits or (self.kind is not bool and isinstance(raw, bool)):
                raise UsageError(f"{self.name!r} must be {self.kind.__name__}, not {type(raw).__name__}")
            return self.kind(raw)
        try:
            return self.kind(raw)
        except ValueError as error:
            raise UsageError(f"{self.name!r} must be {self.kind.__name__}: {raw!r}") from error


@dataclass(frozen=True, slots=True)
class Route:
    """One route; `answer(application, fields)` returns JSON-ready values, or a coroutine of them."""

    method: str
    path: str
    summary: str
    answer: Callable[[Application, dict[str, Any]], dict[str, Any] | Awaitable[dict[str, Any]]]
    fields: tuple[Field, ...] = field(default_factory=tuple)
    status: int = 200


_FILE = (Field("file", str, "trials.toml"), Field("text", str), Field("rehearsal", bool, False))
_TRIAL = Field("trial", str, where="path")
_BY = Field("by", str, "someone")

ROUTES: tuple[Route, ...] = (
    Route("GET", "/v1/health", "Who answers here.", lambda app, _: app.health()),
    Route(
        "GET",
        "/v1/trials",
        "The latest trials, newest first.",
        lambda app, got: app.trials(got["limit"]),
        (Field("limit", int, 200, "query"),),
    ),
    Route(
        "POST",
        "/v1/trials",
        "Queue the trials of a trial file, all or none. An equal `key` gives the same trials again.",
        lambda app, got: app.submit(got["file"], got["text"], got["rehearsal"], got["key"]),
        (*_FILE, Field("key", str, "")),
        201,
    ),
    Route("GET", "/v1/trials/{trial}", "One trial, whole.", lambda app, got: app.trial(got["trial"]), (_TRIAL,)),
    Route(
        "GET",
        "/v1/trials/{trial}/artefacts",
        "A trial's texts: units and diff.",
        lambda app, got: app.artefacts(got["trial"]),
        (_TRIAL,),
    ),
    Route(
        "GET",
        "/v1/trials/{trial}/log",
        "Journal lines of a trial's units after line number `after`; a negative one counts from the end.",
        lambda app, got: app.log(got["trial"], got["after"], got["limit"]),
        (_TRIAL, Field("after", int, 0, "query"), Field("limit", int, 1000, "query")),
    ),
    Route(
        "POST",
        "/v1/trials/{trial}/cancel",
        "End a trial; the baseline comes back if it was stopped.",
        lambda app, got: app.cancel(got["trial"], got["by"], got["why"]),
        (_TRIAL, _BY, Field("why", str, "")),
        202,
    ),
    Route(
        "POST",
        "/v1/trials/{trial}/extend",
        "Give the running state of a trial more minutes.",
        lambda app, got: app.extend(got["trial"], got["minutes"]),
        (_TRIAL, Field("minutes", float)),
    ),
    Route(
        "POST",
        "/v1/plan",
        "Dry run of a trial file: checks, diffs, expected outage; touches nothing.",
        lambda app, got: app.plan(got["file"], got["text"], got["rehearsal"]),
        _FILE,
    ),
    Route("GET", "/v1/services", "Each service: what holds it, what serves.", lambda app, _: app.services()),
    Route(
        "POST",
        "/v1/services/{service}/rollback",
        "Bring a service's baseline back.",
        lambda app, got: app.rollback(got["service"], got["by"]),
        (Field("service", str, where="path"), _BY),
        202,
    ),
    Route("POST", "/v1/check", "Preflight of every host and service.", lambda app, _: app.check()),
    Route(
        "GET",
        "/v1/events.json",
        "Stored events after `since`, oldest first.",
        lambda app, got: {"events": app.store.events(got["since"], min(got["limit"], 10000), got["trial"] or None)},
        (Field("since", int, 0, "query"), Field("limit", int, 1000, "query"), Field("trial", str, "", "query")),
    ),
)
