"""External text is made harmless; times and figures read well."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.words import age, clean, clock_words, difference, is_secret_name, moment, number, short, value_words


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]52;c;ZXZpbA==\x1b\\after", "after"),
        ("\x9d0;title\x9cafter", "after"),
        ("\x1bPdevice\x1b\\after", "after"),
        ("\x1bcreset", "reset"),
        ("two\nlines\r\nand\ttab", "two lines and tab"),
        ("bell\x07 null\x00 del\x7f", "bell null del"),
        ("turn\u202eed\u2066 around\u200b", "turned around"),
        ("ünïcode 模型 ✓", "ünïcode 模型 ✓"),
        ("[red]markup[/red]", "[red]markup[/red]"),
    ],
)
def test_a_terminal_obeys_nothing_in_clean_text(raw: str, shown: str) -> None:
    assert clean(raw) == shown


@given(st.text())
def test_clean_text_has_no_control_characters_and_is_clean_already(raw: str) -> None:
    shown = clean(raw)
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F for char in shown)
    assert clean(shown) == shown


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0s"),
        (9.9, "9.9s"),
        (42.4, "42s"),
        (185, "3m05s"),
        (3599.6, "1h00m"),
        (3720, "1h02m"),
        (188000, "2d04h"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert short(seconds) == words


def test_a_clock_ticks_in_whole_seconds() -> None:
    assert [clock_words(value) for value in (-3.0, 7.9, 59.9, 60.0, 61.9)] == ["0s", "7s", "59s", "1m00s", "1m01s"]


def test_ages_have_one_unit() -> None:
    assert [age(value) for value in (-5, 59, 60, 7200, 200000)] == ["now", "now", "1m", "2h", "2d"]


@pytest.mark.parametrize("text", ["", "yesterday", None, 12])
def test_what_is_no_time_is_none(text: object) -> None:
    assert moment(text) is None


def test_a_time_without_zone_is_utc() -> None:
    assert moment("2026-03-01T12:00:00") == datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_true_is_no_number() -> None:
    assert number(True) is None
    assert number("3") is None
    assert number(3) == 3.0


def test_a_difference_from_nothing_says_nothing() -> None:
    assert difference(0.0, 3.0) == ""
    assert difference(None, 3.0) == ""
    assert difference(13.6, 15.53) == "+14.2%"


@pytest.mark.parametrize("name", ["--api-key", "HF_TOKEN", "db.password", "VLLM_API_KEY"])
def test_secrets_are_masked(name: str) -> None:
    assert is_secret_name(name)
    assert value_words(name, "hf_abc") == "***"


@pytest.mark.parametrize("name", ["num-speculative-tokens", "max-num-batched-tokens", "tokenizer"])
def test_counts_of_tokens_are_no_secrets(name: str) -> None:
    assert value_words(name, "5") == "5"


def test_a_secret_inside_a_flag_is_masked_and_null_is_removal() -> None:
    assert value_words("config", {"api_key": "x1", "list": [{"token": "x2"}], "k": 1}) == (
        '{"api_key": "***", "list": [{"token": "***"}], "k": 1}'
    )
    assert value_words("flag", None) == "(removed)"
