"""Maintenance windows: when one is open, for how long, and when it opens next."""

from datetime import datetime

import pytest

from specd.window import Windows, is_window

# A Wednesday.
DAY = datetime(2026, 12, 2)


def at(hour: int, minute: int = 0, day: int = 2) -> datetime:
    return datetime(2026, 12, day, hour, minute)


@pytest.mark.parametrize(
    ("texts", "now", "left_h"),
    [
        ([], at(3), float("inf")),
        (["02:00-05:30"], at(3), 2.5),
        (["02:00-05:30"], at(5, 30), None),
        (["22:00-06:00"], at(23), 7),
        (["22:00-06:00"], at(1), 5),
        (["Wed 22:00-06:00"], at(1, day=3), 5),
        (["Wed 22:00-06:00"], at(1), None),
        (["Fri-Mon 00:00-24:00"], at(12, day=4), 84),
        (["Fri-Mon 00:00-24:00"], at(12), None),
        (["Mon,Wed 01:00-02:00", "Wed 01:30-04:00"], at(1, 45), 2.25),
        (["Sat,Sun 10:00-11:00"], at(10, 30, day=6), 0.5),
    ],
)
def test_how_long_it_is_open(texts: list[str], now: datetime, left_h: float | None) -> None:
    left_s = Windows(texts).left_s(now)
    assert (left_s is None and left_h is None) or left_s == (left_h or 0) * 3600


def test_when_it_opens_next() -> None:
    assert Windows(["02:00-05:30"]).opens_at(at(3)) == at(2, day=3)
    assert Windows(["Tue 02:00-05:30"]).opens_at(at(3)) == at(2, day=8)
    assert Windows(["Sat 22:00-23:00", "Fri 01:00-02:00"]).opens_at(at(3)) == at(1, day=4)


@pytest.mark.parametrize("text", ["", "02:00", "2-5", "25:00-26:00", "02:00-02:00", "Foo 01:00-02:00", "01:60-02:00"])
def test_what_is_no_window(text: str) -> None:
    assert not is_window(text)
