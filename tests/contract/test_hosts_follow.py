"""Following a command's lines, on this machine and over SSH."""

import asyncio
import time
from pathlib import Path

import pytest

from specd.errors import CommandFailed
from specd.hosts import Host
from tests.contract.test_hosts_commands import a_long_sleep, host, is_running, until

__all__ = ["host"]


async def collect(host: Host, *argv: str) -> list[bytes]:
    async with host.follow(list(argv)) as lines:
        return [line async for line in lines]


async def test_lines_until_the_end(host: Host) -> None:
    assert await collect(host, "printf", "a\\n\\nb b\\r\\nlast") == [b"a", b"", b"b b\r", b"last"]
    assert await collect(host, "true") == []


async def test_lines_of_any_length_and_content(host: Host) -> None:
    script = 'head -c 5000000 /dev/zero | tr "\\0" x; echo; printf "\\377\\033[31m\\n"; head -c 70000 /dev/zero'
    lines = await collect(host, "sh", "-c", script)
    assert [len(line) for line in lines] == [5_000_000, 6, 70_000]
    assert lines[1] == b"\xff\x1b[31m"


async def test_nothing_is_lost_or_reordered(host: Host) -> None:
    lines = await collect(host, "seq", "100000")
    assert lines == [str(number).encode() for number in range(1, 100_001)]


async def test_a_slow_reader_holds_the_writer_back(host: Host, tmp_path: Path) -> None:
    count = tmp_path / "count"
    script = 'i=0; while :; do i=$((i+1)); printf "%01024d\\n" $i; echo $i >"$1"; done'
    async with host.follow(["sh", "-c", script, "writer", str(count)]) as lines:
        first = await anext(lines)
        reached = -1
        for _ in range(200):
            await asyncio.sleep(0.1)
            before, reached = reached, int(count.read_text().strip() or 0)
            if before == reached:
                break
        else:
            pytest.fail("the writer was never held back")
        assert int(first) == 1
        for expected in range(2, 3000):
            assert int(await anext(lines)) == expected


async def test_a_line_comes_at_once(host: Host, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    await host.run(["mkfifo", str(fifo)])
    async with host.follow(["sh", "-c", 'exec 3<>"$1"; cat <&3', "reader", str(fifo)]) as lines:
        for number in range(20):
            await asyncio.to_thread(fifo.write_bytes, b"%d\n" % number)
            started = time.monotonic()
            assert await anext(lines) == b"%d" % number
            assert time.monotonic() - started < 0.5


async def test_leaving_ends_a_silent_command(host: Host) -> None:
    mine = a_long_sleep()
    async with host.follow(["sleep", mine]):
        await until(lambda: is_running(mine))
    await until(lambda: not is_running(mine))


async def test_leaving_ends_a_busy_command_and_its_children(host: Host) -> None:
    mine = a_long_sleep()
    async with host.follow(["sh", "-c", 'sleep "$1" & while :; do echo x; done', "parent", mine]) as lines:
        await anext(lines)
        await until(lambda: is_running(mine))
    await until(lambda: not is_running(mine))


async def test_cancelling_ends_the_command(host: Host) -> None:
    mine = a_long_sleep()
    task = asyncio.create_task(collect(host, "sleep", mine))
    await until(lambda: is_running(mine))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not is_running(mine))


async def test_waiting_for_a_line_can_be_given_up_and_resumed(host: Host) -> None:
    async with host.follow(["sh", "-c", "sleep 0.5; echo late"]) as lines:
        waiting = asyncio.ensure_future(anext(lines))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.05)
        assert await waiting == b"late"


async def test_a_failing_command_says_so(host: Host) -> None:
    seen: list[bytes] = []

    async def follow() -> None:
        async with host.follow(["sh", "-c", "echo first; echo no journal >&2; exit 4"]) as lines:
            seen.extend([line async for line in lines])

    with pytest.raises(CommandFailed, match="no journal"):
        await follow()
    assert seen in ([b"first"], [])
    with pytest.raises(CommandFailed, match="not found"):
        await collect(host, "specd-no-such-program")


async def test_a_command_that_ends_while_a_child_holds_its_output(host: Host) -> None:
    mine = a_long_sleep()
    script = 'sleep "$1" & echo "$!"'
    (pid,) = await asyncio.wait_for(collect(host, "sh", "-c", script, "parent", mine), 3)
    await host.run(["kill", pid.decode()])
