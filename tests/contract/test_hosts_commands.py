"""What every host promises about commands, on this machine and over SSH."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from specd.errors import CommandFailed, CommandTimedOut, HostError, HostUnreachable
from specd.hosts import Host, open_host
from specd.settings import HostSettings
from tests.contract.hosts_ssh_server import ssh_server

ODD_WORDS = [
    "", " ", "a b", "'", '"', "\\", "\\\\n", "\\c", "!!", "$HOME", "${x}", "`id`", "$(id)", "\n", "a\nb\n", "\t", "é🙂",
    "\udcff\udcfe", "*", "~", "-n", "--", "=x", "~x", "%s%b%%", ";", "&", "|", ">", "#", "\x01\x1b[31m\x7f",
    '{"method": "ngram", "note": "it\'s \\"5\\""}', "x" * 20000,
]  # fmt: skip


@pytest.fixture(params=["local", "ssh", "ssh-bash"])
async def host(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Host]:
    """A host of each kind."""
    if request.param == "local":
        yield open_host(HostSettings(name="here"), tmp_path)
        return
    async with ssh_server(tmp_path) as server:
        server.shell = "/bin/bash" if request.param == "ssh-bash" else "/bin/sh"
        host = open_host(server.settings(), tmp_path)
        yield host
        await host.close()


async def until(condition: Callable[[], bool], within_s: float = 5) -> None:
    """Wait for something outside; fails after a while."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.02)


def is_running(mark: str) -> bool:
    """Whether a process of this machine has `mark` as a word of its command line (a zombie has none)."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark.encode() in words:
                return True
    return False


def a_long_sleep() -> str:
    """Return seconds, as sleep takes them, that nobody else sleeps."""
    return f"600.{time.monotonic_ns()}"


async def test_answer_is_whole(host: Host) -> None:
    script = "printf out; printf err >&2; exit 3"
    done = await host.run(["sh", "-c", script], check=False)
    assert (done.status, done.stdout, done.stderr) == (3, b"out", b"err")
    assert done.argv == ("sh", "-c", script)
    assert host.link.connected
    assert host.link.last_contact is not None
    assert time.monotonic() - host.link.last_contact < 5


async def test_arguments_arrive_as_they_are(host: Host) -> None:
    done = await host.run(["printf", "%s\\0", *ODD_WORDS])
    assert done.stdout.decode(errors="surrogateescape").split("\0")[:-1] == ODD_WORDS


async def test_check_raises_with_the_words(host: Host) -> None:
    with pytest.raises(CommandFailed) as caught:
        await host.run(["sh", "-c", "echo no such unit >&2; exit 5", "--api-key", "s3cret"])
    assert caught.value.status == 5
    assert "no such unit" in str(caught.value)
    assert "s3cret" not in repr(caught.value.argv) + str(caught.value)


async def test_missing_program_is_an_answer(host: Host) -> None:
    done = await host.run(["specd-no-such-program"], check=False)
    assert done.status == 127
    assert "not found" in done.error_text
    with pytest.raises(CommandFailed, match="not found"):
        await host.run(["/nonexistent/program"])


async def test_program_that_may_not_run(host: Host, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    done = await host.run([str(tmp_path / "plain")], check=False)
    assert done.status == 126
    assert "ermission denied" in done.error_text


async def test_nul_is_refused(host: Host) -> None:
    with pytest.raises(HostError, match="NUL"):
        await host.run(["echo", "a\0b"])
    with pytest.raises(HostError, match="NUL"):
        await host.run(["true"], env={"A": "a\0b"})
    with pytest.raises(HostError, match="no command"):
        await host.run([])


async def test_input_is_binary(host: Host) -> None:
    content = bytes(range(256)) * 40
    assert (await host.run(["cat"], stdin=content)).stdout == content


async def test_command_without_input_sees_its_end(host: Host) -> None:
    assert (await host.run(["cat"], timeout_s=5)).stdout == b""


async def test_large_answers(host: Host) -> None:
    size = 10 * 2**20
    script = 'head -c "$1" /dev/zero | tee /dev/stderr'
    done = await host.run(["sh", "-c", script, "both", str(size)])
    assert (len(done.stdout), len(done.stderr)) == (size, size)


async def test_large_input(host: Host) -> None:
    content = os.urandom(10 * 2**20)
    assert (await host.run(["cat"], stdin=content)).stdout == content


async def test_program_that_reads_no_input_does_not_hang(host: Host) -> None:
    assert (await host.run(["echo", "done"], stdin=b"x" * 2**20, timeout_s=10)).stdout == b"done\n"


async def test_environment(host: Host) -> None:
    odd = " a  b*\n'\\$x\té "
    script = 'printf "%s|%s|%s" "$LC_ALL" "$ODD" "$s_a"'
    done = await host.run(["sh", "-c", script], env={"ODD": odd})
    assert done.text.split("|") == ["C.UTF-8", odd, ""]
    with_input = await host.run(["sh", "-c", 'printf "%s" "$ODD"; cat'], env={"ODD": odd}, stdin=b"\n\nrest")
    assert with_input.text == odd + "\n\nrest"


async def test_environment_is_not_shown_to_others(host: Host) -> None:
    script = 'cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\\0" "\\n"'
    done = await host.run(["sh", "-c", script], env={"HF_TOKEN": "hf_verysecret"})
    assert "hf_verysecret" not in done.text


async def test_deadline_ends_the_command_and_its_children(host: Host) -> None:
    mine = a_long_sleep()
    started = time.monotonic()
    with pytest.raises(CommandTimedOut, match="did not end within"):
        await host.run(["sh", "-c", 'sleep "$1"; true', "parent", mine], timeout_s=0.5)
    assert time.monotonic() - started < 3.5
    await until(lambda: not is_running(mine))


async def test_deadline_ends_a_command_with_input(host: Host) -> None:
    mine = a_long_sleep()
    with pytest.raises(CommandTimedOut):
        await host.run(["sh", "-c", 'cat; sleep "$1"; true', "parent", mine], stdin=b"x", timeout_s=0.5)
    await until(lambda: not is_running(mine))


async def test_deadline_ends_one_that_ignores_sigterm(host: Host) -> None:
    mine = a_long_sleep()
    script = 'trap "" TERM; while :; do sleep "$1"; done'
    with pytest.raises(CommandTimedOut):
        await host.run(["sh", "-c", script, "parent", mine], timeout_s=0.3)
    await until(lambda: not is_running(mine), within_s=8)


async def test_cancelling_ends_the_command(host: Host) -> None:
    mine = a_long_sleep()
    task = asyncio.create_task(host.run(["sleep", mine]))
    await until(lambda: is_running(mine))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not is_running(mine))


async def test_cancelling_at_any_moment_leaves_the_host_usable(host: Host) -> None:
    mine = a_long_sleep()
    for step in range(40):
        task = asyncio.create_task(host.run(["sleep", mine]))
        await asyncio.sleep(step * 0.0005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await host.run(["echo", "fine"])).stdout == b"fine\n"
    await until(lambda: not is_running(mine))


async def test_child_in_the_background_does_not_hold_the_answer(host: Host) -> None:
    mine = a_long_sleep()
    started = time.monotonic()
    done = await host.run(["sh", "-c", 'sleep "$1" & echo "$!"', "parent", mine], timeout_s=5)
    assert time.monotonic() - started < 2
    os.kill(int(done.text), 9)


async def test_end_by_signal_is_unknown(host: Host) -> None:
    with pytest.raises(HostUnreachable, match="signal 9"):
        await host.run(["sh", "-c", "kill -9 $$"], check=False)


async def test_endless_output_is_stopped(host: Host) -> None:
    with pytest.raises(HostError, match="more than"):
        await host.run(["yes", "specd"], timeout_s=60)  # far more than the limit in that time
    assert (await host.run(["echo", "fine"])).stdout == b"fine\n"


async def test_many_at_once(host: Host) -> None:
    answers = await asyncio.gather(*(host.run(["echo", str(number)]) for number in range(40)))
    assert [answer.text for answer in answers] == [f"{number}\n" for number in range(40)]


async def test_tool_is_found_and_remembered(host: Host, tmp_path: Path) -> None:
    assert await host.tool("sh") in ("/bin/sh", "/usr/bin/sh")
    assert await host.tool("specd-no-such-program") is None
    started = time.monotonic()
    for _ in range(200):
        assert await host.tool("specd-no-such-program") is None
    assert time.monotonic() - started < 0.1
    with pytest.raises(HostError):
        await host.tool("a\0b")
