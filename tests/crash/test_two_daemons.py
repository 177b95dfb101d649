"""Two daemons and one service: the claim on its host lets one of them drive it, whatever dies."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.rig import Daemon, Site
from tests.rig.daemon import write_trial


class Beside:
    """The same site as another machine's daemon has it: its own directory for state and config."""

    def __init__(self, site: Site, directory: Path) -> None:
        self._site = site
        self.directory = directory
        directory.mkdir(exist_ok=True)

    def __getattr__(self, name: str) -> object:
        return getattr(self._site, name)


@asynccontextmanager
async def another(site: Site, name: str = "other") -> AsyncIterator[Daemon]:
    beside: Site = Beside(site, site.directory / name)  # type: ignore[assignment]
    async with Daemon(beside) as daemon:
        yield daemon


async def test_a_second_daemon_is_refused_in_words_for_as_long_as_a_trial_is_at_work(site: Site) -> None:
    async with Daemon(site) as first, another(site) as second:
        trial = await first.submit()
        await first.reached(trial, "baseline")
        refused = await second.settled(await second.submit())
        assert (refused["state"], refused["outcome"], refused["class"]) == ("withdrawn", "failed", "claimed")
        assert f"for trial {trial}" in refused["reason"]
        assert "alive" in refused["reason"]
        planned = second.command("plan", str(write_trial(site.directory / "t.toml", {"max-num-seqs": 8})))
        assert planned.returncode == 4
        assert "driven by another specd" in planned.stdout + planned.stderr
        shown = await first.settled(trial)
        assert shown["state"] == "restored"
        assert (await second.settled(await second.submit(name="later")))["state"] == "restored"
    assert len(site.starts(f"specd-{trial}.service")) == 1
    assert site.answers()
    assert site.traces() == []


async def test_of_those_that_come_at_once_one_wins(embedded_site: Site) -> None:
    async with Daemon(embedded_site) as first, another(embedded_site) as second:
        for _ in range(4):
            trials = await asyncio.gather(
                first.submit({"max-model-len": "abc"}), second.submit({"max-model-len": "abc"})
            )
            ends = await asyncio.gather(first.settled(trials[0]), second.settled(trials[1]))
            assert [end["state"] for end in ends] == ["withdrawn", "withdrawn"]
            assert sorted(end["class"] == "claimed" for end in ends)[0] is False, "both were refused"
    assert embedded_site.traces() == []


async def test_a_claim_survives_its_owner_and_is_taken_over_by_command_only(site: Site) -> None:
    before = site.fingerprint()
    async with Daemon(site) as first, another(site) as second:
        trial = await first.submit()
        await first.reached(trial, "loading")
        first.kill()
        refused = await second.settled(await second.submit())
        assert refused["class"] == "claimed"
        # Its owner comes back, finds its claim and goes on.
        await first.start()
        await first.reached(trial, "benchmark", "rollback")
        asked = second.command("takeover", "llm")
        assert asked.returncode == 2
        assert "--yes" in asked.stderr
        taken = second.command("takeover", "llm", "--yes")
        assert taken.returncode == 0, taken.stderr
        parked = await first.until_state(trial, "rollback-failed")
        assert any("driven by another specd" in move["cause"] for move in parked["history"])
        again = first.command("rollback", "llm")
        assert again.returncode == 0
        await first.until_state(trial, "rollback-failed")
        # Nobody renews the guard any more: it brings the baseline back by itself.
        async with asyncio.timeout(60):
            while not (site.is_active() and await asyncio.to_thread(site.answers)):
                await asyncio.sleep(0.5)
        shown = await second.settled(await second.submit(name="ours-now"))
        assert shown["state"] == "restored", shown["reason"]
        await first.client.post("/v1/services/llm/rollback", {"by": "a test"})
        await first.until_state(trial, "restored")
    assert site.fingerprint() == before
    assert site.answers()
    assert site.traces() == []
