"""The names of what is changed on a host: a verb and the part that a unit or file plays, the same in every trial."""

from contextlib import AbstractContextManager

from specd.failpoint import around

__all__ = ["effect"]

_GUARD = "specd-guard-"
_OWN = "specd-"


def effect(verb: str, target: str = "") -> AbstractContextManager[None]:
    """Mark what the body does to a unit or file on a host as one effect, with an instant before and after it."""
    return around(" ".join(filter(None, ("effect", verb, _part(target)))))


def _part(target: str) -> str:
    name = target.rpartition("/")[2].removesuffix(".json")
    stem, _, kind = name.rpartition(".")
    if not name:
        return ""
    if name.startswith(_GUARD):
        return "guard timer" if kind == "timer" else "guard"
    if kind == "claim":
        return "claim"
    if name.startswith(_OWN) and stem:
        return "candidate" if kind == "service" else f"candidate {kind}"
    return "baseline" if name.endswith(".service") else "directory"
