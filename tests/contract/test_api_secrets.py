"""Secrets of a service and of a trial: in no answer, event, log line, artefact, and not in the daemon's own files."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig import Daemon, EmbeddedSite

KEY = "sk-of-the-server-4711"
IN_ENVIRONMENT = "hf_not-to-be-shown"
OF_TRIAL = "hf_of-the-trial-0815"


@pytest.fixture
def keyed_site(tmp_path: Path) -> Iterator[EmbeddedSite]:
    """A service that wants a key, given in its command line."""
    site = EmbeddedSite(tmp_path, api_key=KEY)
    try:
        yield site
    finally:
        site.close()


async def everything_said(daemon: Daemon, trial: str) -> str:
    """Return every answer that the API gives about a trial, its services and its past."""
    client = daemon.client
    paths = ["/v1/health", "/v1/trials", "/v1/services", *(f"/v1/trials/{trial}{part}" for part in ("", "/artefacts"))]
    answers = [await client.get(path) for path in paths]
    answers += [await client.log(trial, limit=10_000), await client.past_events(0, "", limit=10_000)]
    answers += [await client.post("/v1/check")]
    answers += [await client.plan("t.toml", f'[[trial]]\nname = "p"\nservice = "llm"\nenv.HF_TOKEN = "{OF_TRIAL}"\n')]
    return json.dumps(answers)


@pytest.mark.parametrize("fault", ["", "die:weights:1"])
async def test_secrets_are_nowhere(keyed_site: EmbeddedSite, fault: str) -> None:
    site = keyed_site
    env = {"HF_TOKEN": OF_TRIAL, **({"SPECD_REHEARSAL_FAULT": fault} if fault else {})}
    async with Daemon(site) as daemon:
        trial = await daemon.submit(env=env)
        await daemon.reached(trial, "loading")
        daemon.kill()
        await daemon.start()
        shown = await daemon.settled(trial)
        assert shown["state"] == "restored", shown["reason"]
        said = await everything_said(daemon, trial)
        for words in (["show", trial], ["show", trial, "--json"], ["trials"], ["watch", trial]):
            done = daemon.command(*words)
            said += done.stdout + done.stderr
        files = {path.name: path.read_bytes() for path in (site.directory / "state").iterdir() if path.is_file()}
        files["daemon.log"] = (site.directory / "daemon.log").read_bytes()
    assert shown["changes"]["env"]["HF_TOKEN"] == "***"
    assert len(shown["candidate"]["argv"]) > 5
    assert "***" in " ".join(shown["candidate"]["argv"]), "the key's place is not shown at all"
    for secret in (KEY, IN_ENVIRONMENT, OF_TRIAL):
        assert secret not in said
    for name, content in files.items():
        for secret in (KEY, IN_ENVIRONMENT):
            assert secret.encode() not in content, (secret, name)
        # The daemon needs it again after a crash, so the trial's own secret is in the database, and nowhere else.
        if not name.startswith("specd.db"):
            assert OF_TRIAL.encode() not in content, name
    assert site.answers()
    assert site.traces() == []
