"""One trial, end to end, through the real daemon: what it finds, and that the baseline is back whatever goes wrong."""

import asyncio
import json
import signal
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.rig import Daemon, EmbeddedSite, RemoteSite, Site
from tests.rig.daemon import write_trial

# Prompts differ in how much of them is drafted well: a verdict takes more than a handful.
MORE = '[benchmarks.more]\nlevels = [1, 2]\nrepeats = 1\nrequests = 28\nprompts = "quick"\nmax_tokens = 24\n'


@pytest.mark.timing
async def test_a_slower_candidate_is_measured_and_the_baseline_restored(site: Site) -> None:
    before, invocation = site.fingerprint(), site.invocation()
    async with Daemon(site, MORE) as daemon:
        shown = await daemon.settled(await daemon.submit(benchmark="more"))
        states = [move["state"] for move in shown["history"]]
        events = (await daemon.client.get("/v1/events.json", since=0, limit=10000))["events"]
    assert shown["state"] == "restored", shown["reason"]
    assert states == [
        *("baseline", "write-unit", "verify", "restart", "loading", "cudagraph-compile", "ready", "benchmark"),
        *("rollback", "restored"),
    ]
    assert shown["outcome"] == "worse", shown["reason"]
    comparison = shown["comparison"]
    assert comparison["low"] <= comparison["estimate"] <= comparison["high"] < 0
    assert shown["baseline"]["invocation"] == invocation
    assert shown["candidate"]["invocation"] not in {"", invocation}
    assert shown["candidate"]["levels"][0]["acceptance_length"] > 1
    assert "acceptance_length" not in shown["baseline"]["levels"][0]
    assert shown["guard"]["state"] == "disarmed"
    assert not [check for check in shown["checks"] if check["status"] == "failed"]
    assert site.answers()
    assert site.fingerprint() == before
    assert site.traces() == []
    stages = {event["stage"] for event in events if event["type"] == "StageProgressed" and event["state"] == "loading"}
    assert stages, "loading showed no progress"
    assert "hf_not-to-be-shown" not in json.dumps(shown) + json.dumps(events)


# The fault, the class the trial must give it, and the state it must fail in.
FAULTS = [
    ("die:import:1", {"unexpected-exit", "engine-died", "unknown"}, "loading"),
    ("die:weights:1", {"engine-died", "missing-file", "unknown"}, "loading"),
    ("die:compile:0", {"engine-died", "compile", "unexpected-exit"}, "cudagraph-compile"),
    ("die:capture:1,orphans", {"engine-died", "gpu-memory", "compile", "unknown"}, "cudagraph-compile"),
    ("hang:weights", {"hang"}, "loading"),
    ("hang:capture", {"hang"}, "cudagraph-compile"),
    ("oom:weights", {"gpu-memory", "hang"}, "loading"),
    ("never-ready", {"hang"}, "cudagraph-compile"),
    ("no-token", {"no-token"}, "ready"),
    ("http-500", {"refused", "no-token"}, "ready"),
    ("wrong-model-name", {"model-missing", "refused"}, "ready"),
    ("error-in-stream:3", {"benchmark", "refused", "no-token"}, None),
    ("cut-stream:5", None, None),
    ("die-serving:2", {"engine-died", "unexpected-exit", "killed"}, None),
    ("ignore-sigterm", None, None),
    ("slow-stop:60", None, None),
    ("spec-inactive", {"settings", "speculation-inactive"}, None),
    ("spec-inactive:silent", {"speculation-inactive", "settings"}, None),
]


@pytest.mark.parametrize(("fault", "classes", "failing_state"), FAULTS, ids=[fault for fault, *_ in FAULTS])
async def test_a_fault_of_the_candidate_ends_in_a_restored_baseline(
    embedded_site: Site, fault: str, classes: set[str | None] | None, failing_state: str | None
) -> None:
    site = embedded_site
    before = site.fingerprint()
    async with Daemon(site) as daemon:
        shown = await daemon.settled(await daemon.submit(env={"SPECD_REHEARSAL_FAULT": fault}))
    assert shown["state"] == "restored", shown["reason"]
    states = [move["state"] for move in shown["history"]]
    if failing_state:
        assert states[states.index("rollback") - 1] == failing_state, shown["reason"]
    if classes:
        assert shown["class"] in classes, (shown["class"], shown["reason"])
        if None not in classes:
            assert shown["outcome"] in {"failed", "invalid"}
            assert shown["reason"]
    assert site.answers()
    assert site.fingerprint() == before
    assert site.traces() == []


REFUSED = [
    ({"no-such-flag": 1}, "no-such-flag"),
    (
        {"speculative-config": {"method": "ngram", "num_speculative_tokens": 5, "promt_lookup_max": 4}},
        "promt_lookup_max",
    ),
    ({"speculative-config": {"method": "ngram"}}, "num_speculative_tokens"),
    ({"max-model-len": "abc"}, "max-model-len"),
]


@pytest.mark.parametrize(("flags", "named"), REFUSED, ids=[named for _, named in REFUSED])
async def test_what_the_engine_would_refuse_is_refused_before_the_restart(
    site: Site, flags: dict[str, object], named: str
) -> None:
    invocation = site.invocation()
    async with Daemon(site) as daemon:
        shown = await daemon.settled(await daemon.submit(flags))
    assert shown["state"] == "withdrawn"
    assert shown["outcome"] == "failed"
    assert named.replace("-", "_") in shown["reason"].replace("-", "_")
    assert site.invocation() == invocation
    assert site.traces() == []


@pytest.mark.parametrize(
    "state",
    ["baseline", "write-unit", "verify", "restart", "loading", "cudagraph-compile", "ready", "benchmark"],
)
async def test_a_cancel_in_each_state_leaves_the_baseline_serving(embedded_site: Site, state: str) -> None:
    await _cancelled_in(embedded_site, state)


@pytest.mark.host
@pytest.mark.parametrize("state", ["verify", "restart", "benchmark"])
async def test_a_cancel_leaves_the_baseline_serving_on_a_host(remote_site: Site, state: str) -> None:
    await _cancelled_in(remote_site, state)


async def _cancelled_in(site: Site, state: str) -> None:
    before = site.fingerprint()
    async with Daemon(site) as daemon:
        trial = await daemon.submit()
        await daemon.reached(trial, state)
        await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "a test", "why": state})
        shown = await daemon.settled(trial)
    assert shown["outcome"] == "cancelled"
    assert shown["state"] in {"withdrawn", "restored"}
    assert "a test" in shown["reason"]
    assert site.answers()
    assert site.fingerprint() == before
    assert site.traces() == []


async def test_a_baseline_that_does_not_come_back_is_loud_and_retried_by_command(site: Site) -> None:
    async with Daemon(site) as daemon:
        trial = await daemon.submit()
        await daemon.reached(trial, "benchmark")
        site.set_baseline_environment(SPECD_REHEARSAL_FAULT="die:weights:1")
        shown = await daemon.settled(trial, within_s=120)
        assert shown["state"] == "rollback-failed"
        assert "serving" in shown
        assert "not proven" in shown["serving"]
        again = daemon.command("submit", str(write_trial(site.directory / "t.toml", {"max-num-seqs": 8})))
        assert again.returncode == 4, again.stderr
        assert "rollback" in again.stderr
        daemon.kill()
        await daemon.start()
        assert (await daemon.client.trial(trial))["state"] == "rollback-failed"
        site.set_baseline_environment()
        done = daemon.command("rollback", "llm")
        assert done.returncode == 0, done.stderr
        await daemon.reached(trial, "restored")
    assert site.answers()
    assert site.traces() == []


KEEP = '[services.llm.policy]\nafter_better = "keep"\nmargin = 0.01\n'


async def kept(site: Site, daemon: Daemon) -> str:
    """Run a trial whose candidate is kept; returns its id."""
    faster = {"speculative-config": {"method": "ngram", "num_speculative_tokens": 1, "prompt_lookup_max": 2}}
    trial = await daemon.submit(faster, env={"SPECD_REHEARSAL": json.dumps(_fast_script())})
    shown = await daemon.settled(trial)
    assert (shown["state"], shown["outcome"]) == ("kept", "better"), shown["reason"]
    assert shown["guard"]["state"] == "disarmed"
    assert site.answers()
    assert not site.is_active()
    return trial


async def restored(site: Site, daemon: Daemon, trial: str) -> dict[str, Any]:
    """Wait until a kept candidate has given way; returns the trial."""
    await daemon.reached(trial, "restored")
    shown = await daemon.client.trial(trial)
    assert shown["outcome"] == "better"
    assert site.is_active()
    assert site.answers()
    assert site.traces() == []
    return dict(shown)


@pytest.mark.timing
async def test_a_better_candidate_is_kept_if_asked_and_can_be_taken_back(site: Site) -> None:
    async with Daemon(site, KEEP) as daemon:
        trial = await kept(site, daemon)
        await daemon.client.post("/v1/services/llm/rollback", {"by": "a test"})
        await restored(site, daemon, trial)


@pytest.mark.timing
async def test_a_kept_candidate_that_dies_gives_way_to_the_baseline(embedded_site: EmbeddedSite) -> None:
    async with Daemon(embedded_site, KEEP) as daemon:
        trial = await kept(embedded_site, daemon)
        await asyncio.to_thread(embedded_site.signal_engine, f"specd-{trial}.service", signal.SIGKILL)
        shown = await restored(embedded_site, daemon, trial)
        assert f"the kept candidate specd-{trial}.service" in shown["history"][-2]["cause"]


@pytest.mark.host
@pytest.mark.timing
async def test_a_reboot_while_a_candidate_is_kept_and_specd_is_away(remote_site: RemoteSite) -> None:
    async with Daemon(remote_site, KEEP) as daemon:
        trial = await kept(remote_site, daemon)
        daemon.kill()
        await asyncio.to_thread(remote_site.host.reboot)
        await asyncio.to_thread(remote_site.wait_until_serving)
        before = remote_site.invocation()
        await daemon.start()
        await restored(remote_site, daemon, trial)
        assert remote_site.invocation() == before


async def test_a_unit_is_left_for_a_look_if_asked_and_never_enabled(site: Site) -> None:
    async with Daemon(site) as daemon:
        trial = await daemon.submit(keep_unit=True)
        await daemon.reached(trial, "loading")
        await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "a test"})
        assert (await daemon.settled(trial))["state"] == "restored"
        second = await daemon.submit({"max-model-len": "abc"}, name="second")
        assert (await daemon.settled(second))["state"] == "withdrawn"
    assert any(trial in trace for trace in site.traces())
    assert not site.is_active(f"specd-{trial}.service")


def _fast_script() -> dict[str, object]:
    from tests.rig import SCRIPT

    return {**SCRIPT, "acceptance": 0.98, "acceptance_spread": 0.0, "ngram_match_rate": 1.0, "slope": 0.02}


async def test_an_unreachable_daemon_and_a_bad_file_have_their_exit_codes(embedded_site: Site, tmp_path: Path) -> None:
    trial = write_trial(tmp_path / "t.toml", {"max-num-seqs": 8})
    async with Daemon(embedded_site) as daemon:
        bad = tmp_path / "bad.toml"
        bad.write_text('[[trial]]\nname = "x"\nservice = "lm"\nflagz = 1\n')
        refused = daemon.command("submit", str(bad))
        assert refused.returncode == 2
        assert "flagz" in refused.stderr
        assert "llm" in refused.stderr
        assert daemon.command("show", "no-such-trial").returncode == 2
        assert daemon.command("rollback", "llm").returncode == 4
        planned = daemon.command("plan", str(trial), "--json")
        assert planned.returncode == 0, planned.stderr
        assert json.loads(planned.stdout)["plans"][0]["ok"] is True
    gone = daemon.command("trials")
    assert gone.returncode == 3


async def test_a_trial_waits_for_the_window_of_its_service(embedded_site: EmbeddedSite) -> None:
    # Closed for the next hours at least, whatever the time is.
    later = datetime.now() + timedelta(hours=3)
    window = f"{later:%H:00}-{later + timedelta(hours=1):%H:00}"
    daemon = Daemon(embedded_site)
    text = daemon.config.read_text()
    daemon.config.write_text(text.replace("drain_s = 1.0", f'drain_s = 1.0\nwindows = ["{window}"]'))
    async with daemon:
        trial = await daemon.submit({"max-num-seqs": 8})
        async with asyncio.timeout(10):
            while not any("waits for the window" in note for note in await all_notes(daemon)):
                await asyncio.sleep(0.05)
        assert (await daemon.client.trial(trial))["state"] == "queued"
        await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "a test"})
        await daemon.reached(trial, "withdrawn")


async def all_notes(daemon: Daemon) -> list[str]:
    events = (await daemon.client.get("/v1/events.json", since=0, limit=10000))["events"]
    return [event["text"] for event in events if event["type"] == "NoteAdded"]


@pytest.mark.timing
async def test_the_restored_baseline_is_measured_once_more(embedded_site: EmbeddedSite) -> None:
    plan = '[benchmarks.eight]\nlevels = [1]\nrepeats = 1\nrequests = 8\nprompts = "quick"\nmax_tokens = 24\n'
    async with Daemon(embedded_site, f"[services.llm.policy]\ndrift_check = true\n{plan}") as daemon:
        shown = await daemon.settled(await daemon.submit(benchmark="eight"))
        assert shown["outcome"] not in {"failed", "cancelled", "invalid"}, shown["reason"]
        drift = shown["drift"]
        assert (drift["metric"], drift["level"]) == ("tpot", 1)
        # The same program on the same machine.
        assert abs(drift["estimate"]) < 0.15
        aborted = await daemon.submit(env={"SPECD_REHEARSAL_FAULT": "die:weights:1"})
        assert (await daemon.settled(aborted))["drift"] is None
