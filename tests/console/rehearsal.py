"""A real daemon on this machine with a rehearsal service under the embedded supervisor, for a console to look at."""

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from specd.cli.client import ApiClient
from specd.errors import DaemonUnreachable

ROOT = Path(__file__).parents[2]
_UP_S = 60.0
_STAGES = {
    "import": 0.1,
    "config": 0.1,
    "engine": 0.1,
    "weights": 4.0,
    "compile": 1.0,
    "capture": 0.5,
    "startup": 0.1,
}
_CONFIG = """\
[daemon]
state_dir = "{directory}/state"
socket = "{directory}/run/d.sock"

[hosts.here]
manager = "embedded"
directory = "{directory}/units"

[services.kimi]
host = "here"
unit = "llm.service"
benchmark = "short"

[benchmarks.short]
levels = [1]
repeats = 1
requests = 2
prompts = "quick"
max_tokens = 16
warmup_requests = 1
"""
TRIAL = """\
[[trial]]
name = "ngram-5-4"
service = "kimi"
[trial.flags]
speculative-config = { method = "ngram", num_speculative_tokens = 5, prompt_lookup_max = 4 }
"""


@contextlib.asynccontextmanager
async def rehearsal_daemon(directory: Path) -> AsyncIterator[ApiClient]:
    """Run supervisor and daemon below a directory until the context ends; the baseline serves when it begins."""
    _lay_out(directory)
    end, lifeline = os.pipe()
    supervise = [sys.executable, "-m", "specd.supervisor", str(directory / "units"), "--lifeline", str(end)]
    supervisor = await _spawn(supervise, directory / "supervisor.log", end)
    os.close(end)
    daemon = await _spawn(
        [sys.executable, "-m", "specd", "--config", str(directory / "config.toml"), "start"], directory / "daemon.log"
    )
    try:
        async with ApiClient(str(directory / "run/d.sock")) as client:
            await _until_serving(client, daemon, directory)
            yield client
    finally:
        if daemon.returncode is None:
            daemon.terminate()
        await daemon.wait()
        os.close(lifeline)
        await supervisor.wait()


def _lay_out(directory: Path) -> None:
    for name in ("units", "units/units"):
        (directory / name).mkdir(mode=0o700)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = {"model_must_exist": False, "stages": _STAGES, "shards": 20, "bar": "cr"}
    unit = {
        "description": "a model server that is rehearsed",
        "argv": [sys.executable, "-m", "specd.rehearsal", "serve", "a-model", "--port", str(port)],
        "environment": {"SPECD_REHEARSAL": json.dumps(script), "PYTHONPATH": str(ROOT)},
        "stop_timeout_s": 5,
        "enabled": True,
    }
    (directory / "units/units/llm.service.json").write_text(json.dumps(unit))
    (directory / "config.toml").write_text(_CONFIG.format(directory=directory))


async def _spawn(argv: list[str], log: Path, *pass_fds: int) -> asyncio.subprocess.Process:
    with log.open("wb") as out:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=ROOT,
            pass_fds=pass_fds,
            start_new_session=True,
        )


async def _until_serving(client: ApiClient, daemon: asyncio.subprocess.Process, directory: Path) -> None:
    async with asyncio.timeout(_UP_S):
        while daemon.returncode is None:
            with contextlib.suppress(DaemonUnreachable):
                checked = await client.post("/v1/check")
                found = {c["name"]: c["status"] for service in checked["services"] for c in service["checks"]}
                if found.get("baseline.health") == "passed":
                    return
            await asyncio.sleep(0.1)
    raise AssertionError(f"the daemon ended: {(directory / 'daemon.log').read_text()[-3000:]}")
