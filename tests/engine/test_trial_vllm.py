"""Trials of a real vLLM on a real systemd, through the real daemon over ssh: measured, refused, cancelled in its load.

One host and one state directory serve all tests; each leaves the baseline serving.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig import Daemon
from tests.testhost import HostOptions, TestHost, Unavailable, power
from tests.testhost.errors import HostError
from tests.testhost.rehearsal import is_healthy, request
from tests.vllm.provision import VllmInstall
from tests.vllm.unit import MODEL_NAME, READY_TIMEOUT_S, UNIT, vllm_binds, write_vllm_unit

pytestmark = [pytest.mark.engine, pytest.mark.host]

NGRAM: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
# A kill is over in well under a second; vLLM alone would take as long as the unit lets it.
GONE_WITHIN_S = 10.0


class VllmSite:
    """A booted host whose `vllm-gemma.service` is the real engine."""

    name = "vllm"
    unit = UNIT
    scope = "system"

    def __init__(self, directory: Path, host: TestHost) -> None:
        self.directory = directory
        self.host = host

    def host_config(self) -> str:
        return f'[hosts.site]\nssh = "{self.host.alias}"\nssh_config = {json.dumps(str(self.host.ssh_config))}'

    def invocation(self, unit: str = UNIT) -> str:
        return self.host.show(unit, "InvocationID")["InvocationID"]

    def is_active(self, unit: str = UNIT) -> bool:
        return self.host.is_active(unit)

    def answers(self) -> bool:
        body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "The sky is"}], "max_tokens": 4}
        try:
            return bool(json.loads(request(self.host, "/v1/chat/completions", body))["usage"]["completion_tokens"] > 0)
        except HostError:
            return False

    def fingerprint(self) -> dict[str, str]:
        enabled = self.host.systemctl("is-enabled", UNIT, check=False).strip()
        return {**self.host.snapshot("/etc/systemd/system"), **self.host.snapshot("/etc/vllm"), "enabled": enabled}

    def traces(self) -> list[str]:
        listed = self.host.exec(["systemctl", "list-units", "--all", "--plain", "--no-legend", "specd*"], check=False)
        files = [name for name in self.host.snapshot("/run/systemd/system") if "specd" in name]
        return files + [line.split()[0] for line in listed.stdout.splitlines() if line.strip()]

    def processes(self, unit: str) -> list[int]:
        """Return the processes in a unit's cgroup, [] once the cgroup is gone."""
        file = f"/sys/fs/cgroup/system.slice/{unit}/cgroup.procs"
        return [int(word) for word in self.host.exec(["cat", file], check=False).stdout.split()]

    def set_baseline_environment(self, **values: str) -> None:
        raise NotImplementedError("the real engine has no faults on request")

    def stop_baseline(self) -> None:
        self.host.systemctl("stop", UNIT)


@pytest.fixture(scope="module")
def vllm_site(swept: None, vllm_install: VllmInstall, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmSite]:
    """The real engine as a serving unit on a host that this module's tests share."""
    try:
        host = TestHost.create(options=HostOptions(binds=vllm_binds(vllm_install)))
    except Unavailable as why:
        pytest.skip(str(why))
    try:
        host.boot()
        write_vllm_unit(host, vllm_install)
        host.systemctl("start", UNIT)
        power.wait_until(lambda: is_healthy(host), READY_TIMEOUT_S, "vLLM's health")
        yield VllmSite(tmp_path_factory.mktemp("vllm"), host)
    finally:
        host.destroy()


def daemon_beside(site: VllmSite) -> Daemon:
    """Return a daemon with the deadlines that a real engine on a busy machine needs."""
    daemon = Daemon(site)
    daemon.config.write_text(f"""\
[daemon]
state_dir = {json.dumps(str(site.directory / "state"))}
socket = {json.dumps(str(daemon.socket))}

{site.host_config()}

[services.llm]
host = "site"
unit = "{UNIT}"
benchmark = "short"

[benchmarks.short]
levels = [1]
repeats = 2
requests = 4
prompts = "quick"
max_tokens = 48
warmup_requests = 1
""")
    return daemon


async def events_of(daemon: Daemon, trial: str) -> list[dict[str, Any]]:
    answer = await daemon.client.get("/v1/events.json", since=0, limit=10000)
    return [event for event in answer["events"] if event.get("trial") == trial]


async def until_engine_runs(site: VllmSite, unit: str) -> None:
    """Wait until the API process has started its engine."""
    async with asyncio.timeout(READY_TIMEOUT_S):
        while len(await asyncio.to_thread(site.processes, unit)) < 3:
            await asyncio.sleep(0.3)


@pytest.mark.parametrize(
    ("speculative", "named", "meant"),
    [
        (
            {"method": "draft_model", "model": "/srv/models/no-such-draft", "num_speculative_tokens": 3},
            "/srv/models/no-such-draft",
            "exists on the host",
        ),
    ],
    ids=["no-draft"],
)
async def test_what_vllm_would_refuse_never_stops_the_baseline(
    vllm_site: VllmSite, speculative: dict[str, Any], named: str, meant: str
) -> None:
    before, invocation = vllm_site.fingerprint(), vllm_site.invocation()
    async with daemon_beside(vllm_site) as daemon:
        shown = await daemon.settled(await daemon.submit({"speculative-config": speculative}), within_s=120)
    assert (shown["state"], shown["outcome"], shown["class"]) == ("withdrawn", "failed", "refused"), shown["reason"]
    assert named in shown["reason"]
    assert meant in shown["failure"]["hint"]
    opinions = [check for check in shown["checks"] if check["name"] == "engine.accepts"]
    assert [check["status"] for check in opinions] == ["failed"]
    assert named in opinions[0]["evidence"]
    assert "restart" not in [move["state"] for move in shown["history"]]
    assert vllm_site.invocation() == invocation
    assert vllm_site.answers()
    assert vllm_site.fingerprint() == before
    assert vllm_site.traces() == []


async def test_ngram_is_loaded_measured_and_taken_back(vllm_site: VllmSite) -> None:
    before, invocation = vllm_site.fingerprint(), vllm_site.invocation()
    async with daemon_beside(vllm_site) as daemon:
        trial = await daemon.submit({"speculative-config": NGRAM})
        shown = await daemon.settled(trial, within_s=600)
        events = await events_of(daemon, trial)
    assert shown["state"] == "restored", shown["reason"]
    # The unit has --enforce-eager, so nothing is compiled and that state is skipped.
    assert [move["state"] for move in shown["history"]] == [
        *("baseline", "write-unit", "verify", "restart", "loading", "ready", "benchmark", "rollback", "restored")
    ]
    _was_verified(shown)
    _was_judged_by_the_figures(shown)
    _load_was_followed(events)
    assert shown["baseline"]["invocation"] == invocation
    assert shown["candidate"]["invocation"] not in {"", invocation, vllm_site.invocation()}
    assert shown["guard"]["state"] == "disarmed"
    assert vllm_site.answers()
    assert vllm_site.fingerprint() == before
    assert vllm_site.traces() == []


def _was_verified(shown: dict[str, Any]) -> None:
    status = {check["name"]: check["status"] for check in shown["checks"]}
    proofs = ("unit.bytes", "unit.analyze", "unit.argv", "unit.environment", "engine.accepts", "ready.speculation")
    assert {name: status.get(name) for name in proofs} == dict.fromkeys(proofs, "passed")
    assert "failed" not in status.values()
    evidence = {check["name"]: check["evidence"] for check in shown["checks"]}
    assert "1 JSON values deep-equal" in evidence["unit.argv"]
    assert "method=ngram, num_speculative_tokens=5" in evidence["ready.speculation"]


def _was_judged_by_the_figures(shown: dict[str, Any]) -> None:
    baseline, candidate = shown["baseline"]["levels"][0], shown["candidate"]["levels"][0]
    assert "acceptance_length" not in baseline
    assert candidate["drafts"] > 0
    assert 1 < candidate["acceptance_length"] <= 1 + NGRAM["num_speculative_tokens"]
    comparison = shown["comparison"]
    assert comparison["low"] <= comparison["estimate"] <= comparison["high"]
    expected = {
        "better": comparison["low"] > 0,
        "worse": comparison["high"] < 0,
        "equivalent": comparison["low"] < 0 < comparison["high"],
        "inconclusive": True,
    }
    assert expected[shown["outcome"]], comparison


def _load_was_followed(events: list[dict[str, Any]]) -> None:
    """The stages came from the journal, and each moved forward only, with its evidence and an expected end."""
    told = [event for event in events if event["type"] == "StageProgressed" and event["state"] == "loading"]
    order = list(dict.fromkeys(event["stage"] for event in told))
    assert order == [stage for stage in ("launch", "config", "weights", "server") if stage in order]
    assert {"config", "weights"} <= set(order)
    for stage in ("config", "weights"):
        shares = [event["fraction"] for event in told if event["stage"] == stage and event["fraction"] is not None]
        assert shares == sorted(shares)
        assert shares[-1] > 0
    assert all(event["source"] for event in told)
    # The baseline's own start is in its journal: that is the first expectation.
    assert any(event["eta_s"] for event in told)


async def test_a_cancel_in_the_load_is_over_in_seconds(vllm_site: VllmSite) -> None:
    before, invocation = vllm_site.fingerprint(), vllm_site.invocation()
    async with daemon_beside(vllm_site) as daemon:
        trial = await daemon.submit({"speculative-config": NGRAM})
        await daemon.reached(trial, "loading", within_s=200)
        unit = f"specd-{trial}.service"
        await until_engine_runs(vllm_site, unit)
        await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "a test", "why": "in mid-load"})
        asked = time.monotonic()
        while await asyncio.to_thread(vllm_site.processes, unit):
            assert time.monotonic() - asked < GONE_WITHIN_S, vllm_site.host.journal(unit)[-20:]
            await asyncio.sleep(0.1)
        shown = await daemon.settled(trial, within_s=READY_TIMEOUT_S)
    states = [move["state"] for move in shown["history"]]
    assert states[states.index("rollback") - 1] == "loading"
    assert (shown["state"], shown["outcome"]) == ("restored", "cancelled")
    assert "a test" in shown["reason"]
    assert vllm_site.invocation() != invocation
    assert vllm_site.answers()
    assert vllm_site.fingerprint() == before
    assert vllm_site.traces() == []
