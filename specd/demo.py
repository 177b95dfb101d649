"""`specd demo`: one whole trial on this machine, with the ordinary daemon, supervisor, store, API and states.

The demo only lays out a directory, starts the two programs a machine without systemd would run, and is then a client
like any other. The supervisor lives on a lifeline: when this process ends in whatever way, all that was started ends.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from specd.cli.client import ApiClient
from specd.cli.show import story, tell
from specd.cli.terminal import Terminal
from specd.cli.text import table
from specd.cli.watch import ended_as_asked, follow
from specd.cli.watch_view import LineView, LiveView
from specd.errors import DaemonUnreachable, SpecdError

__all__ = ["main", "running_daemon"]

_MODEL = "demo-moe"
_STOPPED = 130
_SOCKET = "run/specd.sock"
_SOCKET_BYTES = 107
_PR_SET_PDEATHSIG = 1
# One start takes about six seconds here: half an hour on the machine whose story this is.
_SCRIPT = {
    "model_must_exist": False,
    "stages": {
        "import": 0.3,
        "config": 0.2,
        "engine": 0.3,
        "weights": 2.4,
        "compile": 1.4,
        "capture": 1.2,
        "startup": 0.2,
    },
    "shards": 16,
    "piecewise_captures": 11,
    "full_captures": 7,
    "bar": "cr",
}
_CONFIG = """\
[daemon]
state_dir = {state}
socket = {socket}

[hosts.here]
manager = "embedded"
directory = {units}

[services.demo]
host = "here"
unit = "llm.service"
benchmark = "demo"

[services.demo.policy]
metric = "tpot"
drift_check = false

[benchmarks.demo]
levels = [1, 4]
repeats = 1
requests = 10
prompts = "quick"
max_tokens = 48
warmup_requests = 2
"""
_TRIALS = """\
[[trial]]
name = "ngram-5-4"
service = "demo"
note = "does n-gram speculation pay on this mixture of experts?"

[trial.flags]
speculative-config = { method = "ngram", num_speculative_tokens = 5, prompt_lookup_max = 4 }
"""


def main(as_json: bool) -> int:
    """Run the demo; returns 0 after a verdict and with the baseline restored, 130 when it was stopped."""
    return asyncio.run(_until_stopped(as_json))


async def _until_stopped(as_json: bool) -> int:
    """Run the demo and remove all of it, also when a signal ends it; a second signal changes nothing any more."""
    terminal = Terminal.of(sys.stderr if as_json else sys.stdout)
    directory = _new_directory()
    demo = asyncio.create_task(_demo(directory, terminal, as_json))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, _stop, demo)
    try:
        await asyncio.wait({demo})
    finally:
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
    if demo.cancelled():
        _say("specd: the demo was stopped; nothing of it is left running")
        return _STOPPED
    if demo.cancelling() and isinstance(demo.exception(), OSError):
        # The terminal went away with the signal.
        return _STOPPED
    return demo.result()


def _new_directory() -> Path:
    """Make a directory of our own, in a shorter place than TMPDIR if the socket's path would be too long there."""
    where = tempfile.gettempdir()
    if len(os.fsencode(Path(where) / "specd-demo-12345678" / _SOCKET)) > _SOCKET_BYTES:
        where = "/tmp"
    return Path(tempfile.mkdtemp(prefix="specd-demo-", dir=where))


def _stop(demo: asyncio.Task[int]) -> None:
    if not demo.cancelling() and not demo.done():
        demo.cancel()
        _say("\nspecd: ending what the demo has started")


def _say(words: str) -> None:
    # A terminal that was closed can't be told.
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{words}\n")
        sys.stderr.flush()


async def _demo(directory: Path, terminal: Terminal, as_json: bool) -> int:
    _lay_out(directory)
    for line in _OPENING:
        terminal.paragraph(line, 0)
    if terminal.live:
        terminal.draw("  the model server and the daemon are starting")
    async with _supervisor(directory), running_daemon(directory, "demo") as client:
        queued = await client.post("/v1/trials", {"file": "trials.toml", "text": _TRIALS})
        view = LiveView(terminal) if terminal.live else LineView(terminal)
        trial = await follow(client, queued["trials"][0]["id"], view)
    if as_json:
        sys.stdout.write(json.dumps(trial, indent=2) + "\n")
    else:
        terminal.line()
        tell([*story(trial, terminal, goes_on=False), "", *_next()], terminal)
    return 0 if ended_as_asked(trial) else 1


_OPENING = (
    "A model server runs as a service on this machine. It is the rehearsal engine:",
    "it starts like vLLM and has the speed of a mixture of experts. Would n-gram",
    "speculation make it faster? One trial answers that: a reload, a measurement,",
    "and the baseline brought back. It takes about 50 s.",
    "",
)


def _next() -> list[str]:
    name = own_name()
    rows = [
        (f"{name} import HOST UNIT", "prints the config for a service of yours"),
        (f"{name} plan FILE", "what a trial would change; touches nothing"),
        (f"{name} rehearse FILE", "the trial on your host, without its GPUs"),
    ]
    if Path("README.md").exists():
        rows.append(("README.md", "the same walk on a real host"))
    return ["Where to look next", *table(rows, indent="  ")]


def own_name() -> str:
    """Return what the user can type to run this program again: `specd` where the PATH has it, else as it was called."""
    called = Path(sys.argv[0])
    found = shutil.which("specd")
    if found and called.exists() and Path(found).samefile(called):
        return "specd"
    if called.name != "specd":
        return "specd"
    return os.path.relpath(called) if called.is_relative_to(Path.cwd()) else str(called)


def _lay_out(directory: Path) -> None:
    for name in ("units", "units/units"):
        (directory / name).mkdir(mode=0o700)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    unit = {
        "description": "the demo's model server",
        "argv": [sys.executable, "-m", "specd.rehearsal", "serve", _MODEL, "--port", str(port), "--max-num-seqs", "16"],
        "environment": {"SPECD_REHEARSAL": json.dumps(_SCRIPT)},
        "stop_timeout_s": 10,
        "enabled": True,
    }
    (directory / "units/units/llm.service.json").write_text(json.dumps(unit, indent=1))
    places = {"state": "state", "socket": _SOCKET, "units": "units"}
    # A JSON string is a TOML string, whatever TMPDIR has in its name.
    quoted = {key: json.dumps(str(directory / place), ensure_ascii=False) for key, place in places.items()}
    (directory / "config.toml").write_text(_CONFIG.format(**quoted), encoding="utf-8")


def _die_with_parent() -> None:
    """In the child: end when the demo is killed in a way that lets it say nothing."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.asynccontextmanager
async def _supervisor(directory: Path) -> AsyncIterator[None]:
    """Run the supervisor, which starts the enabled baseline; closing its lifeline ends it and all that it started."""
    end, lifeline = os.pipe()
    log = await asyncio.to_thread((directory / "supervisor.log").open, "wb")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specd.supervisor", str(directory / "units"), "--lifeline", str(end)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(end,),
        start_new_session=True,
    )
    os.close(end)
    try:
        yield
    finally:
        os.close(lifeline)
        await asyncio.shield(process.wait())
        log.close()


@contextlib.asynccontextmanager
async def running_daemon(directory: Path, service: str, *, within_s: float = 30.0) -> AsyncIterator[ApiClient]:
    """Run `specd start` with `directory`/config.toml and give a client once the service's baseline answers.

    Raises SpecdError when the daemon ends by itself or the baseline is not up in time.
    """
    log = await asyncio.to_thread((directory / "daemon.log").open, "ab")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specd", "--config", str(directory / "config.toml"), "start"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )
    try:
        async with ApiClient(str(directory / _SOCKET)) as client:
            await _until_ready(client, process, directory, service, within_s)
            yield client
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.shield(process.wait())
        log.close()


async def _until_ready(
    client: ApiClient, process: asyncio.subprocess.Process, directory: Path, service: str, within_s: float
) -> None:
    """Wait for the daemon and for a serving baseline, as an operator would before a trial."""
    checked: dict[str, Any] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while process.returncode is None:
                with contextlib.suppress(DaemonUnreachable):
                    checked = await client.post("/v1/check")
                    if _serves(checked, service):
                        return
                await asyncio.sleep(0.1)
    if process.returncode is None:
        raise SpecdError(f"{service} does not serve {within_s:.0f} s after its start: {json.dumps(checked)}")
    words = await asyncio.to_thread((directory / "daemon.log").read_text)
    raise SpecdError(f"the daemon ended by itself: {words[-2000:]}")


def _serves(checked: dict[str, Any], name: str) -> bool:
    checks = [check for service in checked["services"] if service["name"] == name for check in service["checks"]]
    return any(check["name"] == "baseline.health" and check["status"] == "passed" for check in checks)
