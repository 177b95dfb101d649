"""The real daemon as a process of its own, driven through its API and its command line."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specd.cli.client import ApiClient, StreamLost
from specd.errors import DaemonUnreachable
from tests.rig.forks import Fork, Forks
from tests.rig.site import Site, config_text

__all__ = ["Daemon"]

SETTLED = {"kept", "restored", "withdrawn", "rollback-failed"}


class Daemon:
    """`specd start` beside a site; an async context manager."""

    def __init__(self, site: Site, extra_config: str = "", *, environment: Mapping[str, str] | None = None) -> None:
        self.site = site
        self.environment = dict(environment or {})
        self.forks: Forks | None = None
        self.program: tuple[str, ...] = ("-m", "specd")
        self.config = site.directory / "config.toml"
        self.config.write_text(config_text(site, extra_config))
        self.log = site.directory / "daemon.log"
        self.socket = site.directory / "run" / "s"
        self._process: subprocess.Popen[bytes] | Fork | None = None
        self.client = ApiClient(str(self.socket))
        self._seen: dict[str, int] = {}

    async def __aenter__(self) -> "Daemon":
        await self.client.__aenter__()
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.client.__aexit__(None, None, None)
        self.end(signal.SIGTERM)

    def spawn(self) -> None:
        """Start the process, from a loaded one where there is one."""
        if self.forks is not None:
            self._process = self.forks.fork(self.environment)
            return
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self.program, "--config", str(self.config), "start"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.environment},
            )

    @property
    def is_running(self) -> bool:
        """True until the process has ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def ended_by_kill(self) -> bool:
        """True when the process has died of SIGKILL that nobody here sent."""
        return self._process is not None and self._process.poll() == -signal.SIGKILL

    async def start(self) -> None:
        """Start the process and wait until it answers."""
        self.spawn()
        async with asyncio.timeout(20):
            while True:
                try:
                    await self.client.health()
                    return
                except DaemonUnreachable:
                    assert self.is_running, self.log_tail()
                    await asyncio.sleep(0.02)

    def end(self, number: int) -> int | None:
        """Signal the process and wait for its end; returns its exit status."""
        if self._process is None or self._process.poll() is not None:
            return None
        os.kill(self._process.pid, number)
        # One that stands still hears nothing else.
        os.kill(self._process.pid, signal.SIGCONT)
        return self._process.wait(timeout=20)

    def signal(self, number: int) -> None:
        """Signal the process."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9: no handler runs."""
        self.end(signal.SIGKILL)
        self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was killed"
        return self._process.pid

    def log_tail(self) -> str:
        return self.log.read_text()[-4000:]

    async def submit(self, flags: dict[str, Any] | None = None, **spec: Any) -> str:
        """Queue one trial and return its id; flags default to n-gram speculation."""
        ngram = {"speculative-config": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}}
        text = trial_toml(ngram if flags is None else flags, **spec)
        answer = await self.client.post("/v1/trials", {"file": "t.toml", "text": text})
        return str(answer["trials"][0]["id"])

    async def reached(self, trial: str, *states: str, within_s: float = 60) -> dict[str, Any]:
        """Wait for a move into one of the states that was not waited for yet, through the stream; returns that
        event."""
        async with asyncio.timeout(within_s):
            while True:
                # A daemon whose health changes lets its listeners come again.
                with contextlib.suppress(StreamLost):
                    async with self.client.events(self._seen.get(trial, 0), trial) as events:
                        async for event in events:
                            self._seen[trial] = event["seq"]
                            if event["type"] == "TrialMoved" and event["target"] in states:
                                return dict(event)
                            if event["type"] == "TrialMoved" and event["target"] in SETTLED:
                                raise AssertionError(f"settled in {event['target']} before {states}: {event['cause']}")

    async def settled(self, trial: str, within_s: float = 90) -> dict[str, Any]:
        """Wait until the trial has settled or is parked; returns it whole."""
        await self.reached(trial, *SETTLED, within_s=within_s)
        return dict(await self.client.trial(trial))

    async def until_health(self, state: str, within_s: float = 20) -> dict[str, Any]:
        """Wait until the daemon says this of itself; returns all it says."""
        async with asyncio.timeout(within_s):
            while (health := await self.client.health())["state"] != state:
                await asyncio.sleep(0.05)
        return dict(health)

    async def until_answer(self, trial: str, within_s: float = 30) -> dict[str, Any]:
        """Return a trial whole as soon as the daemon answers."""
        async with asyncio.timeout(within_s):
            while True:
                try:
                    return dict(await self.client.trial(trial))
                except DaemonUnreachable:
                    await asyncio.sleep(0.05)

    async def until_settled(self, trial: str, within_s: float = 90) -> dict[str, Any]:
        """Wait, by asking, until the trial has settled or is parked; the daemon may be away meanwhile."""
        async with asyncio.timeout(within_s):
            while (shown := await self.until_answer(trial))["state"] not in SETTLED:
                await asyncio.sleep(0.1)
        return shown

    async def until_state(self, trial: str, state: str, within_s: float = 90) -> dict[str, Any]:
        """Wait, by asking, until the trial is in this state; for when events may be missing."""
        async with asyncio.timeout(within_s):
            while (shown := await self.client.trial(trial))["state"] != state:
                await asyncio.sleep(0.1)
        return dict(shown)

    async def until_logged(self, words: str, within_s: float = 30, *, before: int | None = None) -> None:
        """Wait until the daemon's log holds these words once more than now, or than `before`."""
        before = self.log.read_text().count(words) if before is None else before
        async with asyncio.timeout(within_s):
            while self.log.read_text().count(words) <= before:
                await asyncio.sleep(0.05)

    def command(self, *words: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run `specd WORDS` against this daemon."""
        argv = [sys.executable, "-m", "specd", "--config", str(self.config), *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)


def trial_toml(flags: dict[str, Any], *, env: dict[str, str] | None = None, name: str = "t", **spec: Any) -> str:
    """Return a trial file's text with one trial."""
    lines = ["[[trial]]", f"name = {json.dumps(name)}", 'service = "llm"']
    lines += [f"{key} = {_toml(value)}" for key, value in spec.items()]
    lines += ["[trial.flags]", *(f"{json.dumps(key)} = {_toml(value)}" for key, value in flags.items())]
    lines += ["[trial.env]", *(f"{key} = {json.dumps(value)}" for key, value in (env or {}).items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return '"null"' if value is None else json.dumps(value)


def write_trial(path: Path, flags: dict[str, Any], **spec: Any) -> Path:
    """Write a trial file with one trial and return its path."""
    path.write_text(trial_toml(flags, **spec))
    return path
