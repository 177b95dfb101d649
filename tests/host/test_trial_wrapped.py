"""Trials of services that a shell, a script or a container stands in front of: the change reaches the
server's own process, and `import` reads the unit."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.host.trial_site import QUICK, HostSite, noted, put_engine, serve_words, unit_text
from tests.rig import Daemon
from tests.testhost import TestHost
from tests.testhost.rehearsal import ARCHIVE

pytestmark = pytest.mark.host

# As the client of a container engine, as far as this needs one: what stands behind the image are the program's words.
PODMAN = """\
#!/bin/sh
while [ "$1" != vllm/vllm-openai:test ]; do
  case $1 in --env|-e) export "$2" ;; esac
  shift
done
shift
exec {python} {archive} serve "$@"
"""


@dataclass(frozen=True)
class Form:
    """A unit's ExecStart with {serve} for the engine's words and {args} for what follows `serve`, more lines of the
    unit, files on the host."""

    command: str
    lines: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    engine: str = "rehearsal"


FORMS = {
    "bash": Form(
        "/bin/bash -lc 'export OMP_NUM_THREADS=1; cd /srv && exec {serve} $EXTRA --revision \"it is 5 %%\" 2>&1 | cat'",
        ("Environment=EXTRA=--max-num-seqs\\x205\\x20--enforce-eager",),
    ),
    "script": Form(
        "/opt/llm/start --enforce-eager",
        files={
            "/opt/llm/start": '#!/bin/bash -e\n# Starts it.\nSEQS=5\nexec {serve} \\\n  --max-num-seqs $SEQS "$@"\n'
        },
    ),
    "container": Form(
        "/usr/local/bin/podman run --rm --name llm --network host -e A=b vllm/vllm-openai:test {args} --max-num-seqs 5",
        files={"/usr/local/bin/podman": PODMAN},
        engine="vllm",
    ),
}


@pytest.fixture(scope="module")
def host(swept: None) -> Iterator[TestHost]:
    """A host with the engine and no service yet."""
    made = TestHost.create()
    try:
        made.boot()
        put_engine(made)
        yield made
    finally:
        made.destroy()


def server_words(site: HostSite, unit: str) -> list[str]:
    """Return the command line of the server's process in a unit."""
    script = 'for p in $(cat /sys/fs/cgroup/systemd/*/"$1"/cgroup.procs /sys/fs/cgroup/*/"$1"/cgroup.procs); do '
    script += "tr '\\0' '\\n' <\"/proc/$p/cmdline\"; echo; done 2>/dev/null"
    text = site.host.exec(["sh", "-c", script, "words", unit], check=False).stdout
    return next(block.split("\n") for block in text.split("\n\n") if ARCHIVE in block and "serve" in block.split("\n"))


@pytest.mark.parametrize("name", FORMS)
async def test_a_change_reaches_the_process(host: TestHost, tmp_path: Path, name: str) -> None:
    form = FORMS[name]
    serve = serve_words(host)
    python, _, args = serve.split(" ", 2)
    texts = {
        "serve": serve, "python": python,
        "archive": ARCHIVE, "args": args.removeprefix("serve "),
    }  # fmt: skip
    for path, text in form.files.items():
        host.put(path, text.format(**texts), mode=0o755)
    site = HostSite(tmp_path, host, {"llm.service": unit_text(form.command.format(**texts), *form.lines)})
    try:
        before = site.fingerprint()
        async with Daemon(site, QUICK) as daemon:
            await asyncio.to_thread(imports, daemon, form.engine)
            ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
            changes = {"speculative-config": ngram, "max-num-seqs": 9}
            trial = await daemon.submit(changes, benchmark="quick", env={"ODD": 'a "b" $c %d'})
            await daemon.reached(trial, "benchmark")
            words = await asyncio.to_thread(server_words, site, f"specd-{trial}.service")
            await daemon.client.post(f"/v1/trials/{trial}/cancel", {"by": "a test"})
            shown = await daemon.settled(trial)
            notes = await noted(daemon)
        assert json.loads(words[words.index("--speculative-config") + 1]) == ngram
        assert words[words.index("--max-num-seqs") + 1] == "9"
        assert words.count("--max-num-seqs") == 1
        assert (shown["state"], shown["outcome"]) == ("restored", "cancelled"), shown["reason"]
        assert not [check for check in shown["checks"] if check["status"] == "failed"]
        assert not notes
        assert site.answers()
        assert site.fingerprint() == before
        assert site.traces() == []
    finally:
        site.remove()


def imports(daemon: Daemon, engine: str) -> None:
    """Prove that `import` reads the unit."""
    done = daemon.command("import", "site", "llm.service", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["engine"] == engine


async def test_a_script_that_cant_be_followed_says_where_the_change_belongs(host: TestHost, tmp_path: Path) -> None:
    host.put("/opt/llm/loop.sh", f"#!/bin/bash\nwhile true; do\n  {serve_words(host)}\ndone\n", mode=0o755)
    site = HostSite(tmp_path, host, {"llm.service": unit_text("/opt/llm/loop.sh")})
    try:
        async with Daemon(site, QUICK) as daemon:
            trial = await daemon.submit(benchmark="quick")
            shown = await daemon.settled(trial)
        assert shown["state"] == "withdrawn"
        assert "line 3 of the script /opt/llm/loop.sh" in shown["reason"]
    finally:
        site.remove()
