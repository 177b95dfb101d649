"""External text can't steer a terminal; durations, times, tables and figures read well."""

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.cli.event_words import event_words
from specd.cli.figures import comparison_words, difference, level_pairs, level_rows
from specd.cli.terminal import Terminal
from specd.cli.text import clean, duration, table
from states import events, wire


@given(st.text(alphabet=st.characters(), max_size=60))
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    for kept in (clean(text), clean(text, lines=True).replace("\n", "")):
        assert not any(ord(char) < 32 or 0x7F <= ord(char) <= 0x9F or 0x202A <= ord(char) <= 0x202E for char in kept)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPdevice\x1b\\x", "x"),
        ("\x9b2Jx", "x"),
        ("a\r\nb\tc", "a b c"),
        ("a\u202eb\u2066c", "abc"),
        ("größe 模型 ✓", "größe 模型 ✓"),
        ("a\x00b\x7f", "ab"),
        (None, "None"),
    ],
)
def test_sequences_go_whole_and_letters_stay(text: Any, shown: str) -> None:
    assert clean(text) == shown


def test_line_breaks_are_kept_on_request() -> None:
    assert clean("a\r\nb\n\x1b[1mc\rd", lines=True) == "a\nb\ncd"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-1, "0.0 s"), (0.44, "0.4 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 00 s"),
     (185, "3 min 05 s"), (3599.6, "1 h 00 min"), (3720, "1 h 02 min"), (90000, "25 h 00 min")],
)  # fmt: skip
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_tables_align_and_have_no_trailing_blanks() -> None:
    assert table([("a", "1"), ("bbb", "22")], right=(1,), indent=" ") == [" a     1", " bbb  22"]
    assert table([("a", ""), ("bb", "")]) == ["a", "bb"]
    assert table([]) == []


def test_every_kind_of_event_has_words_of_its_own() -> None:
    for name, kind in wire.REGISTRY.items():
        hints = {field: "x" for field in kind.__dataclass_fields__}
        numbers = {"minutes": 1.0, "away_s": 2.0, "fraction": 0.5, "eta_s": 3.0, "done": 1, "total": 2, "failed": 0}
        summary = {"summary": {}, "comparison": {}, "left_behind": ["u"], "open_trials": [], "output_tok_s": 1.0}
        words = event_words({**hints, **numbers, **summary, "type": name})
        assert words
        assert not words.startswith(name), name


def test_an_event_of_a_newer_version_is_shown_by_its_fields() -> None:
    assert event_words({"v": 2, "type": "Novelty", "seq": 1, "at": "x", "a": 1, "b": "\x1b[2Jc"}) == "Novelty a=1 b=c"


def test_a_real_event_s_words() -> None:
    event = events.TrialMoved(source="loading", trigger="failed", target="rollback", cause="exit 1\n", outcome="failed")
    assert event_words(wire.encode(event)) == "loading -> rollback (failed): exit 1 [failed]"


@pytest.mark.parametrize(
    ("comparison", "words"),
    [
        ({}, ""),
        ({"metric": "tpot", "estimate": None}, ""),
        ({"metric": "tpot", "estimate": -0.25}, "speed by time per token -25.0%"),
        (
            {"metric": "output_tok_s", "estimate": 0.2, "low": 0.1, "high": 0.3, "level": 4},
            "speed by output tokens +20.0% (interval +10.0% to +30.0%) at concurrency 4, faster",
        ),
        (
            {"metric": "tpot", "estimate": 0.01, "low": -0.01, "high": 0.03, "confidence": 0.9},
            "speed by time per token +1.0% (90% interval -1.0% to +3.0%)",
        ),
    ],
)
def test_a_comparison_says_which_way(comparison: dict[str, Any], words: str) -> None:
    assert comparison_words(comparison) == words


def test_figures_that_one_side_lacks_are_shown_as_missing() -> None:
    sides = {"baseline": {"levels": [{"concurrency": 4, "tpot_ms": {"median": 0.0}}]}, "candidate": None}
    rows = level_rows(sides)
    assert rows == [
        ("concurrency 4", "baseline", "candidate", "difference"),
        ("  time per token, median (ms)", "0.00", "-", ""),
    ]
    assert difference("tpot_ms.median", 0.0, 1.0) == ""
    assert level_rows({}) == []


class Stream(io.StringIO):
    """A text stream that claims an encoding and perhaps to be a terminal."""

    encoding = "utf-8"  # type: ignore[assignment]
    tty = True

    def isatty(self) -> bool:
        return self.tty


@pytest.mark.parametrize(
    ("env", "colour", "unicode", "live"),
    [
        ({"TERM": "xterm", "LANG": "en_US.UTF-8"}, True, True, True),
        ({"TERM": "xterm", "LANG": "C.UTF-8", "NO_COLOR": "1"}, False, True, True),
        ({"TERM": "xterm", "LANG": "C"}, True, False, True),
        ({"TERM": "xterm", "LC_CTYPE": "C.UTF-8"}, True, False, True),
        ({"TERM": "xterm", "LC_ALL": "C", "LANG": "en_US.UTF-8"}, True, False, True),
        ({"TERM": "xterm", "LANG": "de_DE.ISO-8859-1"}, True, False, True),
        ({"TERM": "dumb", "LANG": "C.UTF-8"}, False, True, False),
    ],
)
def test_what_a_terminal_can(
    env: dict[str, str], colour: bool, unicode: bool, live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "LANG", "LC_ALL", "LC_CTYPE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal.of(Stream())
    assert (terminal.colour, terminal.unicode, terminal.live) == (colour, unicode, live)


def test_a_line_takes_the_place_of_the_live_line() -> None:
    stream = Stream()
    terminal = Terminal(stream, live=True, unicode=True)
    terminal.draw("50%")
    terminal.line("done")
    terminal.line("more")
    assert stream.getvalue() == "\r\x1b[2K50%\r\x1b[2Kdone\nmore\n"


def test_lone_surrogates_do_not_break_a_line() -> None:
    stream = Stream()
    Terminal(stream, unicode=True).line("a\udc80b")
    assert stream.getvalue() == "a?b\n"


def test_levels_of_a_rate_are_told_by_their_rate() -> None:
    levels = [
        {"concurrency": 0, "rate": 2.0, "output_tok_s": 30.0}, {"concurrency": 0, "rate": 0.5, "output_tok_s": 10.0},
        {"concurrency": 4, "output_tok_s": 90.0},
    ]  # fmt: skip
    trial = {"baseline": {"levels": levels}, "candidate": {"levels": levels[1:]}}
    assert [load for load, _, _ in level_pairs(trial)] == ["concurrency 4", "0.5 requests/s", "2 requests/s"]
    assert level_rows(trial)[-1][:3] == ("  output (tok/s)", "30.0", "-")
