"""Finds prompt sets by what a plan names: a shipped set, a task of it, a synthetic length, a file, a mix of those."""

import dataclasses
import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from specd.bench.prompts.dossier import dossiers
from specd.bench.prompts.loader import read_file
from specd.bench.prompts.prompt import Prompt
from specd.bench.prompts.synthetic import synthetic
from specd.errors import BenchError

__all__ = ["SHIPPED", "TASKS", "load_prompts"]

_FILES = ("diverse", "quick")
# Each of these kinds of the diverse set is a set by itself; `long` is made of their documents.
TASKS = ("chat", "reasoning", "code", "extract", "edit", "translate", "agent")
SHIPPED = (*_FILES, *TASKS, "long")
_SYNTHETIC = re.compile(r"synthetic:(\d{1,7})(?:-(\d{1,7}))?")
_HERE = Path(__file__).parent


def load_prompts(name: str | Mapping[str, float]) -> tuple[Prompt, ...]:
    """Return the prompts of a set, or of several with weights; raises BenchError that names file, line and problem.

    A set is one of SHIPPED, `synthetic:512` or `synthetic:256-2048` (lengths in tokens, about), or a path to a file.
    """
    if isinstance(name, str):
        return _load(name)
    if not name:
        raise BenchError("the mix of prompt sets is empty")
    if wrong := [source for source, weight in name.items() if not 0 < weight < math.inf]:
        raise BenchError(f"the weight of {wrong[0]!r} in the mix of prompt sets must be more than 0")
    mix: list[Prompt] = []
    for source, weight in name.items():
        short = Path(source).stem if _is_path(source) else source
        for prompt in _load(source):
            mix.append(dataclasses.replace(prompt, id=f"{short}/{prompt.id}", source=source, weight=float(weight)))
    ids = [prompt.id for prompt in mix]
    if len(set(ids)) != len(ids):
        raise BenchError(f"two files of the mix have the same name: {', '.join(name)}")
    return tuple(mix)


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith((".jsonl", ".json"))


def _load(name: str) -> tuple[Prompt, ...]:
    if _is_path(name):
        return read_file(Path(name).expanduser())
    if name in _FILES:
        return _shipped(name)
    if name in TASKS:
        return tuple(prompt for prompt in _shipped("diverse") if prompt.kind == name)
    if name == "long":
        return dossiers(_shipped("diverse"))
    if found := _SYNTHETIC.fullmatch(name):
        low = int(found[1])
        return synthetic(low, int(found[2] or low), _shipped("diverse"))
    raise BenchError(
        f"no prompt set {name!r}: the shipped ones are {', '.join(SHIPPED)} and synthetic:TOKENS; anything else is a"
        " path to a .jsonl or .json file"
    )


@cache
def _shipped(name: str) -> tuple[Prompt, ...]:
    return read_file(_HERE / f"{name}.jsonl")
