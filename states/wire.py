"""Events to JSON dicts and back: one registry, one version. `{"v": 1, "type": "TrialMoved", "seq": 7, ...}`"""

import dataclasses
import typing
from typing import Any

from states import events
from states.errors import UnknownEvent
from states.events import Event

__all__ = ["REGISTRY", "VERSION", "decode", "encode"]

VERSION = 1
REGISTRY: dict[str, type[Event]] = {
    name: kind for name in events.__all__ if name != "Event" and issubclass(kind := getattr(events, name), Event)
}
_TUPLES = {
    name: frozenset(f for f, hint in typing.get_type_hints(kind).items() if typing.get_origin(hint) is tuple)
    for name, kind in REGISTRY.items()
}


def encode(event: Event) -> dict[str, Any]:
    """Return the event as a JSON-ready dict."""
    body = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
    return {"v": VERSION, "type": type(event).__name__, **body}


def decode(record: dict[str, Any]) -> Event:
    """Return the event of a wire record; raises UnknownEvent. Fields of a newer version are dropped."""
    name = str(record.get("type"))
    kind = REGISTRY.get(name)
    if kind is None:
        raise UnknownEvent(f"no event is called {name!r}")
    known = {field.name for field in dataclasses.fields(kind)}
    fields: dict[str, Any] = {
        key: tuple(value) if key in _TUPLES[name] and isinstance(value, list) else value
        for key, value in record.items()
        if key in known
    }
    try:
        return kind(**fields)
    except TypeError as error:
        raise UnknownEvent(f"{name}: {error}") from error
