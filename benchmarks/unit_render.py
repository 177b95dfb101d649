"""What does reading and rendering a unit cost? `python -m benchmarks.unit_render [--flags N] [--rounds N]`.

A unit with N flags, half of them JSON, fed by environment files, is read on a real systemd host over SSH. Its answers
are kept and given again from memory, so that what is left is specd's own work: D-Bus answers taken apart, environment
worked out, words expanded, files digested, the candidate written. Printed is that beside what the host takes to answer,
and beside `json.loads` of the same answers. The target for specd's own part is 5 ms.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.sites import SiteMissing, core_share
from specd.errors import FileProblem
from specd.hosts import open_host
from specd.hosts.host import Completed
from specd.services.service import Candidate
from specd.services.systemd import SystemdManager
from specd.settings import HostSettings
from tests.testhost import TestHost, Unavailable

TARGET_MS = 5.0
UNIT = "bench-flags.service"


class Memory:
    """A host whose answers are kept, and given again without asking it."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self.name = host.name
        self.answers: dict[tuple[str, ...], Completed] = {}
        self._files: dict[str, bytes | FileProblem] = {}

    async def run(self, argv: list[str], **options: Any) -> Completed:
        key = tuple(argv)
        if key not in self.answers:
            self.answers[key] = await self._host.run(argv, **options)
        return self.answers[key]

    async def read(self, path: str, **options: Any) -> bytes:
        if path not in self._files:
            try:
                self._files[path] = await self._host.read(path, **options)
            except FileProblem as error:
                self._files[path] = error
        content = self._files[path]
        if isinstance(content, FileProblem):
            raise content
        return content


def put_unit(host: TestHost, flags: int) -> None:
    """Write a unit with so many flags, in the ways in which people write them."""
    words = ["/bin/sleep", "1000", "${MODEL}", "$EXTRA"]
    for number in range(flags // 2):
        document = json.dumps({"method": f"m{number}", "n": number, "path": "/models/a b"})
        words += [f"--flag-{number}=${{PORT}}", f"--json-{number}", f"'{document}'"]
    host.put("/etc/bench-flags.env", "MODEL=/models/big\nPORT=8000\nEXTRA=--a 1 --b '{\"c\": 2}'\n")
    text = "[Service]\nEnvironment=PORT=1 A=b\nEnvironmentFile=/etc/bench-flags.env\nExecStart=" + " \\\n  ".join(words)
    host.write_unit(UNIT, text + "\n")
    host.write_unit(
        f"{UNIT}.d/10-more.conf", "[Service]\nUser=operator\nRuntimeDirectory=bench\nLimitMEMLOCK=infinity\n"
    )


async def once(manager: SystemdManager) -> Candidate:
    """Read the unit and render a candidate with one more flag."""
    base = await manager.facts(UNIT)
    change = '{"method": "ngram", "num_speculative_tokens": 5}'
    return manager.render(
        base,
        trial="bench",
        installation="i",
        argv=(*base.argv, "--speculative-config", change),
        env={"NEW": "1"},
        stop_timeout_s=15,
    )


async def _times(rounds: int, work: Callable[[], Any]) -> list[float]:
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        await work()
        found.append((time.perf_counter() - started) * 1e3)
    return found


async def measure(testhost: TestHost, flags: int, rounds: int) -> bool:
    """Print the times; returns whether specd's own are within the target."""
    put_unit(testhost, flags)
    settings = HostSettings(
        name=testhost.name,
        ssh=testhost.alias,
        ssh_config=str(testhost.ssh_config),
        known_hosts=str(testhost.known_hosts),
        become="none",
    )
    host = open_host(settings, Path("/tmp"))
    try:
        real = SystemdManager(host, scope="system")
        candidate = await once(real)
        asked = await _times(20, lambda: once(real))
        memory = Memory(host)
        kept = SystemdManager(memory, scope="system")  # type: ignore[arg-type]
        assert (await once(kept)).content == candidate.content
        own = await _times(rounds, lambda: once(kept))
    finally:
        await host.close()
    answers = [done.stdout for done in memory.answers.values() if done.stdout.startswith(b"{")]

    async def bare() -> None:
        for answer in answers:
            for line in answer.splitlines():
                json.loads(line)

    parsing = statistics.median(await _times(rounds, bare))
    middle, most = statistics.median(own), sorted(own)[int(len(own) * 0.99)]
    print(f"{flags} flags, {len(candidate.argv)} words, {len(candidate.content)} bytes; {rounds} rounds")
    print(
        f"  specd's own work: median {middle:.2f} ms, p99 {most:.2f} ms: {middle / TARGET_MS:.0%} of {TARGET_MS:g} ms"
    )
    print(f"  json.loads of the same answers: {parsing:.2f} ms; specd's own is {middle / parsing:.1f} times that")
    print(f"  with a host that answers over SSH: median {statistics.median(asked):.0f} ms")
    print(f"  a busy loop got {core_share():.0%} of a core")
    return middle < TARGET_MS


def _main(flags: int, rounds: int) -> bool:
    if os.getuid() != 0:
        raise SiteMissing("a systemd host behind sshd needs root")
    try:
        host = TestHost.create()
    except Unavailable as why:
        raise SiteMissing(str(why)) from why
    try:
        host.boot()
        return asyncio.run(measure(host, flags, rounds))
    finally:
        host.destroy()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flags", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=500)
    options = parser.parse_args()
    try:
        sys.exit(not _main(options.flags, options.rounds))
    except SiteMissing as why:
        print(f"skipped, {why}")
