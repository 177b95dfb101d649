"""Events go over the wire and come back the same; what is unknown is an error that says so."""

import dataclasses
import json
import typing

import pytest

from states.errors import UnknownEvent
from states.events import Event, TrialMoved
from states.wire import REGISTRY, decode, encode

_VALUES: dict[object, object] = {str: "word", int: 3, float: 1.5}


def _example(kind: type[Event]) -> Event:
    hints = typing.get_type_hints(kind)
    fields = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        origin = typing.get_origin(hint)
        if origin is tuple:
            fields[field.name] = ("a", "b")
        elif origin is not None and "Mapping" in str(origin):
            fields[field.name] = {"k": [1, None]}
        else:
            plain = next((part for part in typing.get_args(hint) or (hint,) if part in _VALUES), str)
            fields[field.name] = _VALUES[plain]
    return kind(**fields)


@pytest.mark.parametrize("kind", REGISTRY.values(), ids=REGISTRY)
def test_every_event_survives_the_wire(kind: type[Event]) -> None:
    event = _example(kind)
    assert decode(json.loads(json.dumps(encode(event)))) == event


def test_a_field_of_a_newer_version_is_dropped() -> None:
    record = encode(TrialMoved(source="queued", trigger="start", target="baseline")) | {"later": 1}
    assert isinstance(decode(record), TrialMoved)


@pytest.mark.parametrize("record", [{}, {"type": "Event"}, {"type": "TrialMoved"}, {"type": "NoSuch", "seq": 1}])
def test_what_is_no_event_is_refused(record: dict[str, object]) -> None:
    with pytest.raises(UnknownEvent):
        decode(record)
