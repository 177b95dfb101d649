"""Submitting twice, waiting, cancelling, extending and reading logs, through the API of the real daemon."""

from datetime import datetime
from typing import Any

import pytest

from specd.cli.client import ApiError
from tests.rig import Daemon, EmbeddedSite
from tests.rig.daemon import trial_toml


def submission(name: str, key: str = "") -> dict[str, Any]:
    return {"file": "t.toml", "text": trial_toml({"max-num-seqs": 8}, name=name), **({"key": key} if key else {})}


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


async def refusal(daemon: Daemon, path: str, body: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await daemon.client.post(path, body)
    return caught.value


async def test_the_same_key_gives_the_same_trials_and_tells_of_them_once(embedded_site: EmbeddedSite) -> None:
    async with Daemon(embedded_site) as daemon:
        first = (await daemon.client.post("/v1/trials", submission("a", "k1")))["trials"]
        again = (await daemon.client.post("/v1/trials", submission("a", "k1")))["trials"]
        daemon.kill()
        await daemon.start()
        later = (await daemon.client.post("/v1/trials", submission("a", "k1")))["trials"]
        other = (await daemon.client.post("/v1/trials", submission("a", "k2")))["trials"]
        assert [t["id"] for t in first] == [t["id"] for t in again] == [t["id"] for t in later]
        assert other[0]["id"] != first[0]["id"]
        for trial in (other[0]["id"], first[0]["id"]):
            await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "a test"})
        await daemon.settled(first[0]["id"])
        events = await daemon.client.past_events(0, "", limit=10_000)
        assert len(await daemon.client.trials()) == 2
    told = [event["trial"] for event in events if event["type"] == "TrialSubmitted"]
    assert sorted(told) == sorted([first[0]["id"], other[0]["id"]])


async def test_trials_of_one_service_wait_for_each_other(embedded_site: EmbeddedSite) -> None:
    async with Daemon(embedded_site) as daemon:
        first = await daemon.submit(name="first")
        waiting = await daemon.submit(name="waiting")
        dropped = await daemon.submit(name="dropped")
        await daemon.reached(first, "loading")
        for trial in (waiting, dropped):
            shown = await daemon.client.trial(trial)
            assert (shown["state"], shown["deadline_at"]) == ("queued", None)
            error = await refusal(daemon, f"/v1/trials/{trial}/extend", {"minutes": 5})
            assert (error.status, error.exit_code) == (409, 4)
            assert "queued" in str(error)
        (service,) = (await daemon.client.get("/v1/services"))["services"]
        assert service["trial"] == first
        await daemon.client.post(f"/v1/trials/{dropped}/cancel", {"by": "a test", "why": "changed my mind"})
        gone = await daemon.settled(dropped)
        assert (gone["state"], gone["outcome"]) == ("withdrawn", "cancelled")
        assert "a test" in gone["reason"]
        assert [move["state"] for move in gone["history"]] == ["withdrawn"]
        for verb in ("cancel", "extend"):
            error = await refusal(daemon, f"/v1/trials/{dropped}/{verb}", {"minutes": 5} if verb == "extend" else {})
            assert (error.status, error.exit_code) == (409, 4)
        done = await daemon.settled(first)
        started = await daemon.reached(waiting, "baseline")
        assert seconds(started["at"]) >= seconds(done["history"][-1]["at"])
        await daemon.client.post(f"/v1/trials/{waiting}/cancel", {"by": "a test"})
        assert (await daemon.settled(waiting))["state"] == "withdrawn"
    assert embedded_site.answers()
    assert embedded_site.traces() == []


async def test_an_extension_moves_the_deadline_and_survives_a_kill(embedded_site: EmbeddedSite) -> None:
    # Hangs in loading for longer than the limit without progress, which is 4 s.
    async with Daemon(embedded_site) as daemon:
        trial = await daemon.submit(env={"SPECD_REHEARSAL_FAULT": "hang:weights"})
        await daemon.reached(trial, "loading")
        before = (await daemon.client.trial(trial))["deadline_at"]
        answer = await daemon.client.post(f"/v1/trials/{trial}/extend", {"minutes": 10})
        after = (await daemon.client.trial(trial))["deadline_at"]
        assert answer["deadline_at"] == after
        assert seconds(after) - seconds(before) == pytest.approx(600, abs=0.1)
        daemon.kill()
        await daemon.start()
        shown = await daemon.client.trial(trial)
        assert shown["state"] == "loading"
        assert seconds(shown["deadline_at"]) == pytest.approx(seconds(after), abs=0.5)
        events = await daemon.client.past_events(0, trial, limit=10_000)
        (extended,) = [event for event in events if event["type"] == "DeadlineExtended"]
        assert (extended["state"], extended["minutes"]) == ("loading", 10)
        assert seconds(extended["deadline_at"]) == pytest.approx(seconds(after), abs=0.1)
        await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "a test"})
        assert (await daemon.settled(trial))["state"] == "restored"


async def test_the_log_comes_in_pages_from_either_end(embedded_site: EmbeddedSite) -> None:
    async with Daemon(embedded_site) as daemon:
        trial = await daemon.submit()
        await daemon.reached(trial, "benchmark")
        await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "a test"})
        await daemon.settled(trial)
        whole = await daemon.client.log(trial, limit=10_000)
        assert [line["n"] for line in whole] == list(range(1, len(whole) + 1))
        assert len(whole) > 60
        assert {line["unit"] for line in whole} == {"llm.service", f"specd-{trial}.service"}
        assert await daemon.client.log(trial, after=10, limit=5) == whole[10:15]
        assert await daemon.client.log(trial, after=-7) == whole[-7:]
        assert await daemon.client.log(trial, after=-7, limit=3) == whole[-7:-4]
        assert await daemon.client.log(trial, after=-10_000, limit=4) == whole[:4]
        assert await daemon.client.log(trial, after=len(whole)) == []
        artefacts = (await daemon.client.get(f"/v1/trials/{trial}/artefacts"))["artefacts"]
    assert set(artefacts) == {"baseline.unit", "candidate.unit", "unit.diff"}
    assert "speculative-config" in artefacts["unit.diff"]


async def test_a_trial_whose_service_has_left_the_config(embedded_site: EmbeddedSite) -> None:
    async with Daemon(embedded_site) as daemon:
        trial = await daemon.submit()
        waiting = await daemon.submit(name="waiting")
        await daemon.reached(trial, "loading")
        daemon.kill()
        config = daemon.config.read_text()
        daemon.config.write_text(config.replace("services.llm", "services.other"))
        await daemon.start()
        assert (await daemon.client.trial(trial))["state"] == "loading"
        error = await refusal(daemon, f"/v1/trials/{trial}/cancel", {"by": "a test"})
        assert error.status == 409
        assert "put the service back" in str(error)
        await daemon.client.post(f"/v1/trials/{waiting}/cancel", {"by": "a test"})
        assert (await daemon.client.trial(waiting))["state"] == "withdrawn"
        daemon.kill()
        daemon.config.write_text(config)
        await daemon.start()
        shown = await daemon.settled(trial)
        events = await daemon.client.past_events(0, trial, limit=10_000)
    assert shown["state"] == "restored"
    told = [event["found"] for event in events if event["type"] == "TrialResumed"]
    assert any(f"specd-{trial}.service is active" in words for words in told), told
    assert embedded_site.traces() == []
