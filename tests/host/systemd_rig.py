"""What the tests of the systemd manager share: a host to drive, and programs that show what systemd gave them."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from specd.hosts import Host, open_host
from specd.services.systemd import SystemdManager
from specd.settings import HostSettings
from tests.testhost import TestHost

DUMP = "/usr/local/bin/dump"
# Writes its own command line and environment, as the kernel has them, to the directory named by its unit.
DUMP_SCRIPT = """\
#!/bin/sh
to=/tmp/dump/$(sed -n 's|^0::.*/||p' /proc/self/cgroup)
mkdir -p /tmp/dump
cat "/proc/$$/environ" >"$to.environ"
cat "/proc/$$/cmdline" >"$to.cmdline.new" && mv "$to.cmdline.new" "$to.cmdline"
sleep 1000 & wait
"""
NASTY = [
    *"ab7'\"\\$%;#{}[]():,=&|<>*?~!@^+-_/. \t\n\r\x01\x1b\x7f",
    *"é日🙂\u0085\u2028\ufeff\u200b",
    "$HOME", "${HOME}", "${X:-1}", "%n", "%%", "%Z", "\\n", "\\x41", "\\\\", "//",
    "--flag=", '{"a": "b\\"c"}', "; ", " #",
]  # fmt: skip


_opened: list[Host] = []


@pytest.fixture
async def closed_hosts() -> AsyncIterator[None]:
    """Connections that a test opened are closed at its end."""
    yield
    while _opened:
        await _opened.pop().close()


def connect(host: TestHost, user: str = "root") -> Host:
    """Return the test host as the product sees it, over SSH; `operator` uses sudo. Needs the fixture closed_hosts."""
    ordinary = user != "root"
    settings = HostSettings(
        name=host.name,
        ssh=host.operator_alias if ordinary else host.alias,
        ssh_config=str(host.ssh_config),
        known_hosts=str(host.known_hosts),
        become="sudo" if ordinary else "none",
    )
    _opened.append(open_host(settings, Path("/tmp")))
    return _opened[-1]


def manager_on(host: TestHost, user: str = "root", scope: str = "system") -> SystemdManager:
    """Return a manager of a test host's units."""
    return SystemdManager(connect(host, user), scope=scope)


def put_dump(host: TestHost) -> None:
    """Install the program that shows its command line and environment."""
    host.put(DUMP, DUMP_SCRIPT, mode=0o755)


async def dumped(host: TestHost, unit: str) -> tuple[list[str], dict[str, str]]:
    """Return the words and the environment a unit's dump program was started with, without its interpreter."""
    path = f"/tmp/dump/{unit}.cmdline"
    await until(lambda: asyncio.to_thread(host.exists, path), what=f"{unit} to run")
    return read_dump(host, unit)


def read_dump(host: TestHost, unit: str) -> tuple[list[str], dict[str, str]]:
    words = host.get(f"/tmp/dump/{unit}.cmdline").decode().split("\0")[:-1]
    entries = host.get(f"/tmp/dump/{unit}.environ").decode().split("\0")[:-1]
    # The kernel puts the interpreter in front and the script's path in place of argv[0].
    return words[1:], dict(entry.split("=", 1) for entry in entries)


def random_word(rng: random.Random, longest: int = 12) -> str:
    """Return a word of any characters that a command line can hold."""
    return "".join(rng.choice(NASTY) for _ in range(rng.randrange(longest)))


async def until(true: Callable[[], Awaitable[bool]], *, within_s: float = 10, what: str) -> float:
    """Wait until something is so and return the seconds it took; fails after `within_s`."""
    started = time.monotonic()
    while not await true():
        assert time.monotonic() - started < within_s, f"waited {within_s} s for {what}"
        await asyncio.sleep(0.03)
    return time.monotonic() - started
