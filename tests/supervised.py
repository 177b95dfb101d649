"""A real supervisor with real units for tests, and the proof afterwards that no process of theirs is left."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from specd.errors import HostUnreachable
from specd.services.embedded import EmbeddedManager
from specd.services.service import JournalRecord, UnitStatus

ROOT = Path(__file__).parents[1]
PATIENCE_S = 20.0


def python(text: str, *arguments: str) -> list[str]:
    """Return the command line of a small Python program whose output is not buffered."""
    return [sys.executable, "-u", "-c", text, *arguments]


SLEEPER = python("import time\nprint('up')\nwhile True: time.sleep(60)")
DEAF = python(
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up')\nwhile True: time.sleep(60)"
)


def is_alive(pid: int) -> bool:
    """True for a process that runs, False for one that is gone or only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Rig:
    """A directory with units and, once `boot` was called, the supervisor that runs them in the foreground."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "supervised"
        self.units = self.directory / "units"
        self.units.mkdir(parents=True)
        self.mark = uuid.uuid4().hex
        self.process: subprocess.Popen[bytes] | None = None
        self.manager = EmbeddedManager(self.directory, spawns=False)

    def __enter__(self) -> "Rig":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()
        with suppress(FileNotFoundError, ValueError):
            # One that was started on demand is not our child.
            pid = int((self.directory / "supervisor.pid").read_text())
            if is_alive(pid) and str(self.directory).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGTERM)
                self.wait_gone(pid)
        deadline = time.monotonic() + PATIENCE_S
        while (left := self.marked()) and time.monotonic() < deadline:
            time.sleep(0.02)  # a killed process is not gone at once
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        if kind is None:
            assert not left, f"processes left behind: {left}"

    def marked(self) -> list[int]:
        """List the living processes that units of this rig started, keepers and what they are about to start too."""
        supervisor = self.process.pid if self.process is not None else 0
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if not entry.name.isdigit() or int(entry.name) == supervisor:
                    continue
                argv = (entry / "cmdline").read_bytes().split(b"\0")
                is_keeper = os.fsencode(self.directory) in argv and b"specd.supervisor" in argv
                if is_keeper or self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return [pid for pid in found if is_alive(pid)]

    def write(self, name: str, argv: list[str], **keys: Any) -> None:
        """Write a unit file; the environment gets the rig's mark."""
        keys = {"stop_timeout_s": 5, **keys}
        keys["environment"] = {"RIG_MARK": self.mark, **keys.get("environment", {})}
        (self.units / f"{name}.service.json").write_text(json.dumps({"argv": argv, **keys}))

    def boot(self, *arguments: str, pass_fds: tuple[int, ...] = (), prefix: tuple[str, ...] = ()) -> int:
        """Start the supervisor, wait until it serves, and return its pid."""
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "specd.supervisor", str(self.directory), *arguments],
            stderr=subprocess.PIPE,
            cwd=ROOT,
            pass_fds=pass_fds,
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        while line and b"serves" not in line:
            line = self.process.stderr.readline()
        assert b"serves" in line, "the supervisor did not come up"
        return self.process.pid

    def end(self) -> str:
        """End the supervisor in good order and return the rest of what it said."""
        if self.process is None:
            return ""
        process, self.process = self.process, None
        if process.poll() is None:
            process.terminate()
        _, said = process.communicate(timeout=PATIENCE_S)
        return said.decode()

    async def back(self) -> None:
        """Wait until a supervisor answers that somebody else has started."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await self.manager.own_units()
                    return
                except HostUnreachable:
                    await asyncio.sleep(0.05)

    async def end_any(self) -> None:
        """End a supervisor that is not our child, and wait until it is gone."""
        pid = int((self.directory / "supervisor.pid").read_text())
        os.kill(pid, signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            while is_alive(pid):
                await asyncio.sleep(0.05)

    def crash(self) -> None:
        """Kill the supervisor with SIGKILL."""
        assert self.process is not None
        process, self.process = self.process, None
        process.kill()
        process.communicate(timeout=PATIENCE_S)

    def wait_gone(self, *pids: int, within_s: float = PATIENCE_S) -> None:
        """Wait until processes are gone; fails when one is not in time."""
        deadline = time.monotonic() + within_s
        while any(is_alive(pid) for pid in pids):
            assert time.monotonic() < deadline, f"still alive: {[pid for pid in pids if is_alive(pid)]}"
            time.sleep(0.01)

    async def until(self, unit: str, test: Callable[[UnitStatus], bool], within_s: float = PATIENCE_S) -> UnitStatus:
        """Wait until a unit's status passes a test and return that status."""
        deadline = time.monotonic() + within_s
        while not test(status := await self.manager.status(unit)):
            assert time.monotonic() < deadline, f"still {status}"
            await asyncio.sleep(0.01)
        return status

    async def down(self, unit: str) -> UnitStatus:
        """Wait until a unit is down."""
        return await self.until(unit, lambda status: status.is_down)

    async def run(self, unit: str) -> UnitStatus:
        """Start a unit that ends by itself and wait for its end."""
        await self.manager.start(unit)
        return await self.down(unit)

    async def printed(self, unit: str, text: str, invocation: str = "") -> JournalRecord:
        """Wait until the current invocation has printed a line that holds `text`."""
        invocation = invocation or (await self.manager.status(unit)).invocation
        async with asyncio.timeout(PATIENCE_S), self.manager.journal(unit, invocation) as records:
            async for record in records:
                if text in record.text and not record.from_manager:
                    return record
        raise AssertionError("a journal that is followed never ends")

    async def texts(self, unit: str, invocation: str = "", last: int = 100_000) -> list[str]:
        """Return what an invocation's processes printed so far."""
        records = await self.manager.history(unit, invocation, last=last)
        return [record.text for record in records if not record.from_manager]
