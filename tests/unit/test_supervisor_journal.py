"""Lines, records, parts and cursors of a unit's journal."""

import errno
import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from specd.supervisor.journal import HELD_BYTES, LINE_LIMIT, Journal, Line, LineCutter, Reader


def put(journal: Journal, *texts: str, invocation: str = "a") -> None:
    journal.append("stdout", [Line(text.encode()) for text in texts], invocation=invocation, pid=7, at=1.5)


def read(reader: Reader, limit: int = 1000) -> list[dict[str, Any]]:
    found: list[bytes] = []
    more = True
    while more:
        some, more = reader.read(limit)
        found += some
    return [json.loads(raw) for raw in found]


def stored(journal: Journal, invocation: str = "a", after: int = 0) -> list[dict[str, Any]]:
    with closing(Reader(journal, invocation, after)) as reader:
        return read(reader)


def texts(journal: Journal, invocation: str = "a", after: int = 0) -> list[str]:
    return [record["text"] for record in stored(journal, invocation, after)]


def test_lines_end_at_newlines_only() -> None:
    cutter = LineCutter()
    assert cutter.feed(b"one\ntwo\rthr") == [Line(b"one")]
    assert cutter.feed(b"ee\r\n\nfo") == [Line(b"two\rthree\r"), Line(b"")]
    assert cutter.finish() == [Line(b"fo")]
    assert cutter.finish() == []


def test_a_long_line_is_split_at_characters_and_marked() -> None:
    text = "é" * (LINE_LIMIT + 100)
    for chunk_bytes in (len(text.encode()), 1000):
        cutter = LineCutter()
        raw = text.encode() + b"\nnext\n"
        lines = [line for at in range(0, len(raw), chunk_bytes) for line in cutter.feed(raw[at : at + chunk_bytes])]
        assert lines[-1] == Line(b"next")
        assert [line.split for line in lines] == [True, True, False, False]
        assert "".join(line.text.decode() for line in lines[:-1]) == text
        assert max(len(line.text) for line in lines) <= LINE_LIMIT


def test_records_hold_what_was_said_and_rise(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "llm")
    put(journal, "plain", "with \x1b[31m \r \0 and \ud7ff")
    journal.append("stderr", [Line(b"\xff", split=True)], invocation="b", pid=8, at=2.0)
    first, second, third = stored(journal, "")
    assert first["text"] == "plain"
    assert second["text"] == "with \x1b[31m \r \0 and \ud7ff"
    assert third == {**third, "text": "�", "stream": "stderr", "pid": 8, "at": 2.0, "split": True, "invocation": "b"}
    assert first["seq"] < second["seq"] < third["seq"]


def test_a_reader_filters_by_invocation_and_cursor(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "llm")
    put(journal, "1", "2")
    put(journal, 'x "invocation": "a"', invocation="b")
    put(journal, "3")
    assert texts(journal) == ["1", "2", "3"]
    second = stored(journal, "a")[1]["seq"]
    assert texts(journal, after=second) == ["3"]


def test_a_reader_goes_on_where_it_was_across_many_parts(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "llm", file_bytes=2000)
    seen: list[str] = []
    with closing(Reader(journal, "a", 0)) as reader:
        for number in range(500):
            put(journal, f"line {number}")
            if number % 7 == 0:
                seen += [record["text"] for record in read(reader, limit=3)]
        seen += [record["text"] for record in read(reader)]
    assert seen == [f"line {number}" for number in range(500)]
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) <= 5
    assert max(sizes) <= 2000


def test_a_late_reader_gets_the_newest_parts_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "llm", file_bytes=2000)
    for number in range(500):
        put(journal, str(number))
    numbers = [int(text) for text in texts(journal)]
    assert numbers == list(range(numbers[0], 500))
    assert len(numbers) > 30


def test_cursors_rise_over_restarts_and_half_a_record_is_dropped(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "llm")
    put(journal, "before")
    last = stored(journal, "a")[-1]["seq"]
    with (tmp_path / "llm.jsonl").open("ab") as file:
        file.write(b'{"seq": 99999999999999999, "te')
    again = Journal(tmp_path, "llm")
    put(again, "after")
    assert texts(again, after=last) == ["after"]
    assert texts(again) == ["before", "after"]


def test_cursors_rise_even_when_the_clock_has_gone_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(Journal(tmp_path, "llm"), "before")
    monkeypatch.setattr("time.time_ns", lambda: 1_000_000)
    again = Journal(tmp_path, "llm")
    put(again, "after")
    records = stored(again, "a")
    assert [record["text"] for record in records] == ["before", "after"]
    assert records[0]["seq"] < records[1]["seq"]


def test_what_can_not_be_written_is_read_all_the_same_and_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path, "llm")
    with closing(Reader(journal, "a", 0)) as reader:
        put(journal, "first")
        assert [record["text"] for record in read(reader)] == ["first"]
        with monkeypatch.context() as full:
            real = os.write
            full.setattr("os.write", lambda fd, raw: real(fd, bytes(raw)[:20]))
            put(journal, "second", "third")
            full.setattr("os.write", _raise_no_space)
            put(journal, "fourth")
            assert [record["text"] for record in read(reader)] == ["second", "third", "fourth"]
        put(journal, "fifth")
        assert [record["text"] for record in read(reader)] == ["fifth"]
    assert texts(Journal(tmp_path, "llm")) == ["first", "second", "third", "fourth", "fifth"]


def test_what_has_to_be_let_go_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, "llm")
    with monkeypatch.context() as full:
        full.setattr("os.write", _raise_no_space)
        for number in range(300):
            put(journal, str(number) + "x" * 20_000)
        assert sum(len(raw) for _, raw in journal.held) <= HELD_BYTES
    put(journal, "room again")
    *_, last, notice = stored(journal, "a")
    assert last["text"] == "room again"
    assert notice["stream"] == "manager"
    lost = int(notice["text"].split()[0])
    assert 0 < lost < 300
    assert len(texts(journal)) == 300 - lost + 2


def _raise_no_space(_fd: int, _raw: bytes) -> int:
    raise OSError(errno.ENOSPC, "no space")
