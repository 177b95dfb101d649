"""What the supervisor does with a unit, line by line as systemd would, shown with real processes."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specd.errors import UnitError
from tests.supervised import DEAF, SLEEPER, Rig, is_alive, python


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


async def test_a_unit_runs_in_a_clean_environment_under_its_invocation(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKED", "1")
    show = "import os\nfor k, v in os.environ.items(): print(k + '=' + v)\nprint('cwd=' + os.getcwd())"
    rig.write("env", python(show), environment={"SET": 'a "b" $c %d'}, working_directory="/usr")
    rig.boot()
    ended = await rig.run("env.service")
    printed = await rig.texts("env.service", ended.invocation)
    assert 'SET=a "b" $c %d' in printed
    assert f"INVOCATION_ID={ended.invocation}" in printed
    assert "cwd=/usr" in printed
    assert any(line.startswith("PATH=") for line in printed)
    assert not any(line.startswith(("LEAKED=", "PYTHONPATH=")) for line in printed)
    assert len(ended.invocation) == 32
    assert set(ended.invocation) <= set("0123456789abcdef")


async def test_no_descriptor_of_the_supervisor_reaches_a_unit(rig: Rig) -> None:
    rig.write("other", SLEEPER, enabled=True)
    rig.write("fds", ["/bin/ls", "-l", "/proc/self/fd"])
    rig.boot()
    ended = await rig.run("fds.service")
    links = [line.partition(" -> ")[2] for line in await rig.texts("fds.service", ended.invocation) if " -> " in line]
    assert links[0] == "/dev/null"
    assert [link.partition(":")[0] for link in links[1:3]] == ["pipe", "pipe"]
    assert len(links) == 4  # and the directory that ls reads


@pytest.mark.parametrize(
    ("program", "active", "result", "code", "status"),
    [
        ("pass", "inactive", "success", "exited", 0),
        ("raise SystemExit(3)", "failed", "exit-code", "exited", 3),
        ("import os; os.kill(os.getpid(), 9)", "failed", "signal", "killed", 9),
        ("import os; os.kill(os.getpid(), 15)", "inactive", "success", "killed", 15),
    ],
)
async def test_how_a_main_process_ends_is_told(
    rig: Rig, program: str, active: str, result: str, code: str, status: int
) -> None:
    rig.write("one", python(program))
    rig.boot()
    ended = await rig.run("one.service")
    assert (ended.active, ended.result, ended.exec_code, ended.exec_status) == (active, result, code, status)
    assert ended.main_pid == 0
    assert ended.sub == ("dead" if active == "inactive" else "failed")


@pytest.mark.parametrize(
    ("argv", "keys", "status", "named"),
    [
        (["/no/such/program"], {}, 203, "/no/such/program"),
        (["no-such-program"], {}, 203, "no-such-program"),
        (["/etc/passwd"], {}, 203, "Permission denied"),
        (["/bin/true"], {"working_directory": "/no/such/place"}, 200, "/no/such/place"),
    ],
)
async def test_what_can_not_be_executed_fails_with_systemds_status(
    rig: Rig, argv: list[str], keys: dict[str, str], status: int, named: str
) -> None:
    rig.write("one", argv, **keys)
    rig.boot()
    await rig.manager.start("one.service")
    ended = await rig.down("one.service")
    assert (ended.active, ended.result, ended.exec_code, ended.exec_status) == ("failed", "exit-code", "exited", status)
    records = await rig.manager.history("one.service", ended.invocation)
    assert any(named in record.text and record.from_manager for record in records)


async def test_a_missing_environment_file_fails_the_start(rig: Rig) -> None:
    rig.write("one", ["/bin/true"], environment_files=["/no/such/file"])
    rig.boot()
    ended = await rig.run("one.service")
    assert (ended.active, ended.result) == ("failed", "resources")


async def test_a_program_is_found_in_the_units_own_path(rig: Rig, tmp_path: Path) -> None:
    program = tmp_path / "mine"
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o755)
    rig.write("one", ["mine"], environment={"PATH": f"{tmp_path}:/bin"})
    rig.boot()
    ended = await rig.run("one.service")
    assert await rig.texts("one.service", ended.invocation) == ["found"]


async def test_start_and_stop_return_at_once_and_repeat_safely(rig: Rig) -> None:
    rig.write("one", DEAF, stop_timeout_s=1)
    rig.boot()
    began = time.monotonic()
    await rig.manager.start("one.service")
    running = await rig.manager.status("one.service")
    assert (running.active, running.sub) == ("active", "running")
    await rig.manager.start("one.service")
    assert (await rig.manager.status("one.service")).invocation == running.invocation
    await rig.printed("one.service", "up")
    await rig.manager.stop("one.service")
    stopping = await rig.manager.status("one.service")
    assert (stopping.active, stopping.sub) == ("deactivating", "stop-sigterm")
    assert stopping.is_running
    assert time.monotonic() - began < 1
    await rig.manager.stop("one.service")
    ended = await rig.down("one.service")
    assert (ended.result, ended.exec_code, ended.exec_status) == ("timeout", "killed", 9)
    assert 1 < time.monotonic() - began < 4
    await rig.manager.stop("one.service")
    assert (await rig.manager.status("one.service")).active == "failed"


async def test_each_start_is_another_invocation(rig: Rig) -> None:
    rig.write("one", ["/bin/echo", "hello"])
    rig.boot()
    first, second = await rig.run("one.service"), await rig.run("one.service")
    assert first.invocation != second.invocation
    assert await rig.texts("one.service", first.invocation) == ["hello"]
    assert await rig.texts("one.service") == ["hello", "hello"]


async def test_a_start_during_a_stop_is_a_job_that_runs_after_it(rig: Rig) -> None:
    rig.write("one", DEAF, stop_timeout_s=0.3)
    rig.boot()
    await rig.manager.start("one.service")
    first = await rig.printed("one.service", "up")
    await rig.manager.stop("one.service")
    await rig.manager.start("one.service")
    waiting = await rig.manager.status("one.service")
    assert (waiting.active, waiting.job) == ("deactivating", "start")
    assert not waiting.is_down
    again = await rig.until("one.service", lambda status: status.active == "active")
    assert again.main_pid != first.pid
    assert not is_alive(first.pid)


FAMILY = """
import os, signal, subprocess, sys, time
kind = sys.argv[1]
child = "import os, signal, sys, time\\n"
child += "signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n" if "deaf" in kind else ""
child += "os.setsid()\\n" if "session" in kind else ""
child += "print('child', os.getpid(), flush=True)\\nwhile True: time.sleep(60)"
env = {} if "bare" in kind else None
grand = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', sys.argv[1]], env=None)"
if "orphan" in kind:
    subprocess.run([sys.executable, "-c", grand, child], env=env)
else:
    subprocess.Popen([sys.executable, "-c", child], env=env)
print("main", os.getpid(), flush=True)
if "leave" in kind:
    time.sleep(float(sys.argv[2]))
    os._exit(int(sys.argv[3]))
while True: time.sleep(60)
"""


async def pids_of(rig: Rig, unit: str) -> tuple[int, int]:
    """Return the pids that a FAMILY's main process and child say they have."""
    main = await rig.printed(unit, "main ")
    child = await rig.printed(unit, "child ")
    return int(main.text.split()[1]), int(child.text.split()[1])


@pytest.mark.parametrize("kind", ["plain", "session", "orphan", "orphan session bare", "orphan session bare deaf"])
async def test_a_stop_ends_all_that_a_unit_ever_started(rig: Rig, kind: str) -> None:
    rig.write("one", python(FAMILY, kind), stop_timeout_s=0.5)
    rig.boot()
    await rig.manager.start("one.service")
    main, child = await pids_of(rig, "one.service")
    listed = [process.pid for process in await rig.manager.processes("one.service")]
    assert listed == [main, child]
    await rig.manager.stop("one.service")
    ended = await rig.down("one.service")
    assert not is_alive(main)
    assert not is_alive(child)
    assert ended.result == ("timeout" if "deaf" in kind else "success")
    assert await rig.manager.processes("one.service") == []


@pytest.mark.parametrize(
    ("kind", "status", "active", "result"),
    [
        ("", 0, "inactive", "success"),
        ("", 4, "failed", "exit-code"),
        ("deaf", 0, "failed", "timeout"),
        ("deaf", 4, "failed", "exit-code"),
    ],
)
async def test_what_lingers_after_its_main_process_is_ended_before_the_unit_is_down(
    rig: Rig, kind: str, status: int, active: str, result: str
) -> None:
    rig.write("one", python(FAMILY, f"orphan session bare leave {kind}", "0.3", str(status)), stop_timeout_s=1)
    rig.boot()
    await rig.manager.start("one.service")
    main, child = await pids_of(rig, "one.service")
    if kind == "deaf":
        lingering = await rig.until("one.service", lambda status: status.active == "deactivating")
        assert not lingering.is_down
        assert (lingering.main_pid, lingering.exec_code, lingering.exec_status) == (0, "exited", status)
        assert not is_alive(main)
        assert is_alive(child)
    ended = await rig.down("one.service")
    assert not is_alive(child)
    assert (ended.active, ended.result, ended.exec_status) == (active, result, status)


async def test_kill_ends_everything_at_once(rig: Rig) -> None:
    rig.write("one", python(FAMILY, "orphan session bare deaf"), stop_timeout_s=60)
    rig.boot()
    await rig.manager.start("one.service")
    main, child = await pids_of(rig, "one.service")
    await rig.manager.kill("one.service")
    ended = await rig.down("one.service")
    assert (ended.active, ended.result, ended.exec_code, ended.exec_status) == ("failed", "signal", "killed", 9)
    assert not is_alive(main)
    assert not is_alive(child)


async def test_a_frozen_process_can_be_stopped(rig: Rig) -> None:
    rig.write("one", SLEEPER, stop_timeout_s=30)
    rig.boot()
    await rig.manager.start("one.service")
    record = await rig.printed("one.service", "up")
    os.kill(record.pid, signal.SIGSTOP)
    await rig.manager.stop("one.service")
    assert (await rig.down("one.service")).result == "success"


async def test_a_process_that_forks_without_end_is_overcome(rig: Rig) -> None:
    chain = "import os, time\nprint('up')\nwhile True:\n  if os.fork(): os._exit(0)\n  time.sleep(0.002)"
    rig.write("one", python("import os, time\nif os.fork(): time.sleep(3600)\n" + chain), stop_timeout_s=0.2)
    rig.boot()
    await rig.manager.start("one.service")
    await rig.printed("one.service", "up")
    await rig.manager.kill("one.service")
    await rig.down("one.service")
    assert rig.marked() == []


async def test_restart_on_failure_counts_and_gives_up(rig: Rig) -> None:
    rig.write("one", python("raise SystemExit(1)"), restart="on-failure")
    rig.write("good", python("print('once')"), restart="on-failure")
    rig.boot()
    ended = await rig.run("one.service")
    assert (ended.active, ended.result, ended.restarts) == ("failed", "start-limit-hit", 4)
    again = await rig.run("one.service")
    assert again.invocation != ended.invocation
    assert (await rig.run("good.service")).restarts == 0


async def test_a_stop_ends_an_automatic_restart(rig: Rig) -> None:
    rig.write("one", python("import time; time.sleep(0.3); raise SystemExit(1)"), restart="on-failure")
    rig.boot()
    await rig.manager.start("one.service")
    await rig.until("one.service", lambda status: status.sub == "auto-restart" or status.restarts > 0)
    await rig.manager.stop("one.service")
    ended = await rig.down("one.service")
    await asyncio.sleep(0.5)
    assert await rig.manager.status("one.service") == ended


async def test_enabled_units_start_with_the_supervisor_and_others_do_not(rig: Rig) -> None:
    rig.write("base", SLEEPER, enabled=True)
    rig.write("other", SLEEPER)
    rig.boot()
    assert (await rig.manager.status("base.service")).active == "active"
    other = await rig.manager.status("other.service")
    assert (other.active, other.invocation) == ("inactive", "")


async def test_a_unit_is_what_was_read_last(rig: Rig) -> None:
    rig.write("one", ["/bin/echo", "old"])
    rig.boot()
    rig.write("one", ["/bin/echo", "new"])
    assert (await rig.manager.status("one.service")).needs_reload
    assert (await rig.manager.facts("one.service")).argv == ("/bin/echo", "old")
    ended = await rig.run("one.service")
    assert await rig.texts("one.service", ended.invocation) == ["old"]
    await rig.manager._link.ask("reload")
    assert not (await rig.manager.status("one.service")).needs_reload
    ended = await rig.run("one.service")
    assert await rig.texts("one.service", ended.invocation) == ["new"]


async def test_units_that_are_missing_or_broken_are_named(rig: Rig) -> None:
    (rig.units / "bad.service.json").write_text('{"argv": ["/bin/true"], "Restart": "no"}')
    rig.boot()
    missing = await rig.manager.status("none.service")
    assert not missing.exists
    assert missing.is_down
    assert not (await rig.manager.status("../none")).exists
    assert (await rig.manager.status("bad.service")).exists
    with pytest.raises(UnitError, match=r"none\.service"):
        await rig.manager.facts("none.service")
    with pytest.raises(UnitError, match="'Restart'"):
        await rig.manager.start("bad.service")


async def test_a_unit_whose_file_got_broken_can_be_stopped_but_not_started(rig: Rig) -> None:
    rig.write("one", SLEEPER, enabled=True)
    rig.boot()
    (rig.units / "one.service.json").write_text("{")
    await rig.manager._link.ask("reload")
    with pytest.raises(UnitError, match="JSON"):
        await rig.manager.facts("one.service")
    with pytest.raises(UnitError, match="JSON"):
        await rig.manager.start("one.service")
    assert (await rig.manager.status("one.service")).active == "active"
    await rig.manager.stop("one.service")
    await rig.down("one.service")


async def test_a_removed_unit_that_runs_can_still_be_stopped(rig: Rig) -> None:
    rig.write("one", SLEEPER, enabled=True)
    rig.boot()
    (rig.units / "one.service.json").unlink()
    await rig.manager._link.ask("reload")
    assert (await rig.manager.status("one.service")).active == "active"
    await rig.manager.stop("one.service")
    deadline = time.monotonic() + 10
    while (await rig.manager.status("one.service")).exists:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    assert not (await rig.manager.status("one.service")).exists


async def test_sigterm_to_the_supervisor_stops_all_units_in_order(rig: Rig) -> None:
    polite = (
        "import signal, sys, time\ndef end(*_):\n  print('bye'); sys.exit(0)\nsignal.signal(15, end)\nprint('up')\n"
    )
    rig.write("one", python(polite + "while True: time.sleep(60)"), enabled=True)
    rig.write("two", DEAF, enabled=True, stop_timeout_s=0.5)
    rig.boot()
    one = await rig.printed("one.service", "up")
    two = await rig.printed("two.service", "up")
    process = rig.process
    assert process is not None
    rig.end()
    assert process.returncode == 0
    assert not is_alive(one.pid)
    assert not is_alive(two.pid)
    rig.write("one", ["/bin/true"])
    rig.boot()
    assert (await rig.texts("one.service"))[-1] == "bye"


async def test_processes_tell_what_they_use(rig: Rig, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_bytes(os.urandom(2**20) * 32)
    load = "import sys, time\nheld = open(sys.argv[1], 'rb').read()\nsum(range(3_000_000))\nprint('loaded')\n"
    load += "time.sleep(60)"
    rig.write("one", python(load, str(weights)), enabled=True)
    rig.boot()
    record = await rig.printed("one.service", "loaded")
    (process,) = await rig.manager.processes("one.service")
    assert process.pid == record.pid
    assert process.argv[-1] == str(weights)
    assert process.rss_bytes > 32 * 2**20
    assert process.cpu_s > 0.01
    assert process.read_bytes is not None
    assert process.read_bytes >= 32 * 2**20
