"""SSH as it really is: OpenSSH's server, systemd's journal, few sessions, lost links, power cuts."""

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from specd.errors import CommandTimedOut, HostUnreachable
from specd.hosts import Host, open_host
from specd.settings import HostSettings
from tests.testhost import HostOptions, TestHost

pytestmark = pytest.mark.host

MakeHost = Callable[..., TestHost]


@contextlib.asynccontextmanager
async def opened(machine: TestHost, tmp_path: Path, *, user: str = "root", **changes: object) -> AsyncIterator[Host]:
    given: dict[str, object] = {
        "name": "gpu1",
        "ssh": machine.alias if user == "root" else machine.operator_alias,
        "ssh_config": str(machine.ssh_config),
        "become": "none" if user == "root" else "sudo",
    }
    host = open_host(HostSettings(**(given | changes)), tmp_path)  # type: ignore[arg-type]
    try:
        yield host
    finally:
        await host.close()


def processes(machine: TestHost, pattern: str) -> list[str]:
    """Return the processes of the machine whose command line is `pattern`, a regular expression."""
    found = machine.exec(["pgrep", "-f", "-a", "-x", pattern], check=False).stdout
    return found.splitlines()


async def until(condition: Callable[[], bool], within_s: float = 8) -> None:
    deadline = time.monotonic() + within_s
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.05)


def a_long_sleep() -> str:
    return f"600.{time.monotonic_ns()}"


# Commands and links


async def test_commands_and_their_speed(
    testhost: TestHost, tmp_path: Path, record_property: Callable[..., None]
) -> None:
    async with opened(testhost, tmp_path) as host:
        assert (await host.run(["uname", "-n"])).text.strip() == testhost.name
        times = []
        for _ in range(100):
            started = time.perf_counter()
            await host.run(["true"])
            times.append(time.perf_counter() - started)
        record_property("run_ms", statistics.median(times) * 1000)
        assert statistics.median(times) < 0.05
        answers = await asyncio.gather(*(host.run(["echo", str(number)]) for number in range(60)))
        assert [answer.text for answer in answers] == [f"{number}\n" for number in range(60)]
        content = os.urandom(10 * 2**20)
        assert (await host.run(["cat"], stdin=content)).stdout == content


async def test_banner_of_the_shell(make_host: MakeHost, tmp_path: Path) -> None:
    machine = make_host()
    machine.greet_with(r"\033[1mWelcome\033[0m\nno newline")
    async with opened(machine, tmp_path) as host:
        assert (await host.run(["echo", "out"])).stdout == b"out\n"
        await host.write("/etc/systemd/system/specd-x.service", b"content")
        assert await host.read("/etc/systemd/system/specd-x.service") == b"content"


async def test_few_sessions(make_host: MakeHost, tmp_path: Path) -> None:
    machine = make_host(HostOptions(max_sessions=2))
    async with opened(machine, tmp_path) as host, host.follow(["sh", "-c", "echo up; sleep 600"]) as lines:
        assert await anext(lines) == b"up"
        for _ in range(3):
            answers = await asyncio.gather(*(host.run(["echo", str(number)]) for number in range(20)))
            assert [answer.text for answer in answers] == [f"{number}\n" for number in range(20)]
        with pytest.raises(CommandTimedOut):
            await host.run(["sleep", a_long_sleep()], timeout_s=1)
        assert (await host.run(["echo", "fine"], timeout_s=10)).stdout == b"fine\n"
        connections = processes(machine, "sshd: root@.*")
        assert len(connections) == 1, connections


async def test_nothing_outlives_its_caller(testhost: TestHost, tmp_path: Path) -> None:
    async with opened(testhost, tmp_path) as host:
        quiet, fed, followed, cancelled = (a_long_sleep() for _ in range(4))
        with pytest.raises(CommandTimedOut):
            await host.run(["sh", "-c", 'sleep "$1"; true', "x", quiet], timeout_s=0.5)
        with pytest.raises(CommandTimedOut):
            await host.run(["sh", "-c", 'cat; sleep "$1"; true', "x", fed], stdin=b"x", timeout_s=0.5)
        async with host.follow(["sleep", followed]):
            await until(lambda: bool(processes(testhost, f"sleep {followed}")))
        task = asyncio.create_task(host.run(["sleep", cancelled]))
        await until(lambda: bool(processes(testhost, f"sleep {cancelled}")))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for each in (quiet, fed, followed, cancelled):
            await until(lambda each=each: not processes(testhost, f"sleep {each}"))


async def test_killed_daemon_leaves_no_follower(testhost: TestHost, tmp_path: Path) -> None:
    mine = a_long_sleep()
    script = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom specd.hosts import open_host\n"
        "from specd.settings import HostSettings\n"
        "async def main():\n"
        "    host = open_host(HostSettings(name='gpu1', ssh=sys.argv[1], ssh_config=sys.argv[2]), Path())\n"
        "    async with host.follow(['sleep', sys.argv[3]]), host.follow(['journalctl', '-f', '-n0']) as lines:\n"
        "        print('ready', flush=True)\n"
        "        await anext(lines)\n"
        "asyncio.run(main())\n"
    )
    argv = [sys.executable, "-c", script, testhost.alias, str(testhost.ssh_config), mine]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        assert await asyncio.to_thread(daemon.stdout.readline) == b"ready\n"
        await until(
            lambda: bool(processes(testhost, f"sleep {mine}")) and bool(processes(testhost, "journalctl -f -n0"))
        )
        daemon.kill()
    await until(lambda: not processes(testhost, f"sleep {mine}") and not processes(testhost, "journalctl -f -n0"))


async def test_killed_shell_on_the_host_is_unknown(testhost: TestHost, tmp_path: Path) -> None:
    async with opened(testhost, tmp_path) as host:
        mine = a_long_sleep()
        task = asyncio.create_task(host.run(["sleep", mine], check=False))
        await until(lambda: bool(processes(testhost, f"sleep {mine}")))
        (shell,) = testhost.exec(["pgrep", "-f", f"=sleep ={mine}$", "-o"]).stdout.split()
        testhost.exec(["kill", "-KILL", shell])
        with pytest.raises(HostUnreachable, match="signal KILL"):
            await asyncio.wait_for(task, 10)
        await until(lambda: not processes(testhost, f"sleep {mine}"))


async def test_a_journal_is_followed(testhost: TestHost, tmp_path: Path, record_property: Callable[..., None]) -> None:
    fifo = "/run/specd-latency"
    async with opened(testhost, tmp_path) as host:
        await host.run(["mkfifo", fifo])
        delays = []
        async with host.follow(["sh", "-c", f"exec 3<>{fifo}; cat <&3"]) as lines:
            for number in range(30):
                started = time.perf_counter()
                writing = asyncio.create_task(host.run(["sh", "-c", f"echo {number} >{fifo}"]))
                assert await anext(lines) == b"%d" % number
                delays.append(time.perf_counter() - started)
                await writing
        record_property("run_to_line_ms", statistics.median(delays) * 1000)
        assert statistics.median(delays) < 0.1
        async with host.follow(["journalctl", "-f", "-n0", "-o", "json", "-t", "specd-test"]) as lines:
            await host.run(["sh", "-c", "sleep 0.3; echo hello | systemd-cat -t specd-test"])
            line = await asyncio.wait_for(anext(lines), 5)
            assert b'"hello"' in line


async def test_silent_loss_reboot_and_power_cut(make_host: MakeHost, tmp_path: Path) -> None:
    machine = make_host()
    async with opened(machine, tmp_path, keepalive_s=0.5, connect_timeout_s=1) as host:
        changes: list[bool] = []
        host.on_link = lambda connected, why: changes.append(connected)
        task = asyncio.create_task(host.run(["sleep", "600"], timeout_s=900))
        await until(lambda: bool(processes(machine, "sleep 600")))
        await asyncio.to_thread(machine.drop)
        started = time.monotonic()
        with pytest.raises(HostUnreachable):
            await task
        assert time.monotonic() - started < 3
        with pytest.raises(HostUnreachable, match="did not answer"):
            await host.run(["true"])
        await asyncio.to_thread(machine.undrop)
        await host.run(["true"])
        await asyncio.to_thread(machine.freeze)
        with pytest.raises(HostUnreachable):
            await host.run(["true"])
        await asyncio.to_thread(machine.thaw)
        await host.run(["true"])
        await asyncio.to_thread(machine.reboot)
        await until(lambda: not host.link.connected)
        await host.run(["true"])
        await asyncio.to_thread(machine.crash)
        with pytest.raises(HostUnreachable):
            await host.run(["true"])
        await asyncio.to_thread(machine.boot)
        for _ in range(5):  # tries are spaced
            with contextlib.suppress(HostUnreachable):
                await host.run(["true"])
                break
        assert host.link.connected
        assert changes == [True, False, True, False, True, False, True, False, True]


async def test_behind_another_host(make_host: MakeHost, tmp_path: Path) -> None:
    front = make_host()
    machine = make_host(behind=front)
    async with opened(machine, tmp_path) as host:
        assert (await host.run(["uname", "-n"])).text.strip() == machine.name
        await asyncio.to_thread(front.exec, ["systemctl", "stop", "ssh.service"])
        await asyncio.to_thread(front.exec, ["pkill", "sshd"], check=False)
        with pytest.raises(HostUnreachable, match=f"hop {front.alias}"):
            await host.run(["true"])


async def test_port_on_the_hosts_loopback(testhost: TestHost, tmp_path: Path) -> None:
    script = (
        "import http.server\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers(); self.wfile.write(self.path.encode())\n"
        "http.server.HTTPServer(('127.0.0.1', 8123), Handler).serve_forever()\n"
    )
    async with (
        opened(testhost, tmp_path) as host,
        host.follow(["python3", "-c", script]),
        host.reach("127.0.0.1", 8123) as route,
    ):
        assert route.unix_socket is not None
        deadline = time.monotonic() + 10
        answer = b""
        while not answer:  # the program needs a moment to listen
            assert time.monotonic() < deadline
            reader, writer = await asyncio.open_unix_connection(route.unix_socket)
            writer.write(b"GET /health HTTP/1.0\r\n\r\n")
            answer = await reader.read()
            writer.close()
        assert answer.endswith(b"/health")
