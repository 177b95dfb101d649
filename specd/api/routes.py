"""Every HTTP route as data: method, path, what it does, what it takes; handlers and the OpenAPI page derive from it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from specd.api.service import Application
from specd.errors import UsageError

__all__ = ["ROUTES", "STREAM_FIELDS", "Field", "Route"]


@dataclass(frozen=True, slots=True)
class Field:
    """A path, query or body field: its JSON type, its default (None: it must be given), and its bounds for an int."""

    name: str
    kind: type
    default: Any = None
    where: str = "body"
    least: int | None = None
    most: int | None = None

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
        try:
            value = self.kind(raw)
        except (ValueError, OverflowError) as error:
            raise UsageError(f"{self.name!r} must be {self.kind.__name__}: {str(raw)[:80]!r}") from error
        return self._bounded(value)

    def _bounded(self, value: Any) -> Any:
        if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
            raise UsageError(f"{self.name!r} holds half a surrogate pair, which is no text")
        if (self.least is not None and value < self.least) or (self.most is not None and value > self.most):
            raise UsageError(f"{self.name!r} must lie between {self.least} and {self.most}, not {value}")
        return value


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
_MOST = 2**53
STREAM_FIELDS = (Field("since", int, 0, "query", least=0, most=_MOST), Field("trial", str, "", "query"))


def _limit(default: int, most: int = 10_000) -> Field:
    return Field("limit", int, default, "query", least=1, most=most)


ROUTES: tuple[Route, ...] = (
    Route("GET", "/v1/health", "Who answers here.", lambda app, _: app.health()),
    Route(
        "GET",
        "/v1/trials",
        "The latest trials, newest first; the next page is what comes `before` the last one's id.",
        lambda app, got: app.trials(got["limit"], got["before"]),
        (_limit(200, most=1000), Field("before", str, "", "query")),
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
        "/v1/trials/{trial}/levels",
        "What a trial measured, request by request, and the policy of its service.",
        lambda app, got: app.levels(got["trial"]),
        (_TRIAL,),
    ),
    Route(
        "GET",
        "/v1/trials/{trial}/log",
        "Journal lines of a trial's units after line number `after`; a negative one counts from the end.",
        lambda app, got: app.log(got["trial"], got["after"], got["limit"]),
        (_TRIAL, Field("after", int, 0, "query", least=-_MOST, most=_MOST), _limit(1000)),
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
    Route(
        "GET",
        "/v1/services/{service}/claim",
        "Which daemon drives a service, as its host has it.",
        lambda app, got: app.claim(got["service"]),
        (Field("service", str, where="path"),),
    ),
    Route(
        "POST",
        "/v1/services/{service}/takeover",
        "Take another daemon's claim on a service; its trial is not ended, its guard brings the baseline back.",
        lambda app, got: app.take_over(got["service"], got["by"]),
        (Field("service", str, where="path"), _BY),
    ),
    Route("POST", "/v1/check", "Preflight of every host and service.", lambda app, _: app.check()),
    Route(
        "GET",
        "/v1/events.json",
        "Stored events after `since`, oldest first.",
        lambda app, got: {"events": app.store.events(got["since"], got["limit"], got["trial"] or None)},
        (*STREAM_FIELDS, _limit(1000)),
    ),
)
