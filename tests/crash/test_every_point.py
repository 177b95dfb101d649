"""kill -9 of the daemon right before and right after every durable commit and every effect on the host.

A daemon walks a path through the states, dies at each point the first time it comes there, and is started again each
time: after dozens of deaths the trial must have ended as if there had been none, with no engine started twice.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from specd.cli.client import ApiError
from tests.chaos.proof import states_of
from tests.rig import SCRIPT, KilledDaemon, Site

NGRAM: dict[str, Any] = {"speculative-config": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}}
MEASURED = {"worse", "better", "equivalent", "inconclusive", "invalid"}
SMALL = """
[benchmarks.small]
levels = [1]
repeats = 2
requests = 2
prompts = "quick"
max_tokens = 16
warmup_requests = 1
first_token_s = 8
idle_s = 8
"""
KEEP = '\n[services.llm.policy]\nafter_better = "keep"\nmargin = 0.01\n'
FAST = {"SPECD_REHEARSAL": json.dumps({**SCRIPT, "base_step_ms": 1.0})}
FAULT = "SPECD_REHEARSAL_FAULT"


@asynccontextmanager
async def walked(site: Site, config: str = "") -> AsyncIterator[KilledDaemon]:
    """Give a daemon that dies at each point once armed, and prove in the end that nothing is left of any trial."""
    before = site.fingerprint()
    walk = KilledDaemon(site, SMALL + config)
    # Dozens of starts on a busy machine take their time, and it counts.
    text = walk.daemon.config.read_text()
    walk.daemon.config.write_text(text.replace("rollback_s = 60", "rollback_s = 600"))
    async with walk.daemon.client:
        try:
            yield walk
            await walk.end()
        finally:
            walk.close()
    print(f"{site.name}: {walk.kills} deaths at {len(walk.passed)} points, all held")
    assert walk.kills == len(walk.passed), "a point was passed without a death, or a death had another cause"
    assert walk.kills >= 10
    assert site.answers()
    assert site.fingerprint() == before
    assert site.traces() == []


async def test_measured_and_taken_back(site: Site) -> None:
    async with walked(site) as walk:
        walk.arm()
        trial = await walk.submit(NGRAM, benchmark="small")
        shown = await walk.until(trial, "restored")
        events = (await walk.daemon.client.get("/v1/events.json", since=0, limit=10000))["events"]
        lines = await walk.daemon.client.log(trial, limit=10000)
    assert shown["outcome"] in MEASURED, shown["reason"]
    # A load that ended while the daemon was away goes on to ready.
    way = [state for state in states_of(shown) if state != "cudagraph-compile"]
    assert way == [
        *("baseline", "write-unit", "verify", "restart", "loading", "ready", "benchmark", "rollback", "restored"),
    ]
    moved = [event for event in events if event["type"] == "TrialMoved"]
    assert [move["target"] for move in moved] == states_of(shown)
    unit = f"specd-{trial}.service"
    stored = [line["text"] for line in lines if line["unit"] == unit]
    assert len(stored) > 20
    assert stored == site.lines(unit, site.starts(unit)[0])[: len(stored)], "a line is lost, doubled or out of order"
    assert len(site.starts(f"specd-{trial}.service")) == 1, "the candidate was started twice"
    assert len(site.starts()) == 2, "the baseline was started twice"
    walk.has_passed("measured")


async def test_kept_and_taken_back(embedded_site: Site) -> None:
    site = embedded_site
    async with walked(site, KEEP) as walk:
        trial = await walk.submit({"max-num-seqs": 64}, benchmark="small", env=FAST)
        await walk.until(trial, "benchmark")
        walk.arm()
        shown = await walk.until(trial, "kept", "restored")
        if shown["outcome"] == "better":
            assert shown["state"] == "kept"
            assert not site.is_active()
            assert site.answers()
            await walk.insist(lambda: walk.daemon.client.post("/v1/services/llm/rollback", {"by": "a test"}))
        shown = await walk.until(trial, "restored")
    assert shown["outcome"] in MEASURED
    states_of(shown)
    assert len(site.starts(f"specd-{trial}.service")) == 1
    assert len(site.starts()) == 2


async def test_dead_in_its_load(embedded_site: Site) -> None:
    site = embedded_site
    async with walked(site) as walk:
        trial = await walk.submit({}, benchmark="small", env={FAULT: "die:weights:1"})
        await walk.until(trial, "restart", "loading", "rollback")
        walk.arm()
        shown = await walk.until(trial, "restored")
    assert shown["outcome"] == "failed"
    states_of(shown)
    assert len(site.starts(f"specd-{trial}.service")) == 1
    assert len(site.starts()) == 2


async def test_refused_before_the_restart(site: Site) -> None:
    invocation = site.invocation()
    async with walked(site) as walk:
        trial = await walk.submit({"max-model-len": "abc"}, benchmark="small")
        await walk.until(trial, "baseline", "write-unit", "verify", "withdrawn")
        walk.arm()
        shown = await walk.until(trial, "withdrawn")
    assert shown["outcome"] == "failed"
    states_of(shown)
    assert site.invocation() == invocation
    assert site.starts(f"specd-{trial}.service") == []
    walk.has_passed("refused")


async def test_cancelled_in_its_load(site: Site) -> None:
    async with walked(site) as walk:
        trial = await walk.submit({}, benchmark="small", env={FAULT: "hang:weights"})
        await walk.until(trial, "loading")
        walk.arm()
        # Asked again after a death, it may be told that the trial is being rolled back already.
        with suppress(ApiError):
            await walk.insist(lambda: walk.daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "a test"}))
        shown = await walk.until(trial, "restored")
    assert shown["outcome"] == "cancelled"
    states_of(shown)
    assert len(site.starts(f"specd-{trial}.service")) == 1
    assert len(site.starts()) == 2
    walk.has_passed("cancelled")


async def test_parked_and_taken_up_by_a_person(embedded_site: Site) -> None:
    site = embedded_site
    async with walked(site) as walk:
        trial = await walk.submit({}, benchmark="small", env={FAULT: "die:weights:1"})
        await walk.until(trial, "restart", "loading")
        site.set_baseline_environment(SPECD_REHEARSAL_FAULT="die:config:1")
        await walk.until(trial, "rollback")
        walk.arm()
        await walk.until(trial, "rollback-failed")
        site.set_baseline_environment()
        await walk.insist(lambda: walk.daemon.client.post("/v1/services/llm/rollback", {"by": "a test"}))
        shown = await walk.until(trial, "restored")
    assert shown["outcome"] == "failed"
    states_of(shown)
    assert len(site.starts(f"specd-{trial}.service")) == 1
    walk.has_passed("parked")
