"""Starting, stopping, killing and observing units under a real systemd."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from specd.checks import failures
from specd.errors import FileProblem, UnitError
from specd.services.service import Candidate
from specd.services.systemd import SystemdManager
from tests.host.systemd_rig import closed_hosts, connect, manager_on, until  # noqa: F401
from tests.testhost import TestHost

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("closed_hosts")]

# A server that does not take SIGTERM, with a child in a session of its own that does not either.
STUBBORN = "trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & while :; do sleep 1; done"
# A server that ends on SIGTERM and leaves a child behind that does not.
ORPHANING = "setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & trap 'exit 0' TERM; while :; do sleep 0.1; done"


@pytest.fixture
def host(testhost: TestHost) -> Iterator[TestHost]:
    """The shared host, cleared of this module's units afterwards."""
    yield testhost
    testhost.exec(["sh", "-c", 'systemctl kill --signal=KILL "life*" "specd-*"; :'])
    testhost.exec(["sh", "-c", "rm -rf /etc/systemd/system/life* /run/systemd/system/specd-*"])
    testhost.systemctl("daemon-reload")
    testhost.systemctl("reset-failed", check=False)


async def put_candidate(
    host: TestHost, script: str, *, stop_timeout_s: float = 2.0
) -> tuple[SystemdManager, Candidate]:
    host.write_unit("life.service", "[Service]\nExecStart=/bin/sleep 1000\n")
    manager = manager_on(host)
    candidate = manager.render(
        await manager.facts("life"),
        trial="life",
        installation="test",
        argv=("/bin/sh", "-c", script),
        env={},
        stop_timeout_s=stop_timeout_s,
    )
    await manager.install(candidate)
    return manager, candidate


async def start(manager: SystemdManager, unit: str, processes: int) -> None:
    await manager.start(unit)

    async def running() -> bool:
        return len(await manager.processes(unit)) >= processes

    await until(running, what=f"{processes} processes of {unit}")


async def gone(manager: SystemdManager, unit: str) -> float:
    async def is_gone() -> bool:
        return (await manager.status(unit)).is_down and not await manager.processes(unit)

    return await until(is_gone, within_s=20, what=f"the end of {unit}")


async def test_a_server_that_ignores_sigterm_is_gone_in_time_with_its_orphans(host: TestHost) -> None:
    manager, candidate = await put_candidate(host, STUBBORN, stop_timeout_s=1.5)
    await start(manager, candidate.name, 4)
    started = time.monotonic()
    await manager.stop(candidate.name)
    assert time.monotonic() - started < 1, "stop waits"
    took = await gone(manager, candidate.name)
    assert 1.2 < took < 3
    status = await manager.status(candidate.name)
    assert (status.result, status.exec_code, status.exec_status) == ("timeout", "killed", 9)


async def test_children_that_outlive_the_main_process_are_gone_at_once(host: TestHost) -> None:
    manager, candidate = await put_candidate(host, ORPHANING, stop_timeout_s=15)
    await start(manager, candidate.name, 4)
    await manager.stop(candidate.name)
    assert await gone(manager, candidate.name) < 2


async def test_kill_takes_the_whole_cgroup_and_a_unit_without_processes_is_fine(host: TestHost) -> None:
    manager, candidate = await put_candidate(host, STUBBORN, stop_timeout_s=60)
    await start(manager, candidate.name, 4)
    await manager.kill(candidate.name)
    assert await gone(manager, candidate.name) < 2
    await manager.kill(candidate.name)
    await manager.kill("life-not-there.service")


async def test_a_start_limit_never_blocks_a_start(host: TestHost) -> None:
    host.write_unit(
        "life-limited.service",
        "[Unit]\nStartLimitIntervalSec=300\nStartLimitBurst=2\n"
        "[Service]\nExecStart=/bin/sh -c 'test -e /tmp/life-mended && exec sleep 100; exit 3'\n",
    )
    manager = manager_on(host)

    async def failed() -> bool:
        return (await manager.status("life-limited")).active == "failed"

    for _ in range(3):
        host.systemctl("start", "life-limited", check=False)
        await until(failed, what="the failure")
    host.put("/tmp/life-mended", "")
    assert host.exec(["systemctl", "start", "life-limited"], check=False).returncode == 1
    assert "life-limited.service: Start request repeated too quickly." in host.journal("life-limited")
    await manager.start("life-limited")

    async def running() -> bool:
        return (await manager.status("life-limited")).active == "active"

    await until(running, what="the start")


async def test_status_tells_how_the_main_process_ended(host: TestHost) -> None:
    manager = manager_on(host)
    host.write_unit("life-ends.service", "[Service]\nExecStart=/bin/sh -c 'exit 7'\n")
    before = await manager.status("life-ends")
    assert (before.exists, before.active, before.invocation, before.is_down) == (True, "inactive", "", True)
    await manager.start("life-ends")

    async def failed() -> bool:
        return (await manager.status("life-ends")).active == "failed"

    await until(failed, what="the failure")
    status = await manager.status("life-ends")
    assert (status.result, status.exec_code, status.exec_status) == ("exit-code", "exited", 7)
    assert len(status.invocation) == 32
    host.write_unit("life-missing.service", "[Service]\nExecStart=/not/there\n")
    await manager.start("life-missing")

    async def not_executed() -> bool:
        return (await manager.status("life-missing")).exec_status == 203

    await until(not_executed, what="status 203")
    nothing = await manager.status("life-nothing")
    assert (nothing.exists, nothing.is_down, nothing.is_running) == (False, True, False)


async def test_units_that_are_not_there(host: TestHost) -> None:
    manager = manager_on(host)
    with pytest.raises(UnitError, match="not found"):
        await manager.start("life-nothing")
    await manager.stop("life-nothing")
    await manager.uninstall("life-nothing")
    assert await manager.processes("life-nothing") == []


async def test_processes_show_what_moves_while_a_server_loads(host: TestHost) -> None:
    script = (
        "head -c 9000000 /dev/urandom >/tmp/life-weights; cat /tmp/life-weights >&-; exec tail -f /dev/null 'a\nb' ''"
    )
    manager, candidate = await put_candidate(host, script)
    await manager.start(candidate.name)

    async def loaded() -> bool:
        return any(process.argv[:1] == ("tail",) for process in await manager.processes(candidate.name))

    await until(loaded, what="the load")
    (main,) = await manager.processes(candidate.name)
    assert main.argv == ("tail", "-f", "/dev/null", "a\nb", "")
    assert main.pid == (await manager.status(candidate.name)).main_pid
    assert main.rss_bytes > 100_000
    assert main.read_bytes is not None
    host.exec(["rm", "/tmp/life-weights"])


async def test_processes_and_owners_as_an_ordinary_user(host: TestHost) -> None:
    server = (
        "import socket,sys,time; s=socket.create_server(('0.0.0.0', 18123)); print('up', flush=True); time.sleep(1000)"
    )
    manager, candidate = await put_candidate(host, f'exec python3 -c "{server}"')
    assert await manager.port_owners(18123) == []
    await manager.start(candidate.name)

    async def listening() -> bool:
        return bool(await manager.port_owners(18123))

    await until(listening, what="the port")
    status = await manager.status(candidate.name)
    (owner,) = await manager.port_owners(18123)
    assert (owner.pid, owner.unit) == (status.main_pid, candidate.name)
    assert owner.command.startswith("python3")
    ordinary = manager_on(host, "operator")
    (owner,) = await ordinary.port_owners(18123)
    assert (owner.pid, owner.unit) == (0, candidate.name)
    (process,) = await ordinary.processes(candidate.name)
    assert process.argv[0] == "python3"
    assert process.rss_bytes > 1_000_000
    assert process.read_bytes is None


async def test_owners_are_found_on_a_host_without_ss(host: TestHost) -> None:
    manager, candidate = await put_candidate(
        host,
        "exec python3 -c \"import socket,time; s=socket.create_server(('::1', 18124), family=10); time.sleep(1000)\"",
    )
    await manager.start(candidate.name)
    with_ss = manager_on(host)

    async def listening() -> bool:
        return bool(await with_ss.port_owners(18124))

    await until(listening, what="the port")
    host.exec(["mv", "/usr/bin/ss", "/usr/bin/ss.away"])
    try:
        without = manager_on(host)
        (owner,) = await without.port_owners(18124)
    finally:
        host.exec(["mv", "/usr/bin/ss.away", "/usr/bin/ss"])
    assert (owner.pid, owner.unit) == ((await manager.status(candidate.name)).main_pid, candidate.name)


async def test_a_running_unit_is_not_uninstalled(host: TestHost) -> None:
    manager, candidate = await put_candidate(host, "exec sleep 1000")
    await start(manager, candidate.name, 1)
    with pytest.raises(UnitError, match="until it has stopped"):
        await manager.uninstall(candidate.name)
    await manager.stop(candidate.name)
    await gone(manager, candidate.name)
    await asyncio.gather(manager.uninstall(candidate.name))
    await manager.uninstall(candidate.name)
    assert not host.exists(candidate.path)


async def test_another_directory_for_units(host: TestHost) -> None:
    host.write_unit("life.service", "[Service]\nExecStart=/bin/sleep 1000\n")
    before = host.snapshot("/etc/systemd/system")
    manager = SystemdManager(connect(host), scope="system", unit_dir="/etc/systemd/system", tag="lab")
    base = await manager.facts("life")
    candidate = manager.render(base, trial="x", installation="i", argv=base.argv, env={"A": "1"}, stop_timeout_s=1)
    assert candidate.path == "/etc/systemd/system/specd-lab-x.service"
    await manager.install(candidate)
    assert not failures(await manager.examine(candidate))
    assert [unit.path for unit in await manager.own_units()] == [candidate.path]
    await manager.uninstall(candidate.name)
    assert host.snapshot("/etc/systemd/system") == before
    elsewhere = SystemdManager(connect(host), scope="system", unit_dir="/not/there")
    candidate = elsewhere.render(
        await elsewhere.facts("life"), trial="x", installation="i", argv=base.argv, env={}, stop_timeout_s=1
    )
    with pytest.raises(FileProblem, match="/not/there"):
        await elsewhere.install(candidate)
    assert "rights.write" in [check.name for check in failures(await elsewhere.preflight("life"))]
