"""Trials of units of many makes: the candidate is what systemd makes of the baseline; what can't be tried is said."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.host.trial_site import QUICK, HostSite, noted, put_engine, serve_words, unit_text
from tests.rig import Daemon
from tests.testhost import TestHost

pytestmark = pytest.mark.host

REPO = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def host(swept: None) -> Iterator[TestHost]:
    """A host with the engine and no service yet."""
    made = TestHost.create()
    try:
        made.boot()
        put_engine(made)
        packed = subprocess.run(
            ["tar", "-c", "-C", str(REPO), "specd/__init__.py", "specd/rehearsal"], capture_output=True, check=True
        )
        made.exec(["sh", "-c", "mkdir -p $1 && tar -x -C $1", "unpack", "/opt/rehearsal/lib"], stdin=packed.stdout)
        yield made
    finally:
        made.destroy()


@dataclass(frozen=True)
class Make:
    """A unit's files, with {serve} for the engine's words, and what must be found in the candidate's argv."""

    files: dict[str, str]
    unit: str = "llm.service"
    words: tuple[str, ...] = ()
    prepare: dict[str, str] = field(default_factory=dict)


MAKES = {
    "instance with drop-ins and files": Make(
        {
            "vllm@.service": unit_text("/bin/false --seed %i", "Slice=llm-%i.slice"),
            "vllm@.service.d/10-new.conf": (
                "[Service]\nEnvironmentFile=-/etc/rehearsal/%i.env\nExecStart=\n"
                "ExecStart={serve} $EXTRA --max-num-seqs ${{SEQS}} --served-model-name rehearsal-1t name-%i\n"
            ),
            "vllm@7.service.d/20-env.conf": "[Service]\nEnvironment=HF_TOKEN=hf_not-to-be-shown LIMIT=1\n",
        },
        unit="vllm@7.service",
        words=("--seed", "3", "--max-model-len", "4096", "5", "name-7"),
        prepare={"/etc/rehearsal/7.env": "EXTRA=--seed 3  --max-model-len 4096\nSEQS='5'\n"},
    ),
    "python -m behind wrappers": Make(
        {
            "llm.service": unit_text(
                "/usr/bin/env OMP_NUM_THREADS=1 nice -n 5 {python} -m specd.rehearsal {args}",
                "Environment=PYTHONPATH=/opt/rehearsal/lib",
            )
        },
        words=("/usr/bin/env", "OMP_NUM_THREADS=1", "nice", "-n", "5", "-m", "specd.rehearsal"),
    ),
}


@pytest.mark.parametrize("name", MAKES)
async def test_a_unit_of_this_make_is_tried_and_restored(host: TestHost, tmp_path: Path, name: str) -> None:
    make = MAKES[name]
    serve = serve_words(host)
    python, _, args = serve.split(" ", 2)
    for path, text in make.prepare.items():
        host.put(path, text)
    files = {file: text.format(serve=serve, python=python, args=args) for file, text in make.files.items()}
    site = HostSite(tmp_path, host, files, unit=make.unit)
    try:
        before = site.fingerprint()
        quotes = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
        changes = {"speculative-config": quotes, "max-num-seqs": 9}
        async with Daemon(site, QUICK) as daemon:
            trial = await daemon.submit(changes, benchmark="quick", env={"ODD": 'a "b" $c %d \\e'})
            await daemon.reached(trial, "benchmark")
            candidate = await asyncio.to_thread(site.invocation, f"specd-{trial}.service")
            await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "a test"})
            shown = await daemon.settled(trial)
            notes = await noted(daemon)
        argv = shown["candidate"]["argv"]
        assert candidate == shown["candidate"]["invocation"]
        assert json.loads(argv[argv.index("--speculative-config") + 1]) == quotes
        assert argv[argv.index("--max-num-seqs") + 1] == "9"
        assert argv.count("--max-num-seqs") == 1
        for word in make.words:
            assert word in argv or word in shown["baseline"]["argv"], (word, argv)
        assert (shown["state"], shown["outcome"]) == ("restored", "cancelled"), shown["reason"]
        assert not [check for check in shown["checks"] if check["status"] == "failed"]
        assert not notes
        assert "hf_not-to-be-shown" not in json.dumps(shown)
        assert site.answers()
        assert site.fingerprint() == before
        assert site.traces() == []
    finally:
        site.remove()


async def test_what_stops_along_with_the_baseline_is_started_again(host: TestHost, tmp_path: Path) -> None:
    tied = "[Unit]\nBindsTo=llm.service\nAfter=llm.service\n[Service]\nExecStart=/bin/sleep infinity\n"
    files = {"llm.service": unit_text(serve_words(host)), "proxy.service": tied, "idle.service": tied}
    site = HostSite(tmp_path, host, files)
    try:
        host.systemctl("start", "proxy")
        before = site.invocation("proxy.service")
        async with Daemon(site, QUICK) as daemon:
            trial = await daemon.submit(benchmark="quick")
            await daemon.reached(trial, "loading")
            assert not site.is_active("proxy.service")
            await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "a test"})
            shown = await daemon.settled(trial)
        (check,) = [check for check in shown["checks"] if check["name"] == "unit.dependents"][:1]
        assert (check["status"], "proxy.service (BoundBy)" in check["evidence"]) == ("warning", True)
        assert site.is_active("proxy.service")
        assert site.invocation("proxy.service") not in {"", before}
        assert not site.is_active("idle.service")
        assert site.answers()
        assert site.traces() == []
    finally:
        host.systemctl("stop", "proxy", check=False)
        site.remove()
