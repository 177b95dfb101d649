"""What must hold after a trial, whatever has befallen it."""

import asyncio
import sqlite3
from typing import Any

from states.table import State, Trigger, destination
from tests.rig import Site

__all__ = ["prove", "states_of"]

_SERVES_WITHIN_S = 30.0


def states_of(shown: dict[str, Any]) -> list[str]:
    """Return the states a trial went through, proven to be one unbroken legal way."""
    state = State.QUEUED
    for move in shown["history"]:
        target = destination(state, Trigger(move["trigger"]))
        assert target is not None, f"no move {move['trigger']} from {state.value}"
        assert target.value == move["state"]
        state = target
    assert state.value == shown["state"]
    return [move["state"] for move in shown["history"]]


async def prove(site: Site, shown: dict[str, Any], before: dict[str, str]) -> None:
    """Prove that a settled trial left a serving baseline and nothing else, and started its candidate once at most."""
    states_of(shown)
    assert shown["state"] in {"restored", "withdrawn"}, (shown["state"], shown["reason"], shown["history"][-1])
    assert shown["outcome"], "it ended without an outcome"
    starts = await asyncio.to_thread(site.starts, f"specd-{shown['id']}.service")
    assert len(starts) <= 1, f"the candidate was started {len(starts)} times"
    async with asyncio.timeout(_SERVES_WITHIN_S):
        while not (site.is_active() and await asyncio.to_thread(site.answers)):
            await asyncio.sleep(0.2)
    assert site.fingerprint() == before, "the baseline's files are not what they were"
    assert site.traces() == [], "something of specd is left on the host"
    db = sqlite3.connect(f"file:{site.directory}/state/specd.db?mode=ro", uri=True)
    stored = db.execute("SELECT state, outcome FROM trial WHERE id = ?", (shown["id"],)).fetchone()
    db.close()
    assert stored == (shown["state"], shown["outcome"])
