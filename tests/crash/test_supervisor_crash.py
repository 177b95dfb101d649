"""Whoever dies, in whatever way: nothing of a unit is left behind, nothing said is lost, and a guard keeps its word."""

import asyncio
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from specd.errors import FileProblem, HostUnreachable
from specd.services.embedded import EmbeddedManager
from specd.services.service import GuardPlan, JournalRecord
from tests.supervised import DEAF, ROOT, SLEEPER, Rig, is_alive, python

CHILD = "import os, signal, time; signal.signal(15, signal.SIG_IGN); os.setsid(); print(os.getpid(), flush=True)\n"
CHILD += "while True: time.sleep(60)"
ORPHANS = """
import subprocess, sys, time
grand = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
subprocess.run([sys.executable, "-c", grand, sys.argv[1]], env=ENV)
while True: time.sleep(60)
"""
MARKED = ORPHANS.replace("ENV", "None")
BARE = ORPHANS.replace("ENV", "{}")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


async def with_orphan(rig: Rig, program: str = BARE, **keys: object) -> tuple[int, int]:
    """Start a unit whose orphan ignores SIGTERM, has a session and no environment; return main and orphan."""
    rig.write("base", python(program, CHILD), **keys)
    if rig.process is None:
        rig.boot()
    await rig.manager.start("base.service")
    orphan = int((await rig.printed("base.service", "")).text)
    main = (await rig.manager.status("base.service")).main_pid
    assert is_alive(main)
    assert is_alive(orphan)
    return main, orphan


def keeper_of(main: int) -> int:
    return int(Path(f"/proc/{main}/stat").read_text().rpartition(")")[2].split()[1])


async def test_the_supervisor_outlives_whoever_started_it(rig: Rig) -> None:
    rig.write("base", SLEEPER, enabled=True)
    client = (
        "import asyncio, os, sys\nfrom pathlib import Path\nfrom specd.services.embedded import EmbeddedManager\n"
        "status = asyncio.run(EmbeddedManager(Path(sys.argv[1])).status('base.service'))\n"
        "print(status.invocation, flush=True)\nos.kill(os.getpid(), 9)"
    )
    argv = [sys.executable, "-c", client, str(rig.directory)]
    ended = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=30, check=False)
    assert ended.returncode == -signal.SIGKILL
    status = await rig.manager.status("base.service")
    assert (status.active, status.invocation) == ("active", ended.stdout.strip())


async def test_a_client_killed_while_it_follows_disturbs_nobody(rig: Rig) -> None:
    rig.write("base", python("import time\nfor n in range(10**6):\n  print(n, 'x' * 1000); time.sleep(0.0001)"))
    rig.boot()
    await rig.manager.start("base.service")
    invocation = (await rig.manager.status("base.service")).invocation
    request = {"id": 1, "do": "journal", "unit": "base", "invocation": invocation, "follow": True}
    client = (
        "import socket, sys, time\ns = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "s.sendall(sys.argv[2].encode() + b'\\n'); s.recv(10); print('reading', flush=True); time.sleep(60)"
    )
    argv = [sys.executable, "-c", client, str(rig.directory / "supervisor.sock"), json.dumps(request)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        await asyncio.sleep(0.3)
        process.kill()
    first = await rig.printed("base.service", "")
    assert first.text.startswith("0 ")
    later = len(await rig.texts("base.service", invocation))
    await asyncio.sleep(0.2)
    assert len(await rig.texts("base.service", invocation)) > later


@pytest.mark.parametrize("program", [MARKED, BARE])
async def test_units_die_with_a_killed_supervisor_to_the_last_orphan(rig: Rig, program: str) -> None:
    main, orphan = await with_orphan(rig, program)
    rig.crash()
    rig.wait_gone(main, orphan, within_s=5)
    with pytest.raises(HostUnreachable):
        await rig.manager.status("base.service")


async def test_a_killed_supervisor_comes_back_as_after_a_boot(rig: Rig) -> None:
    main, orphan = await with_orphan(rig, enabled=True)
    rig.write("other", SLEEPER)
    before = await rig.manager.status("base.service")
    rig.crash()
    rig.boot()
    assert not is_alive(main)
    assert not is_alive(orphan)
    after = await rig.manager.status("base.service")
    assert after.active == "active"
    assert after.invocation != before.invocation
    assert (await rig.manager.status("other.service")).active == "inactive"


async def test_what_not_even_the_keeper_could_end_is_ended_by_the_next_supervisor(rig: Rig) -> None:
    main, orphan = await with_orphan(rig, MARKED)
    keeper = keeper_of(main)
    os.kill(keeper, signal.SIGSTOP)
    rig.crash()
    os.kill(keeper, signal.SIGKILL)
    rig.wait_gone(keeper, main)
    assert is_alive(orphan)
    stranger = subprocess.Popen(["/bin/sleep", "60"], env={"INVOCATION_ID": "0" * 32})
    try:
        rig.boot()
        assert not is_alive(orphan)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_a_keeper_that_hangs_is_woken_and_waited_for_by_the_next_supervisor(rig: Rig) -> None:
    main, orphan = await with_orphan(rig)
    keeper = keeper_of(main)
    os.kill(keeper, signal.SIGSTOP)
    rig.crash()
    assert is_alive(main)
    rig.boot()
    assert not is_alive(keeper)
    assert not is_alive(main)
    assert not is_alive(orphan)


async def test_a_unit_whose_keeper_is_killed_fails_and_leaves_nothing(rig: Rig) -> None:
    rig.write("other", SLEEPER, enabled=True)
    main, orphan = await with_orphan(rig)
    os.kill(keeper_of(main), signal.SIGKILL)
    ended = await rig.down("base.service")
    assert (ended.active, ended.result) == ("failed", "signal")
    assert not is_alive(main)
    assert not is_alive(orphan)
    assert (await rig.manager.status("other.service")).active == "active"


async def test_main_killed_from_outside_takes_its_orphans_along(rig: Rig) -> None:
    main, orphan = await with_orphan(rig, stop_timeout_s=0.5)
    os.kill(main, signal.SIGKILL)
    ended = await rig.down("base.service")
    assert (ended.active, ended.result, ended.exec_code, ended.exec_status) == ("failed", "signal", "killed", 9)
    assert not is_alive(orphan)


@pytest.mark.parametrize("how", ["foreground", "detached"])
async def test_a_cut_lifeline_ends_everything(rig: Rig, how: str) -> None:
    rig.write("deaf", DEAF, enabled=True, stop_timeout_s=600)
    rig.write("base", python(BARE, CHILD), enabled=True, stop_timeout_s=600)
    owner_code = (
        "import asyncio, os, sys, time\nfrom pathlib import Path\nfrom specd.services.embedded import EmbeddedManager\n"
        "read, write = os.pipe()\n"
        "if sys.argv[2] == 'detached':\n"
        "  asyncio.run(EmbeddedManager(Path(sys.argv[1]), lifeline=read).status('base'))\n"
        "else:\n"
        "  import subprocess\n"
        "  argv = [sys.executable, '-m', 'specd.supervisor', sys.argv[1], '--lifeline', str(read)]\n"
        "  subprocess.Popen(argv, pass_fds=(read,), stderr=subprocess.DEVNULL)\n"
        "print('owned', flush=True)\ntime.sleep(60)"
    )
    argv = [sys.executable, "-c", owner_code, str(rig.directory), how]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        manager = EmbeddedManager(rig.directory) if how == "detached" else rig.manager
        deadline = time.monotonic() + 10
        while not (rig.directory / "supervisor.sock").exists():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        supervisor = int((rig.directory / "supervisor.pid").read_text())
        orphan = int((await rig.printed("base.service", "")).text)
        deaf = (await rig.printed("deaf.service", "up")).pid
        main = (await manager.status("base.service")).main_pid
        owner.kill()
    rig.wait_gone(supervisor, main, orphan, deaf, within_s=8)
    with pytest.raises(HostUnreachable, match="tied to an owner"):
        await EmbeddedManager(rig.directory).status("base.service")
    assert rig.marked() == []
    rig.write("deaf", SLEEPER)
    rig.write("base", SLEEPER)
    rig.boot()
    rig.end()
    await EmbeddedManager(rig.directory).status("base.service")


async def test_a_second_sigterm_does_not_wait_for_stop_timeouts(rig: Rig) -> None:
    rig.write("deaf", DEAF, enabled=True, stop_timeout_s=600)
    rig.boot()
    deaf = (await rig.printed("deaf.service", "up")).pid
    assert rig.process is not None
    rig.process.terminate()
    await asyncio.sleep(0.2)
    assert is_alive(deaf)
    rig.process.terminate()
    assert rig.process.wait(timeout=10) == 0
    assert not is_alive(deaf)


@pytest.mark.parametrize(
    "content", ["", "{", '{"version": 9}', '{"version": 1, "boot": "x", "running": 5, "guards": []}']
)
async def test_a_damaged_state_file_is_set_aside_and_said(rig: Rig, content: str) -> None:
    rig.write("base", SLEEPER, enabled=True)
    (rig.directory / "state.json").write_text(content)
    rig.boot()
    assert (await rig.manager.status("base.service")).active == "active"
    assert (rig.directory / "state.json.damaged").read_text() == content


async def test_a_follower_rejoins_a_restarted_supervisor_where_it_was(rig: Rig) -> None:
    rig.write("one", python("import time\nfor n in range(5): print('early', n)\ntime.sleep(60)"))
    rig.boot()
    await rig.manager.start("one.service")
    invocation = (await rig.manager.status("one.service")).invocation
    seen: list[JournalRecord] = []
    async with asyncio.timeout(30), rig.manager.journal("one.service", "") as records:
        async for record in records:
            seen.append(record)
            if record.text == "early 4" and record.pid == seen[0].pid:
                rig.crash()
                rig.boot()
                await rig.manager.start("one.service")
            elif record.text == "early 4":
                break
    texts = [record.text for record in seen if not record.from_manager]
    assert texts == [f"early {number}" for number in range(5)] * 2
    cursors = [int(record.cursor) for record in seen]
    assert cursors == sorted(set(cursors))
    assert await rig.texts("one.service", invocation) == texts[:5]


async def test_a_full_disk_neither_ends_a_unit_nor_loses_its_newest_lines(rig: Rig) -> None:
    flood = "import time\nfor n in range(3000): print('line', n, 'x' * 100)\nprint('done')\ntime.sleep(60)"
    rig.write("one", python(flood), enabled=True)
    prefix = (
        sys.executable,
        "-c",
        "import os, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, resource.RLIM_INFINITY))\n"
        "os.execv(sys.argv[1], sys.argv[1:])",
    )
    rig.boot(prefix=prefix)
    await rig.printed("one.service", "done")
    status = await rig.manager.status("one.service")
    assert status.active == "active"
    assert [text.split(" x")[0] for text in await rig.texts("one.service", status.invocation)] == [
        *(f"line {number}" for number in range(3000)),
        "done",
    ]
    assert rig.process is not None
    resource.prlimit(rig.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await rig.manager.stop("one.service")
    await rig.down("one.service")
    rig.end()
    stored = [json.loads(line)["text"] for line in (rig.directory / "journal" / "one.jsonl").read_text().splitlines()]
    assert [text.split(" x")[0] for text in stored if text.startswith("line")] == [f"line {n}" for n in range(3000)]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a small disk")
async def test_a_disk_without_room_still_starts_and_stops_units(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k,mode=700", "tmpfs", str(small)], check=True)
    try:
        with Rig(small) as rig:
            flood = "for n in range(3000): print('line', n)\nprint('done')\nimport time; time.sleep(60)"
            rig.write("base", SLEEPER, enabled=True)
            rig.write("cand", python(flood))
            rig.boot()
            await rig.manager.start("cand.service")
            await rig.printed("cand.service", "done")
            with suppress(OSError), (small / "filler").open("wb", buffering=0) as filler:
                while True:
                    filler.write(b"x" * 4096)
            assert os.statvfs(small).f_bavail == 0
            plan = GuardPlan(trial="t", candidate="cand.service", baseline="base.service", lease_s=60)
            with pytest.raises(FileProblem, match="can't be stored"):
                await rig.manager.arm_guard(plan)
            assert await rig.manager.guard("t") is None
            base = await rig.manager.facts("base.service")
            candidate = rig.manager.render(
                base, trial="t", installation="i", argv=("/bin/true",), env={}, stop_timeout_s=1
            )
            with pytest.raises(FileProblem) as caught:
                await rig.manager.install(candidate)
            assert caught.value.reason == "no-space"
            assert sorted(path.name for path in rig.units.iterdir()) == ["base.service.json", "cand.service.json"]
            await rig.manager.stop("base.service")
            await rig.down("base.service")
            await rig.manager.start("base.service")
            await rig.printed("base.service", "up")
            (small / "filler").unlink()
            await rig.manager.arm_guard(plan)
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)


@pytest.mark.parametrize("seed", range(12))
async def test_killed_in_any_instant_of_a_start_or_stop_it_leaves_nothing(rig: Rig, seed: int) -> None:
    chance = random.Random(seed)
    rig.write("base", python(MARKED, CHILD), enabled=True, stop_timeout_s=0.05)
    rig.write("cand", python(MARKED, CHILD), stop_timeout_s=0.05)
    for _ in range(3):
        rig.boot()
        calls = [rig.manager.stop("base.service"), rig.manager.start("cand.service"), rig.manager.stop("cand.service")]
        tasks = [asyncio.create_task(call) for call in calls[: chance.randint(1, 3)]]
        await asyncio.sleep(chance.uniform(0, 0.08))
        rig.crash()
        await asyncio.gather(*tasks, return_exceptions=True)
        for call in calls[len(tasks) :]:
            call.close()
        deadline = time.monotonic() + 5
        while left := rig.marked():
            assert time.monotonic() < deadline, left
            await asyncio.sleep(0.01)
