"""One trial of a random kind, befallen by random faults at random moments, then let alone."""

import asyncio
import random
import time
import traceback
from dataclasses import dataclass
from typing import Any

from specd.cli.client import ApiError
from specd.errors import DaemonUnreachable
from tests.chaos.direction import directed
from tests.chaos.expected import WORKING
from tests.chaos.faults import OF_THE_DAEMON, Scene, faults_of, strike
from tests.chaos.matrix import FAST, KEEP, NGRAM
from tests.chaos.proof import before, prove
from tests.chaos.sites import FAILURES, Place, Places
from tests.chaos.witness import SETTLED, Witness
from tests.rig import Daemon

__all__ = ["Schedule", "draw", "play", "run"]

KINDS = ("measured", "kept", "dead", "hung", "cancelled")
LEASE_S = 8.0
WITHIN_S = 180.0
_LOOK_S = 0.03


@dataclass(frozen=True, slots=True)
class Blow:
    """A fault, when it strikes (seconds after the state was entered, which may never be), and how long it lasts."""

    fault: str
    state: str
    after_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """What will happen to one trial; the same seed gives the same."""

    seed: int
    kind: str
    blows: tuple[Blow, ...]

    def __str__(self) -> str:
        blows = ", ".join(f"{b.fault} {b.state}+{b.after_s:.2f} for {b.seconds:.1f} s" for b in self.blows)
        return f"seed {self.seed}: {self.kind}; {blows}"


def draw(seed: int, faults: tuple[str, ...]) -> Schedule:
    """Return the schedule of a seed."""
    chance = random.Random(seed)
    blows = tuple(
        Blow(
            fault=chance.choice(faults),
            state=chance.choice(WORKING),
            after_s=chance.choice((0.0, 0.0, chance.random(), 2 * chance.random())),
            seconds=chance.choice((0.3, 1.0, 3.0, 9.0)),
        )
        for _ in range(chance.randint(1, 4))
    )
    return Schedule(seed, chance.choice(KINDS), blows)


async def play(place: Place, schedule: Schedule) -> dict[str, Any]:
    """Run a schedule and prove what must hold; returns the trial as it ended. Raises AssertionError."""
    site = place.site
    was = await before(site)
    daemon = directed(site, KEEP, lease_s=LEASE_S)
    async with daemon:
        trial = await _submit(daemon, schedule.kind)
        scene = Scene(site, daemon, place.disk, trial)
        async with Witness(daemon, trial) as witness:
            blows = [asyncio.create_task(_blow(scene, witness, blow)) for blow in schedule.blows]
            if schedule.kind == "cancelled":
                blows.append(asyncio.create_task(_cancel(daemon, trial, random.Random(schedule.seed).random() * 4)))
            try:
                shown = await witness.until(within_s=WITHIN_S)
            finally:
                for blow in blows:
                    blow.cancel()
                ends = await asyncio.gather(*blows, return_exceptions=True)
            for end in ends:
                if isinstance(end, Exception):
                    raise end
            if not daemon.is_running:
                await daemon.start()
            if shown["state"] == "kept":
                await daemon.client.post("/v1/services/llm/rollback", {"by": "chaos"})
            shown = await witness.until(SETTLED - {"kept"}, within_s=WITHIN_S)
    # Each blow may have ended the baseline once, and the guard started it once more.
    await prove(site, was, shown, more_starts=2 * len(schedule.blows))
    return shown


async def _submit(daemon: Daemon, kind: str) -> str:
    fault = {"dead": "die:weights:1", "hung": "hang:capture"}.get(kind)
    env = FAST if kind == "kept" else {"SPECD_REHEARSAL_FAULT": fault} if fault else {}
    return await daemon.submit(NGRAM if kind == "measured" else {"max-num-seqs": 64}, benchmark="small", env=env)


async def _blow(scene: Scene, witness: Witness, blow: Blow) -> None:
    """Wait for the moment and let the fault happen to its end, also when the trial has settled meanwhile."""
    while blow.state not in {move["state"] for move in witness.shown.get("history", ())}:
        await asyncio.sleep(_LOOK_S)
    await asyncio.sleep(blow.after_s)
    work = asyncio.ensure_future(_happen(scene, blow))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        work.result()


_OF_THE_DAEMON = asyncio.Lock()
_OF_THE_HOST = asyncio.Lock()


async def _happen(scene: Scene, blow: Blow) -> None:
    """Two faults of one thing come one after the other: a machine that is off can't be cut off."""
    of_daemon = blow.fault in OF_THE_DAEMON
    async with _OF_THE_DAEMON if of_daemon else _OF_THE_HOST:
        if not of_daemon or scene.daemon.is_running:
            await strike(scene, blow.fault, blow.seconds)


async def _cancel(daemon: Daemon, trial: str, after_s: float) -> None:
    await asyncio.sleep(after_s)
    try:
        await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "chaos"})
    except (ApiError, DaemonUnreachable):
        return


async def run(minutes: float, seed: int, kinds: tuple[str, ...]) -> int:
    """Play schedules one after another for a time, telling each; returns how many did not hold."""
    until = time.monotonic() + minutes * 60
    tried, failed = 0, []
    with Places() as places:
        while time.monotonic() < until or not tried:
            kind = kinds[tried % len(kinds)]
            place = await asyncio.to_thread(places.place, kind)
            schedule = draw(seed + tried, faults_of(place.site, place.disk))
            tried += 1
            started = time.monotonic()
            try:
                shown = await play(place, schedule)
                words = f"{shown['state']}, {shown['outcome']}, {shown.get('class') or '-'}"
            except FAILURES as error:
                failed.append(schedule.seed)
                words = f"DID NOT HOLD: {error!r:.600}\n{traceback.format_exc()[-1500:]}  files: {place.site.directory}"
                await asyncio.to_thread(places.drop, kind, keep_files=True)
            print(f"{kind:8} {schedule} -> {words} ({time.monotonic() - started:.0f} s)", flush=True)
    print(f"{tried} schedules tried, {tried - len(failed)} held; seeds that did not: {failed or 'none'}")
    return len(failed)
