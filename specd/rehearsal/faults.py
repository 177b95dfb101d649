"""Faults on request: `kind[:argument[:argument]]`, several separated by commas.

| fault | effect |
|---|---|
| die:STAGE[:STATUS] | root cause from the deepest process, the generic line last, exit STATUS (default 1) |
| hang:STAGE | everything stops moving in STAGE; `hang:serving:N` after N generated tokens |
| oom:STAGE | prints torch.OutOfMemoryError and stays |
| never-ready | loads, then never listens |
| no-token | health 200, chat answers with headers and then nothing |
| error-in-stream[:N] · cut-stream[:N] | after N tokens an error event with [DONE] · the connection closes |
| slow-stop:SECONDS · ignore-sigterm · orphans | shutdown takes long · is ignored · leaves the children behind |
| die-serving:SECONDS[:STATUS] | the engine dies SECONDS after ready; exit STATUS (default 0, as vLLM does) |
| crash-on-load:N | the engine dies when N requests run at once; exit 0 |
| garbage[:loop or :replacement] | nonsense text |
| http-500 · wrong-model-name · no-usage | as named |
| slow-first:SECONDS | the first request compiles for SECONDS |
| spec-inactive[:silent] | takes the speculative config but never drafts; silent hides it from log and metrics too |
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field

STAGES = ("import", "config", "engine", "weights", "compile", "capture", "startup", "serving")

# What each kind takes, in order. "?" marks an argument that may be left out.
_GRAMMAR: dict[str, Sequence[str]] = {
    "die": ("stage", "status?"),
    "hang": ("stage", "count?"),
    "oom": ("stage", "count?"),
    "never-ready": (),
    "no-token": (),
    "error-in-stream": ("count?",),
    "cut-stream": ("count?",),
    "slow-stop": ("seconds",),
    "ignore-sigterm": (),
    "orphans": (),
    "die-serving": ("seconds", "status?"),
    "crash-on-load": ("count",),
    "garbage": ("loop|replacement?",),
    "http-500": (),
    "wrong-model-name": (),
    "no-usage": (),
    "slow-first": ("seconds",),
    "spec-inactive": ("silent?",),
}


class FaultError(ValueError):
    """A fault text that does not follow the grammar."""


@dataclass(frozen=True)
class Faults:
    """The faults of one start; each value is the list of arguments after the kind."""

    by_kind: dict[str, list[str]] = field(default_factory=dict)
    staged: dict[str, tuple[str, str]] = field(default_factory=dict)

    def has(self, kind: str) -> bool:
        """Tell whether `kind` was asked for."""
        return kind in self.by_kind

    def at(self, stage: str) -> tuple[str, str] | None:
        """Return (kind, argument) of the die, hang or oom asked for in `stage`."""
        return self.staged.get(stage)

    def text(self, kind: str, default: str = "") -> str:
        """Return the first argument of `kind`, or the default."""
        arguments = self.by_kind.get(kind)
        return arguments[0] if arguments else default

    def number(self, kind: str, default: float, position: int = 0) -> float:
        """Return a numeric argument of `kind`, or the default where it was left out."""
        arguments = self.by_kind.get(kind, [])
        return float(arguments[position]) if len(arguments) > position else default


def parse(text: str) -> Faults:
    """Read the fault grammar; raises FaultError naming the part that is wrong."""
    by_kind: dict[str, list[str]] = {}
    staged: dict[str, tuple[str, str]] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        kind, *arguments = part.split(":")
        if kind not in _GRAMMAR:
            raise FaultError(f"unknown fault {kind!r}{_nearest(kind, list(_GRAMMAR))}")
        shape = _GRAMMAR[kind]
        required = [slot for slot in shape if not slot.endswith("?")]
        if not len(required) <= len(arguments) <= len(shape):
            raise FaultError(f"fault {part!r}: expected {':'.join([kind, *shape])}")
        for position, argument in enumerate(arguments):
            _check(part, shape[position].rstrip("?"), argument)
        if shape and shape[0] == "stage":
            staged[arguments[0]] = (kind, arguments[1] if len(arguments) > 1 else "")
        by_kind[kind] = arguments
    return Faults(by_kind, staged)


def _check(part: str, slot: str, argument: str) -> None:
    if slot == "stage":
        if argument not in STAGES:
            raise FaultError(f"fault {part!r}: unknown stage {argument!r}{_nearest(argument, STAGES)}")
    elif slot in ("status", "count"):
        if not argument.isdecimal() or (slot == "status" and int(argument) > 255):
            raise FaultError(f"fault {part!r}: {argument!r} is not a {slot}")
    elif slot == "seconds":
        try:
            is_valid = float(argument) >= 0
        except ValueError:
            is_valid = False
        if not is_valid:
            raise FaultError(f"fault {part!r}: {argument!r} is not a number of seconds")
    elif argument not in slot.split("|"):
        raise FaultError(f"fault {part!r}: {argument!r} is not one of {slot.replace('|', ', ')}")


def _nearest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
