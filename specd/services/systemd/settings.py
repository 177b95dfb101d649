"""Whether what the candidate took over from the baseline has arrived: systemd's own reading of both is compared."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from specd.checks import Check
from specd.services.systemd.bus import Properties
from specd.services.systemd.unitfile import Assignment

__all__ = ["settings_check"]

# Compared by other checks, or meant to differ.
_ELSEWHERE = frozenset({"Environment", "EnvironmentFile", "UnsetEnvironment", "ExecStart"})
_NAMES = {
    "CPUQuota": "CPUQuotaPerSecUSec",
    "StandardInputText": "StandardInputData",
}
# In a row of these the first columns are the setting; what follows tells how it last went.
_ROWS = {"Exec": 3, "Conditions": 4, "Asserts": 4}
_DEPENDENCIES = frozenset((
    "After", "Before", "Requires", "Requisite", "Wants", "BindsTo", "PartOf", "Upholds", "Conflicts", "OnFailure",
    "PropagatesReloadTo", "ReloadPropagatedFrom", "PropagatesStopTo", "StopPropagatedFrom", "JoinsNamespaceOf",
))  # fmt: skip


def settings_check(
    carried: Iterable[Assignment], baseline: Properties, candidate: Properties, drop_ins: Sequence[str]
) -> Check:
    """Compare each setting that was carried over; `drop_ins` are files that apply to the candidate besides its own."""
    name = "unit.settings"
    asked: dict[str, list[str]] = {}
    for item in carried:
        asked.setdefault(item.key, []).append(item.value)
    names = (baseline.text("Id"), candidate.text("Id"))
    compared, different, unseen = 0, [], []
    for key, values in asked.items():
        if key in _ELSEWHERE:
            continue
        if key in _DEPENDENCIES:
            written = {unit for value in values for unit in value.split()} & set(baseline.texts(key))
            is_equal = written - {names[0]} <= set(candidate.texts(key))
        elif (shown := _property(key, baseline)) in candidate:
            is_equal = _plain(shown, baseline, names) == _plain(shown, candidate, names)
        else:
            unseen.append(key)
            continue
        compared += 1
        if not is_equal:
            different.append(key)
    if different:
        words = f"{', '.join(different)}: systemd reads another value for the candidate than for {names[0]}"
        fix = f"{drop_ins[0]} applies to both, but to the baseline in another place" if drop_ins else ""
        return Check.failed(name, words, fix)
    tail = f"; not told by systemd: {', '.join(unseen)}" if unseen else ""
    return Check.passed(name, f"{compared} settings of {names[0]} have the same value{tail}")


def _property(key: str, properties: Properties) -> str:
    """Return the name under which systemd tells a directive's value."""
    if key.startswith(("Condition", "Assert")):
        return "Conditions" if key.startswith("Condition") else "Asserts"
    others = (f"{key}Ex", _NAMES.get(key, key), f"{key.removesuffix('Sec')}USec" if key.endswith("Sec") else key)
    return next((other for other in others if other in properties), key)


def _plain(name: str, properties: Properties, names: tuple[str, str]) -> Any:
    """Return a property's value without what has happened, and the unit's own name as the baseline's."""
    value = properties.value(name)
    columns = next((count for start, count in _ROWS.items() if name.startswith(start)), None)
    if isinstance(value, list):
        rows = [row[:columns] if columns and isinstance(row, list) else row for row in value]
        value = rows if columns else sorted(rows, key=json.dumps)
    return json.loads(json.dumps(value).replace(names[1], names[0]))
