"""The event parser gives the same events however the network cut the bytes."""

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.bench import sse
from specd.bench.sse import Event, EventParser, OverlongEvent

STREAMS = sorted((Path(__file__).parents[1] / "corpus" / "streams").glob("*.sse"))
ODD = (
    '\ufeff: hello\r\n\r\nevent: message\r\nid: 7\r\nretry: 10\r\ndata:{"a": "ä€🎉"}\r\n\r\n'
    "data: first\ndata:second\ndata\n\n:\n\ndata:  two spaces\r\rdata: x\n\r\nfoo: bar\n\nevent: error\ndata: {}\n\n"
).encode()
ODD_EVENTS = [
    Event('{"a": "ä€🎉"}'.encode(), "message"),
    Event(b"first\nsecond\n"),
    Event(b" two spaces"),
    Event(b"x"),
    Event(b"{}", "error"),
]


def parse(parts: list[bytes]) -> list[Event]:
    parser = EventParser()
    events = [event for part in parts for event in parser.feed(part)]
    rest = parser.close()
    assert parser.consumed == sum(map(len, parts))
    return events if rest is None else [*events, rest]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = [0, *sorted(places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(ends)]


def test_corpus_is_there() -> None:
    assert len(STREAMS) >= 8


def test_odd_stream() -> None:
    assert parse([ODD]) == ODD_EVENTS


def test_odd_stream_byte_by_byte() -> None:
    assert parse([ODD[at : at + 1] for at in range(len(ODD))]) == ODD_EVENTS


def test_every_pair_of_cuts_of_the_odd_stream() -> None:
    for first in range(len(ODD) + 1):
        for second in range(first, len(ODD) + 1, 7):
            assert parse(cut(ODD, [first, second])) == ODD_EVENTS


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
def test_thousand_cuts_of_a_captured_stream(path: Path, ending: bytes) -> None:
    data = path.read_bytes()
    whole = parse([data])
    assert len(whole) == data.count(b"data: ") > 5
    data = data.replace(b"\n", ending)
    rng = random.Random(path.stem)
    for _ in range(1000):
        places = rng.choices(range(len(data) + 1), k=rng.randint(1, 12))
        assert parse(cut(data, places)) == whole


@given(st.lists(st.binary(max_size=40)))
def test_bytes_of_any_kind_parse_alike_in_any_parts(parts: list[bytes]) -> None:
    assert parse(parts) == parse([b"".join(parts)])


def test_an_event_comes_with_its_last_byte() -> None:
    parser = EventParser()
    assert parser.feed(b"data: x") == []
    assert parser.feed(b"\n") == []
    assert parser.feed(b"\n") == [Event(b"x")]


def test_event_without_blank_line_is_handed_out_at_the_end() -> None:
    parser = EventParser()
    assert parser.feed(b"data: [DO") == []
    assert parser.feed(b"NE]") == []
    assert parser.close() == Event(b"[DONE]")
    assert parser.close() is None


def test_name_of_an_event_without_data_does_not_stick() -> None:
    assert parse([b"event: error\n\ndata: x\n\n"]) == [Event(b"x")]


@pytest.mark.parametrize("line", [b"x" * 64, b"data: " + b"y" * 9 + b"\n"], ids=["one line", "many lines"])
def test_endless_event_is_refused(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    parser = EventParser()

    def feed_for_ever() -> None:
        for _ in range(1000):
            parser.feed(line)

    with pytest.raises(OverlongEvent):
        feed_for_ever()
