"""What must hold after a trial, whatever has befallen it."""

import asyncio
import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from states.table import State, Trigger, destination
from tests.rig import Site

__all__ = ["Before", "before", "prove", "states_of"]

_SERVES_WITHIN_S = 30.0
_CLEAN_WITHIN_S = 10.0
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Before:
    """A site before a trial: the files of its baseline, and how often that was started."""

    fingerprint: dict[str, str]
    starts: int


async def before(site: Site) -> Before:
    """Look at a site whose baseline serves."""
    return Before(await asyncio.to_thread(site.fingerprint), len(await asyncio.to_thread(site.starts)))


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


async def prove(site: Site, was: Before, *trials: dict[str, Any], more_starts: int = 0) -> None:
    """Prove that settled trials, as last shown, have left a serving baseline and nothing else, and no start too many.

    A candidate is started once at most; the baseline once for each trial that took its place, and `more_starts` times
    because something else had ended it.
    """
    async with asyncio.timeout(_SERVES_WITHIN_S):
        while not (site.is_active() and await asyncio.to_thread(site.answers)):
            await asyncio.sleep(_LOOK_S)
    allowed = more_starts
    for shown in trials:
        states = states_of(shown)
        assert shown["state"] in {"restored", "withdrawn"}, (shown["state"], shown["reason"], shown["history"][-1])
        assert shown["outcome"], "it ended without an outcome"
        starts = await asyncio.to_thread(site.starts, f"specd-{shown['id']}.service")
        assert len(starts) <= ("restart" in states), f"the candidate was started {len(starts)} times"
        allowed += "restart" in states
        _stored(site, shown)
    started = len(await asyncio.to_thread(site.starts)) - was.starts
    assert started <= allowed, f"the baseline was started {started} times, {allowed} were needed"
    assert await asyncio.to_thread(site.fingerprint) == was.fingerprint, "the baseline's files are not what they were"
    await _clean(site)


async def _clean(site: Site) -> None:
    """Prove that nothing of specd is left on the host; what has just ended may take a moment to be gone."""
    left: list[str] = []
    try:
        async with asyncio.timeout(_CLEAN_WITHIN_S):
            while left := await asyncio.to_thread(lambda: site.traces() + site.strays()):
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise AssertionError(f"left on the host: {left}") from None


def _stored(site: Site, shown: dict[str, Any]) -> None:
    """Prove that the database holds what was shown last."""
    db = sqlite3.connect(f"file:{site.directory}/state/specd.db?mode=ro", uri=True)
    try:
        stored = db.execute("SELECT state, outcome FROM trial WHERE id = ?", (shown["id"],)).fetchone()
        moves = db.execute("SELECT seq, target, at FROM move WHERE trial = ? ORDER BY seq", (shown["id"],)).fetchall()
        facts = dict(db.execute("SELECT key, value FROM fact WHERE trial = ?", (shown["id"],)).fetchall())
    finally:
        db.close()
    assert stored == (shown["state"], shown["outcome"])
    assert [seq for seq, _, _ in moves] == list(range(moves[0][0], moves[0][0] + len(moves))), "a move is missing"
    assert [(target, at) for _, target, at in moves] == [(move["state"], move["at"]) for move in shown["history"]]
    assert json.loads(facts.get("comparison", "null")) == shown["comparison"]
    levels = json.loads(facts.get("levels", "{}"))
    for side in ("baseline", "candidate"):
        assert levels.get(side, []) == shown[side]["levels"], f"the levels of the {side} are not those shown"
