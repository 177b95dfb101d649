"""What daemon and client process say to each other: one JSON line in, JSON lines out.

In: `{"target": ..., "plan": ..., "levels": [...]}`; the API key travels here and nowhere else. The pipe stays open for
as long as the client shall run. Out, each with a "type": `progress`, `level`, then `final`, or `failed` with "what".
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from specd.bench.plan import BenchPlan, Level, LevelDone, Progress, Target
from specd.errors import BenchError

__all__ = ["FINAL", "decode_item", "decode_order", "encode_failure", "encode_item", "encode_order"]

FINAL = b'{"type":"final"}\n'


def encode_order(target: Target, plan: BenchPlan, levels: Sequence[Level]) -> bytes:
    """Return the line that starts a client."""
    body = {
        "target": dataclasses.asdict(target),
        "plan": dataclasses.asdict(plan),
        "levels": [dataclasses.asdict(level) for level in levels],
    }
    return json.dumps(body).encode() + b"\n"


def decode_order(line: bytes) -> tuple[Target, BenchPlan, tuple[Level, ...]]:
    """Read the line that starts a client; raises BenchError."""
    try:
        body = json.loads(line)
        given = body["plan"]
        plan = {**given, "levels": tuple(given["levels"]), "rates": tuple(given["rates"])}
        return Target(**body["target"]), BenchPlan(**plan), tuple(Level(**level) for level in body["levels"])
    except (ValueError, TypeError, KeyError) as error:
        # The line holds the API key: say what is wrong with it, not what is in it.
        raise BenchError(f"the benchmark client can't read its order ({type(error).__name__})") from error


def encode_item(item: Progress | LevelDone) -> bytes:
    """Return a line of the client's output."""
    kind = "progress" if isinstance(item, Progress) else "level"
    return json.dumps({"type": kind, **dataclasses.asdict(item)}).encode() + b"\n"


def encode_failure(what: str) -> bytes:
    """Return the client's last line when it could not do its work."""
    return json.dumps({"type": "failed", "what": what}).encode() + b"\n"


def decode_item(line: bytes) -> Progress | LevelDone | None:
    """Read a line of the client's output; None for the final one. Raises BenchError: `failed`, or what isn't ours."""
    try:
        body: dict[str, Any] = json.loads(line)
        kind = body.pop("type")
        if kind == "final":
            return None
        if kind == "failed":
            raise BenchError(str(body["what"]))
        if kind == "progress":
            return Progress(**{**body, "level": Level(**body["level"])})
        if kind == "level":
            return LevelDone.from_json(body)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BenchError(f"the benchmark client printed what we can't read: {line[:120]!r}") from error
    raise BenchError(f"the benchmark client printed a line of unknown type {kind!r}")
