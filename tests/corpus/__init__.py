"""Captured output of real engines, and how to read it back as the journal would give it.

A line may start with seconds since the start and OUT or ERR, as it was recorded; <CR> stands for a carriage return.
"""

import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
VLLM = HERE / "vllm"

_RECORDED = re.compile(r" *(?P<at>\d+\.\d{3}) (?:OUT |ERR )?")


def records(name: str) -> Iterator[tuple[float, str]]:
    """Yield (seconds, text) of each line of a captured vLLM log."""
    for line in (VLLM / name).read_text(encoding="utf-8").split("\n"):
        if line.startswith("# CMD"):
            continue
        recorded = _RECORDED.match(line)
        at = float(recorded["at"]) if recorded else 0.0
        text = line[recorded.end() :] if recorded else line
        yield at, text.replace("<CR>", "\r")
