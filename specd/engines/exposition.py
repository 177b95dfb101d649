"""Reading a Prometheus page: the few series that are asked for, summed over their label sets, and fast."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specd.engines.engine import Counters

__all__ = ["Series", "read_counters"]

_POSITION = re.compile(r'position="(\d+)"')


@dataclass(frozen=True, slots=True)
class Series:
    """The names of an engine's series for each field of Counters, newest name first; the first that is there counts.

    `by_position` is the series with a `position` label.
    """

    fields: Mapping[str, Sequence[str]]
    by_position: Sequence[str] = ()


def read_counters(page: str, series: Series) -> Counters:
    """Parse a page; lines that make no sense are passed over, a field without a series is None."""
    wanted = {name for names in series.fields.values() for name in names}
    positions_wanted = set(series.by_position)
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    for line in page.splitlines():
        if line.startswith("#"):
            continue
        name = line.partition("{")[0] if "{" in line else line.partition(" ")[0]
        if name in wanted:
            value = _value(line)
            if value is not None:
                # A start time is the same for every label set of one process, and the latest when there are several.
                is_time = name == "process_start_time_seconds"
                sums[name] = max(sums.get(name, value), value) if is_time else sums.get(name, 0.0) + value
        elif name in positions_wanted:
            value, at = _value(line), _POSITION.search(line)
            if value is not None and at is not None:
                positions[int(at[1])] = positions.get(int(at[1]), 0.0) + value
    shown = {
        field: next((sums[name] for name in names if name in sums), None) for field, names in series.fields.items()
    }
    by_position = tuple(positions.get(place, 0.0) for place in range(max(positions) + 1)) if positions else ()
    return Counters(**shown, accepted_by_position=by_position)


def _value(line: str) -> float | None:
    after = line.rpartition("}")[2] if "{" in line else line.partition(" ")[2]
    words = after.split()
    if not words:
        return None
    try:
        value = float(words[0])
    except ValueError:
        return None
    return None if value != value else value
