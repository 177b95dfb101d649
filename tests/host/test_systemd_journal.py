"""The journal of one invocation under a real journald: each record once, in order, whole."""

import asyncio
from collections.abc import Iterator

import pytest

from specd.services.service import JournalRecord
from specd.services.systemd import SystemdManager
from tests.host.systemd_rig import closed_hosts, manager_on, until  # noqa: F401
from tests.testhost import TestHost

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("closed_hosts")]

WRITER = "/usr/local/bin/journal-writer"


@pytest.fixture
def host(testhost: TestHost) -> Iterator[TestHost]:
    """The shared host, cleared of this module's units afterwards."""
    yield testhost
    testhost.exec(["sh", "-c", 'systemctl kill --signal=KILL "journal-*"; rm -f /etc/systemd/system/journal-*'])
    testhost.systemctl("daemon-reload")
    testhost.systemctl("reset-failed", check=False)


async def run(host: TestHost, name: str, program: str) -> tuple[SystemdManager, str, str]:
    """Start a unit that runs a Python program; returns its manager, name and invocation."""
    unit = f"journal-{name}.service"
    host.put(f"{WRITER}-{name}", f"#!/usr/bin/python3\nimport os, sys, time\n{program}\n", mode=0o755)
    host.write_unit(unit, f"[Service]\nExecStart={WRITER}-{name}\nLogRateLimitIntervalSec=0\n")
    manager = manager_on(host)
    await manager.start(unit)

    async def invoked() -> bool:
        return bool((await manager.status(unit)).invocation)

    await until(invoked, what="an invocation")
    return manager, unit, (await manager.status(unit)).invocation


async def follow_until(
    manager: SystemdManager, unit: str, invocation: str, last: str, *, after: str = ""
) -> list[JournalRecord]:
    """Return the records up to the one whose text ends with `last`."""
    found: list[JournalRecord] = []
    async with asyncio.timeout(20), manager.journal(unit, invocation, after=after) as records:
        async for record in records:
            found.append(record)
            if record.text.endswith(last):
                break
    return found


async def test_a_bar_of_carriage_returns_is_one_record_with_all_its_redraws(host: TestHost) -> None:
    program = """\
for step in range(11):
    sys.stderr.write(f"\\rLoading shards: {step * 10:3}% {'#' * step}")
    sys.stderr.flush()
    time.sleep(0.05)
sys.stderr.write("\\n")
print("done", flush=True)
time.sleep(1000)"""
    manager, unit, invocation = await run(host, "bar", program)
    records = await follow_until(manager, unit, invocation, "done")
    texts = [record.text for record in records if not record.from_manager]
    assert texts == ["\r" + "\r".join(f"Loading shards: {n * 10:3}% {'#' * n}" for n in range(11)), "done"]
    assert {record.pid for record in records if not record.from_manager} == {(await manager.status(unit)).main_pid}
    assert any(record.from_manager and "Started" in record.text for record in records)


async def test_the_parts_of_a_long_bar_show_before_its_end(host: TestHost) -> None:
    program = """\
for step in range(3000):
    sys.stderr.write(f"\\rshard {step:5} of 99999 and some more words")
    sys.stderr.flush()
time.sleep(1000)"""
    manager, unit, invocation = await run(host, "longbar", program)
    async with asyncio.timeout(20), manager.journal(unit, invocation) as records:
        async for record in records:
            if record.text.startswith("\rshard"):
                break
    # No newline was ever written, and yet progress is here, up to a whole redraw.
    assert record.text.endswith("of 99999 and some more words")
    assert record.text.startswith("\rshard     0")


async def test_long_lines_bytes_and_escapes_arrive_whole(host: TestHost) -> None:
    program = """\
out = sys.stdout.buffer
for line in (b"x" * 150000, b"bin \\xff end", b"\\x1b[31mred\\x1b[0m", "é🙂".encode()):
    out.write(line + b"\\n")
for line in (b"tab\\tbed", b"y" * 49153, b"last"):
    out.write(line + b"\\n")
out.flush()
time.sleep(1000)"""
    manager, unit, invocation = await run(host, "long", program)
    followed = [r for r in await follow_until(manager, unit, invocation, "last") if not r.from_manager]
    expected = ["x" * 150000, "bin \ufffd end", "\x1b[31mred\x1b[0m", "é🙂", "tab\tbed", "y" * 49153, "last"]
    assert [record.text for record in followed] == expected
    history = [record for record in await manager.history(unit, invocation) if not record.from_manager]
    assert history == followed


async def test_each_record_once_and_in_order_over_a_resumed_follow(host: TestHost) -> None:
    program = "for n in range(4000): print('line', n, flush=n % 50 == 0)\nprint('last', flush=True)\ntime.sleep(1000)"
    manager, unit, invocation = await run(host, "many", program)
    first = await follow_until(manager, unit, invocation, "line 1234")
    rest = await follow_until(manager, unit, invocation, "last", after=first[-1].cursor)
    texts = [record.text for record in [*first, *rest] if not record.from_manager]
    assert texts == [f"line {n}" for n in range(4000)] + ["last"]
    times = [record.at for record in [*first, *rest]]
    assert times == sorted(times)
    newest = await manager.history(unit, invocation, last=10)
    assert [record.text for record in newest][-3:] == ["line 3998", "line 3999", "last"]
    assert len(newest) <= 10


async def test_invocations_are_told_apart_and_the_manager_says_how_one_ended(host: TestHost) -> None:
    manager, unit, first = await run(host, "twice", "print('run', os.getpid(), flush=True)\nsys.exit(5)")

    async def failed() -> bool:
        return (await manager.status(unit)).active == "failed"

    await until(failed, what="the first end")
    await manager.start(unit)

    async def again() -> bool:
        status = await manager.status(unit)
        return status.invocation != first and status.active == "failed"

    await until(again, what="the second end")
    second = (await manager.status(unit)).invocation

    async def written() -> bool:
        return "Failed with result" in (await manager.history(unit, second))[-1].text

    await until(written, what="the last words")
    for invocation in (first, second):
        records = await manager.history(unit, invocation)
        assert len([record for record in records if record.text.startswith("run ")]) == 1
        assert any(r.from_manager and "code=exited, status=5" in r.text for r in records)
    assert await manager.history(unit, "0" * 32) == []
