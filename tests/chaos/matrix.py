"""Every state and every fault: the one trial that shows what comes of the two."""

import asyncio
import json
import time
from typing import Any

from tests.chaos.direction import LONG_LEASE_S, directed, is_held, release, until_held
from tests.chaos.expected import CELLS, KEPT, MEASURED, SURVIVED, WORKING, Cell, ends_of, more_starts
from tests.chaos.faults import FAULTS, OF_THE_DAEMON, Scene, faults_of, strike
from tests.chaos.proof import before, prove, states_of
from tests.chaos.sites import FAILURES, Places
from tests.chaos.witness import SETTLED, Witness
from tests.rig import SCRIPT, Daemon, Site, SmallDisk

__all__ = ["FAST", "KEEP", "NGRAM", "play_cell", "play_chain", "run_matrix"]

NGRAM: dict[str, Any] = {"speculative-config": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}}
KEEP = '\n[services.llm.policy]\nafter_better = "keep"\nmargin = 0.01\n'
FAST = {"SPECD_REHEARSAL": json.dumps({**SCRIPT, "base_step_ms": 1.0})}
_TRIES = 4
_STEADY_S = 3.0
_LOOK_S = 0.05


async def run_matrix(kinds: tuple[str, ...], only: str) -> int:
    """Play every cell on each site, those whose words contain `only`; prints the matrix and returns how many did not
    hold."""
    tried, failed = 0, []
    with Places() as places:
        for kind in kinds:
            for cell in CELLS:
                place = await asyncio.to_thread(places.place, kind)
                if cell.fault not in faults_of(place.site, place.disk) or only not in str(cell):
                    continue
                tried += 1
                started = time.monotonic()
                try:
                    words = await play_cell(place.site, place.disk, cell)
                except FAILURES as error:
                    failed.append(f"{kind}: {cell}")
                    words = f"DID NOT HOLD: {error!r:.600}  files: {place.site.directory}"
                    await asyncio.to_thread(places.drop, kind, keep_files=True)
                print(f"{kind:8} {cell!s:60} {words} ({time.monotonic() - started:.0f} s)", flush=True)
    print(f"{tried} cells tried, {tried - len(failed)} held; those that did not: {failed or 'none'}")
    return len(failed)


async def play_cell(site: Site, disk: SmallDisk | None, cell: Cell) -> str:
    """Run the trial of a cell and prove what must come of it; returns that in words. Raises AssertionError."""
    orphans = cell.fault == "orphans-left"
    if orphans:
        await asyncio.to_thread(site.leave_orphans)
    try:
        play = {"kept": _play_kept, "queued": _play_queued}.get(cell.state, _play_working)
        return await play(site, disk, cell)
    finally:
        if orphans:
            await asyncio.to_thread(site.leave_none)


async def _play_working(site: Site, disk: SmallDisk | None, cell: Cell) -> str:
    was = await before(site)
    async with directed(site, hold=[cell.state]) as daemon:
        trial = await daemon.submit(NGRAM, benchmark="small")
        async with Witness(daemon, trial) as witness:
            await until_held(daemon)
            await _strike(Scene(site, daemon, disk, trial), cell)
            shown = await witness.until()
    words = _judged(cell, shown)
    await prove(site, was, shown, more_starts=more_starts(cell))
    return words


async def _play_queued(site: Site, disk: SmallDisk | None, cell: Cell) -> str:
    """A trial waits in the queue while the one before it is struck in its load; then it is its turn."""
    was = await before(site)
    async with directed(site, hold=["loading"]) as daemon:
        first = await daemon.submit(NGRAM, benchmark="small", name="first")
        second = await daemon.submit(NGRAM, benchmark="small", name="second")
        async with Witness(daemon, first) as witness, Witness(daemon, second) as waiting:
            await until_held(daemon)
            await _strike(Scene(site, daemon, disk, first), cell)
            ended = await witness.until()
            # It goes through the state in which the other one was held.
            if await _is_held_first(daemon, waiting):
                release(daemon)
            shown = await waiting.until()
    words = _judged(cell, shown)
    await prove(site, was, ended, shown, more_starts=more_starts(cell))
    return words


async def _play_kept(site: Site, disk: SmallDisk | None, cell: Cell) -> str:
    """A candidate serves by decision, and something happens; what is still kept then is taken back by command."""
    was = await before(site)
    trials: list[dict[str, Any]] = []
    words = ""
    async with directed(site, KEEP, hold=["kept"]) as daemon:
        # Whether a candidate is better is for the benchmark to say, and a busy machine can spoil that.
        while not words and len(trials) < _TRIES:
            trial = await daemon.submit({"max-num-seqs": 64}, benchmark="small", env=FAST)
            async with Witness(daemon, trial) as witness:
                if await _is_held_first(daemon, witness):
                    await _strike(Scene(site, daemon, disk, trial), cell)
                    words = await _after_kept(site, daemon, witness, cell)
                trials.append(await witness.until(SETTLED - {"kept"}))
    assert words, f"nothing was kept in {_TRIES} trials"
    await prove(site, was, *trials, more_starts=more_starts(cell))
    return words


async def _after_kept(site: Site, daemon: Daemon, witness: Witness, cell: Cell) -> str:
    if ends_of(cell) != KEPT:
        return _judged(cell, await witness.until(SETTLED - {"kept"}))
    await witness.until({"kept"})
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(site.answers):
            await asyncio.sleep(_LOOK_S)
    await asyncio.sleep(_STEADY_S)
    words = _judged(cell, await witness.until(SETTLED))
    assert await asyncio.to_thread(site.is_active, f"specd-{witness.trial}.service"), "what was kept serves no more"
    await daemon.client.post("/v1/services/llm/rollback", {"by": "a test"})
    return words


async def play_chain(site: Site, disk: SmallDisk | None, fault: str) -> str:
    """Run one trial that is struck by a fault in every state in turn and prove that it ends as if nothing had been;
    returns that in words."""
    was = await before(site)
    struck = 0
    async with directed(site, lease_s=LONG_LEASE_S) as daemon:
        trial = await daemon.submit(NGRAM, benchmark="small", name="struck")
        async with Witness(daemon, trial) as witness:
            for state in WORKING:
                if not await _comes_to(witness, state):
                    break
                await strike(Scene(site, daemon, disk, trial), fault, SURVIVED[fault])
                struck += 1
            shown = await witness.until()
    assert (shown["state"], shown["outcome"]) in MEASURED, shown["reason"]
    way = [state for state in states_of(shown) if state != "cudagraph-compile"]
    assert way == [state for state in (*WORKING, "restored") if state != "cudagraph-compile"]
    await prove(site, was, shown)
    return f"struck {struck} times: {shown['state']}, {shown['outcome']}"


async def _comes_to(witness: Witness, state: str) -> bool:
    """Wait until a trial is seen in a state, or in one after it; False once it has settled."""
    shown = await witness.until({*WORKING[WORKING.index(state) :], *SETTLED})
    return shown["state"] not in SETTLED


async def _is_held_first(daemon: Daemon, witness: Witness) -> bool:
    """Wait until the daemon has stopped itself (True) or the trial has settled before that."""
    settled = asyncio.ensure_future(witness.until())
    try:
        while not (held := is_held(daemon)) and not settled.done():
            await asyncio.sleep(_LOOK_S)
        if not held:
            settled.result()
        return held
    finally:
        settled.cancel()
        await asyncio.wait({settled})


async def _strike(scene: Scene, cell: Cell) -> None:
    """Let the fault happen to a held daemon's trial and let the daemon go on in the midst of it, as another process if
    the cell wants it dead meanwhile."""
    if cell.fault in OF_THE_DAEMON:
        await strike(scene, cell.fault, cell.seconds)
        return
    if cell.daemon_dies:
        scene.daemon.kill()
    async with FAULTS[cell.fault](scene):
        if cell.daemon_dies:
            scene.daemon.spawn()
        else:
            release(scene.daemon)
        await asyncio.sleep(cell.seconds)


def _judged(cell: Cell, shown: dict[str, Any]) -> str:
    words = f"{shown['state']}, {shown['outcome']}, {shown.get('class') or '-'}"
    assert (shown["state"], shown["outcome"]) in ends_of(cell), f"{words}: {shown['reason']}"
    return words
