"""Every state and every fault: what must come of it, and the one trial that shows it."""

import asyncio
from typing import Any

from tests.chaos.faults import FAULTS, Scene
from tests.chaos.proof import prove, states_of
from tests.chaos.random_schedules import CONFIG, SETTLED
from tests.rig import Daemon, Site

__all__ = ["CELLS", "ENDING", "STATES", "SURVIVED", "expected", "play_cell", "play_chain"]

STATES = (
    "baseline",
    "write-unit",
    "verify",
    "restart",
    "loading",
    "cudagraph-compile",
    "ready",
    "benchmark",
    "rollback",
)
BEFORE = STATES[:3]
MEASURED = {"worse", "better", "equivalent", "inconclusive", "invalid"}

# Seconds each lasts. Those of the first kind cost a trial nothing, so one trial can bear them in every state in turn.
SURVIVED = {
    "link-cut": 5.0,
    "packets-lost": 5.0,
    "sshd-restarted": 0.0,
    "journald-restarted": 0.0,
    "systemd-reexecuted": 0.0,
    "database-locked": 2.0,
    "daemon-frozen": 1.0,
}
ENDING = {
    "link-cut": 12.0,
    "host-frozen": 12.0,
    "engine-killed": 0.0,
    "engine-frozen": 9.0,
    "host-rebooted": 0.0,
    "power-cut": 0.5,
    "daemon-killed": 12.0,
}
LEASE_S = 6.0
CELLS = tuple((state, fault) for state in STATES for fault in ENDING)
QUICK = {"lease_s = 30": f"lease_s = {LEASE_S:g}", "renew_s = 2": "renew_s = 1"}
NGRAM: dict[str, Any] = {"speculative-config": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}}


def expected(state: str, fault: str) -> set[tuple[str, str]]:
    """Return the ends (state, outcome) that are right for a fault that strikes when a state has just been entered."""
    measured = {("restored", outcome) for outcome in MEASURED}
    failed = {("restored", "failed")}
    if state == "rollback":
        # The result is known; whatever happens on the way back changes nothing of it.
        return measured
    if state in BEFORE:
        # The baseline was touched by the fault, not by us: the trial goes no further, or the fault came too late.
        survivable = fault in {"link-cut", "daemon-killed", "host-frozen"}
        return {("withdrawn", "failed")} | (measured if survivable or state != "baseline" else set()) | failed
    if state == "restart":
        # Whether the baseline had been stopped, and the guard armed, is a matter of milliseconds.
        return failed | measured
    if fault in {"engine-frozen", "host-frozen"}:
        # An engine that moves again before anything was lost may go on.
        return failed | measured
    return failed


async def play_cell(site: Site, state: str, fault: str) -> dict[str, Any]:
    """Run one trial that is struck by a fault in a state; raises AssertionError unless all holds."""
    before = site.fingerprint()
    async with _daemon(site) as daemon:
        trial = await daemon.submit(NGRAM, benchmark="small")
        await daemon.reached(trial, state)
        await FAULTS[fault](Scene(site, daemon, trial, ENDING[fault]))
        shown = await daemon.until_settled(trial, within_s=120)
    assert (shown["state"], shown["outcome"]) in expected(state, fault), (shown["outcome"], shown["reason"])
    await prove(site, shown, before)
    return shown


async def play_chain(site: Site, fault: str) -> dict[str, Any]:
    """Run one trial that is struck by a fault in every state in turn and must end as if there had been none."""
    before = site.fingerprint()
    daemon = _daemon(site, quick=False)
    async with daemon:
        trial = await daemon.submit(NGRAM, benchmark="small")
        for state in STATES:
            if not await _comes_to(daemon, trial, state):
                break
            await FAULTS[fault](Scene(site, daemon, trial, SURVIVED[fault]))
        shown = await daemon.until_settled(trial, within_s=120)
    assert (shown["state"], shown["outcome"]) in {("restored", outcome) for outcome in MEASURED}, shown["reason"]
    way = [state for state in states_of(shown) if state != "cudagraph-compile"]
    assert way == [state for state in (*STATES, "restored") if state != "cudagraph-compile"]
    await prove(site, shown, before)
    return shown


async def _comes_to(daemon: Daemon, trial: str, state: str) -> bool:
    """Wait until a trial has entered a state, or one after it; False once it has settled."""
    later = STATES[STATES.index(state) :]
    while True:
        shown = await daemon.until_answer(trial)
        if shown["state"] in SETTLED:
            return False
        if shown["state"] in later:
            return True
        await asyncio.sleep(0.03)


def _daemon(site: Site, *, quick: bool = True) -> Daemon:
    daemon = Daemon(site, CONFIG.partition("[services")[0])
    text = daemon.config.read_text()
    for words, shorter in QUICK.items() if quick else ():
        assert words in text
        text = text.replace(words, shorter)
    daemon.config.write_text(text)
    return daemon
