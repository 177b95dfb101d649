"""One trial of a random kind, befallen by random faults at random moments, then let alone."""

import asyncio
import json
import random
import shutil
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specd.cli.client import ApiError
from specd.errors import DaemonUnreachable
from tests.chaos.faults import FAULTS, Scene, faults_of
from tests.chaos.proof import prove
from tests.rig import SCRIPT, Daemon, EmbeddedSite, RemoteSite, Site
from tests.testhost import TestHost

__all__ = ["Schedule", "draw", "play", "run", "run_matrix"]

STATES = ("baseline", "write-unit", "verify", "restart", "loading", "cudagraph-compile", "ready", "benchmark")
KINDS = ("measured", "kept", "dead", "hung", "cancelled")
SETTLED = {"kept", "restored", "withdrawn", "rollback-failed"}
FAST = {"SPECD_REHEARSAL": json.dumps({**SCRIPT, "base_step_ms": 1.0})}
CONFIG = """
[benchmarks.small]
levels = [1]
repeats = 3
requests = 3
prompts = "quick"
max_tokens = 16
warmup_requests = 1
first_token_s = 6
idle_s = 6

[services.llm.policy]
after_better = "keep"
margin = 0.01
"""
WITHIN_S = 180.0


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
            state=chance.choice((*STATES, "rollback")),
            after_s=chance.choice((0.0, 0.0, chance.random(), 2 * chance.random())),
            seconds=chance.choice((0.3, 1.0, 3.0, 9.0)),
        )
        for _ in range(chance.randint(1, 4))
    )
    return Schedule(seed, chance.choice(KINDS), blows)


async def play(site: Site, schedule: Schedule) -> dict[str, Any]:
    """Run a schedule against a site and prove what must hold; returns the trial as it ended. Raises AssertionError."""
    before = site.fingerprint()
    daemon = Daemon(site, CONFIG)
    text = daemon.config.read_text()
    daemon.config.write_text(text.replace("lease_s = 30", "lease_s = 8").replace("renew_s = 2", "renew_s = 1"))
    async with daemon:
        trial = await _submit(daemon, schedule.kind)
        blows = [asyncio.create_task(_strike(Scene(site, daemon, trial, b.seconds), b)) for b in schedule.blows]
        if schedule.kind == "cancelled":
            blows.append(asyncio.create_task(_cancel(daemon, trial, random.Random(schedule.seed).random() * 4)))
        try:
            shown = await _settled(daemon, trial)
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
            shown = await _settled(daemon, trial, but="kept")
        shown = await daemon.client.trial(trial)
    await prove(site, shown, before)
    return shown


async def _submit(daemon: Daemon, kind: str) -> str:
    ngram = {"speculative-config": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}}
    fault = {"dead": "die:weights:1", "hung": "hang:capture"}.get(kind)
    env = FAST if kind == "kept" else {"SPECD_REHEARSAL_FAULT": fault} if fault else {}
    return await daemon.submit(ngram if kind == "measured" else {"max-num-seqs": 64}, benchmark="small", env=env)


async def _strike(scene: Scene, blow: Blow) -> None:
    """Wait for the moment and let the fault happen to its end, also when the trial has settled meanwhile."""
    while True:
        try:
            shown = await scene.daemon.client.trial(scene.trial)
        except DaemonUnreachable:
            await asyncio.sleep(0.1)
            continue
        if blow.state in {move["state"] for move in shown["history"]}:
            break
        await asyncio.sleep(0.03)
    await asyncio.sleep(blow.after_s)
    work = asyncio.ensure_future(_happen(scene, blow.fault))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        work.result()


_OF_THE_DAEMON = asyncio.Lock()
_OF_THE_HOST = asyncio.Lock()


async def _happen(scene: Scene, fault: str) -> None:
    """Two faults of one thing come one after the other: a machine that is off can't be cut off."""
    async with _OF_THE_DAEMON if fault.startswith("daemon") else _OF_THE_HOST:
        if fault.startswith("daemon") and not scene.daemon.is_running:
            return
        await FAULTS[fault](scene)


async def _cancel(daemon: Daemon, trial: str, after_s: float) -> None:
    await asyncio.sleep(after_s)
    try:
        await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "chaos"})
    except (ApiError, DaemonUnreachable):
        return


async def _settled(daemon: Daemon, trial: str, but: str = "") -> dict[str, Any]:
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                shown = await daemon.client.trial(trial)
                if shown["state"] in SETTLED - {but}:
                    return dict(shown)
            except DaemonUnreachable:
                pass
            await asyncio.sleep(0.1)


class _Places:
    """A site of each kind asked for, used again until something went wrong there."""

    def __init__(self, kinds: tuple[str, ...], directory: Path) -> None:
        self.kinds = kinds
        self._directory = directory
        self._count = 0
        self._sites: dict[str, tuple[Site, Any]] = {}

    def site(self, kind: str) -> Site:
        """Return a site whose baseline serves."""
        if kind not in self._sites:
            self._count += 1
            place = self._directory / f"{kind}-{self._count}"
            place.mkdir()
            if kind == "embedded":
                embedded = EmbeddedSite(place)
                self._sites[kind] = (embedded, embedded.close)
            else:
                host = TestHost.create()
                host.boot()
                self._sites[kind] = (RemoteSite(place, host), host.destroy)
        return self._sites[kind][0]

    def drop(self, kind: str, *, keep_files: bool) -> None:
        """End a site."""
        site, end = self._sites.pop(kind)
        end()
        if not keep_files:
            shutil.rmtree(site.directory, ignore_errors=True)

    def close(self) -> None:
        for kind in list(self._sites):
            self.drop(kind, keep_files=False)


async def run(minutes: float, seed: int, kinds: tuple[str, ...]) -> int:
    """Play schedules one after another for a time, telling each; returns how many did not hold."""
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    places = _Places(kinds, directory)
    until = time.monotonic() + minutes * 60
    tried, failed = 0, []
    try:
        while time.monotonic() < until or not tried:
            kind = kinds[tried % len(kinds)]
            site = await asyncio.to_thread(places.site, kind)
            schedule = draw(seed + tried, faults_of(site))
            tried += 1
            started = time.monotonic()
            try:
                shown = await play(site, schedule)
                words = f"{shown['state']}, {shown['outcome']}, {shown.get('class') or '-'}"
            except (AssertionError, TimeoutError, OSError, RuntimeError) as error:
                failed.append(schedule.seed)
                words = f"DID NOT HOLD: {error!r:.600}\n{traceback.format_exc()[-1500:]}  files: {site.directory}"
                await asyncio.to_thread(places.drop, kind, keep_files=True)
            print(f"{kind:8} {schedule} -> {words} ({time.monotonic() - started:.0f} s)", flush=True)
    finally:
        places.close()
    print(f"{tried} schedules tried, {tried - len(failed)} held; seeds that did not: {failed or 'none'}")
    return len(failed)


async def run_matrix(kinds: tuple[str, ...]) -> int:
    """Play every state with every fault on each site; prints the matrix and returns how many cells did not hold."""
    from tests.chaos.matrix import CELLS, play_cell

    places = _Places(kinds, Path(tempfile.mkdtemp(prefix="chaos-")))
    tried, failed = 0, []
    try:
        for kind in kinds:
            for state, fault in CELLS:
                site = await asyncio.to_thread(places.site, kind)
                if fault not in faults_of(site):
                    continue
                tried += 1
                try:
                    shown = await play_cell(site, state, fault)
                    words = f"{shown['state']}, {shown['outcome']}, {shown.get('class') or '-'}"
                except (AssertionError, TimeoutError, OSError, RuntimeError) as error:
                    failed.append((kind, state, fault))
                    words = f"DID NOT HOLD: {error!r:.600}  files: {site.directory}"
                    await asyncio.to_thread(places.drop, kind, keep_files=True)
                print(f"{kind:8} {state:18} {fault:16} {words}", flush=True)
    finally:
        places.close()
    print(f"{tried} cells tried, {tried - len(failed)} held; those that did not: {failed or 'none'}")
    return len(failed)
