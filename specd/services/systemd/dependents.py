"""Who stops when a unit stops: systemd's own relations, followed as far as a stop goes."""

from collections.abc import Sequence

from specd.errors import UnitError
from specd.services.service import Dependent
from specd.services.systemd.scope import Scope

__all__ = ["read_dependents"]

# The relations along which systemd hands a stop on, as its properties are named on the unit that is stopped.
_RELATIONS = ("RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo")
_PROPERTIES = ("Id", "LoadState", "ActiveState", *_RELATIONS)
_ACTIVE = frozenset({"active", "activating", "reloading"})


async def read_dependents(scope: Scope, unit: str) -> tuple[Dependent, ...]:
    """Return the units that a stop of `unit` reaches, nearest first; raises UnitError when there is no such unit."""
    (start,) = await _look(scope, [unit])
    if start["LoadState"] != "loaded":
        raise UnitError(f"{unit}: its load state is {start['LoadState']!r}", host=scope.host.name, unit=unit)
    found: dict[str, Dependent] = {}
    known = {start["Id"]}
    level = [start]
    while level:
        relations = {
            name: relation for shown in level for relation in _RELATIONS for name in shown.get(relation, "").split()
        }
        wanted = [name for name in relations if name not in known]
        known.update(wanted)
        level = await _look(scope, wanted)
        for name, shown in zip(wanted, level, strict=True):
            found[name] = Dependent(name, relations[name], shown["ActiveState"] in _ACTIVE)
    return tuple(found.values())


async def _look(scope: Scope, units: Sequence[str]) -> list[dict[str, str]]:
    if not units:
        return []
    done = await scope.systemctl("show", f"--property={','.join(_PROPERTIES)}", "--", *units, privileged=False)
    blocks = done.text.rstrip("\n").split("\n\n")
    return [dict(line.split("=", 1) for line in block.split("\n")) for block in blocks]
