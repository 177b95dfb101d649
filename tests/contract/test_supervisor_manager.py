"""The embedded service manager against the contract of the seam, with a real supervisor behind it."""

import asyncio
import dataclasses
import json
import os
import shutil
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from specd.checks import CheckStatus, failures
from specd.errors import FileProblem, HostUnreachable, UnitError
from specd.services.embedded import EmbeddedManager
from specd.services.service import Candidate, GuardPlan, JournalRecord, PortOwner, ServiceManager, UnitStatus
from tests.supervised import DEAF, SLEEPER, Rig, is_alive, python

SPECULATION = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


async def candidate_of(rig: Rig, argv: list[str], trial: str = "t1") -> Candidate:
    base = await rig.manager.facts("base.service")
    return rig.manager.render(
        base, trial=trial, installation="here", argv=tuple(argv), env={"NEW": "1", "OLD": None}, stop_timeout_s=1.5
    )


def broken(rig: Rig, candidate: Candidate, **changes: object) -> None:
    """Change the installed unit behind the manager's back."""
    raw = json.loads(candidate.content)
    Path(candidate.path).write_text(json.dumps(raw | changes))


async def test_it_is_a_service_manager(rig: Rig) -> None:
    manager: ServiceManager = rig.manager
    assert manager.kind == "embedded"


async def test_facts_are_what_the_supervisor_has_read(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "extra").write_text("TWO=file\nTHREE=3\n")
    rig.write(
        "base",
        ["/bin/srv", SPECULATION],
        environment={"ONE": "1", "TWO": "2"},
        environment_files=[str(tmp_path / "extra")],
        enabled=True,
        restart="on-failure",
        stop_timeout_s=7,
    )
    rig.boot()
    facts = await rig.manager.facts("base.service")
    assert facts.argv == ("/bin/srv", SPECULATION)
    assert facts.environment == {"RIG_MARK": rig.mark, "ONE": "1", "TWO": "file", "THREE": "3"}
    assert facts.enabled == "enabled"
    assert (facts.extra["Restart"], facts.extra["TimeoutStopUSec"]) == ("on-failure", "7000000")
    assert facts.fragment_path == str(rig.units / "base.service.json")
    assert await rig.manager.dependents("base.service") == ()
    assert set(facts.files) == {facts.fragment_path, str(tmp_path / "extra")}
    assert json.loads(facts.text)["argv"] == ["/bin/srv", SPECULATION]
    (tmp_path / "extra").write_text("TWO=changed\n")
    again = await rig.manager.facts("base.service")
    assert [path for path in facts.files if facts.files[path] != again.files[path]] == [str(tmp_path / "extra")]


async def test_a_candidate_is_the_baseline_changed_installed_proven_run_and_removed(rig: Rig) -> None:
    rig.write("base", SLEEPER, environment={"OLD": "1", "KEPT": "k"}, enabled=True, restart="on-failure")
    rig.boot()
    before = (await rig.manager.facts("base.service")).files
    show = "import os, sys, time\nprint('NEW' in os.environ, 'OLD' in os.environ, os.environ['KEPT'], sys.argv[1])\n"
    candidate = await candidate_of(rig, python(show + "time.sleep(60)", SPECULATION))
    assert candidate.environment == {"RIG_MARK": rig.mark, "KEPT": "k", "NEW": "1"}
    assert not Path(candidate.path).exists()
    await rig.manager.install(candidate)
    await rig.manager.install(candidate)
    assert Path(candidate.path).read_bytes() == candidate.content
    assert stat.S_IMODE(Path(candidate.path).stat().st_mode) == 0o600
    checks = await rig.manager.examine(candidate)
    assert {check.name for check in checks} >= {"unit.bytes", "unit.reload", "unit.argv", "unit.environment"}
    assert [check for check in checks if check.status is not CheckStatus.PASSED] == []
    (own,) = await rig.manager.own_units()
    assert (own.name, own.trial, own.installation, own.path) == (candidate.name, "t1", "here", candidate.path)
    await rig.manager.start(candidate.name)
    record = await rig.printed(candidate.name, "{")
    assert record.text == f"True False k {SPECULATION}"
    await rig.manager.stop(candidate.name)
    await rig.down(candidate.name)
    await rig.manager.uninstall(candidate.name)
    await rig.manager.uninstall(candidate.name)
    assert await rig.manager.own_units() == []
    assert not (await rig.manager.status(candidate.name)).exists
    assert sorted(path.name for path in rig.units.iterdir()) == ["base.service.json"]
    assert (await rig.manager.facts("base.service")).files == before


async def test_a_change_behind_our_back_is_seen_before_and_after_it_is_read(rig: Rig) -> None:
    rig.write("base", SLEEPER)
    rig.boot()
    candidate = await candidate_of(rig, ["/bin/true", "--config", SPECULATION, "--api-key", "hidden-1"])
    await rig.manager.install(candidate)
    other = SPECULATION.replace("5", "6")
    broken(rig, candidate, argv=["/bin/true", "--config", other, "--api-key", "hidden-1"], enabled=True)
    assert [check.name for check in failures(await rig.manager.examine(candidate))] == ["unit.bytes", "unit.reload"]
    await rig.manager._link.ask("reload")
    failed = {check.name: check for check in failures(await rig.manager.examine(candidate))}
    assert set(failed) == {"unit.bytes", "unit.argv", "unit.enabled"}
    assert "--config" in failed["unit.argv"].evidence
    assert SPECULATION in failed["unit.argv"].evidence
    assert other in failed["unit.argv"].evidence


async def test_secrets_are_masked_in_what_a_check_says(rig: Rig) -> None:
    rig.write("base", SLEEPER)
    rig.boot()
    candidate = await candidate_of(rig, ["/bin/true", "--api-key", "hidden-1", "--hf-token=hidden-2"])
    await rig.manager.install(candidate)
    for argv in (["/bin/true", "--api-key", "hidden-3", "--hf-token=hidden-2"], ["/bin/true", "--api-key", "hidden-1"]):
        broken(rig, candidate, argv=argv, environment={"HF_TOKEN": "hidden-4"}, restart="on-failure")
        await rig.manager._link.ask("reload")
        checks = await rig.manager.examine(candidate)
        assert {"unit.argv", "unit.environment", "unit.restart"} <= {check.name for check in failures(checks)}
        assert "hidden" not in str(checks)


@pytest.mark.parametrize(
    ("argv", "directory"),
    [(["/no/such/program"], "/"), (["no-such-program"], "/"), (["/etc/passwd"], "/"), (["/bin/true"], "/no/such")],
)
async def test_a_program_that_can_not_run_fails_its_check(rig: Rig, argv: list[str], directory: str) -> None:
    rig.write("base", SLEEPER, working_directory=directory)
    rig.boot()
    candidate = await candidate_of(rig, argv)
    await rig.manager.install(candidate)
    assert [check.name for check in failures(await rig.manager.examine(candidate))] == ["unit.executable"]


async def test_a_unit_of_somebody_elses_is_neither_replaced_nor_removed(rig: Rig) -> None:
    rig.write("base", SLEEPER)
    rig.boot()
    candidate = await candidate_of(rig, ["/bin/true"])
    for content in (b'{"argv": ["/bin/mine"]}', b"not JSON"):
        Path(candidate.path).write_bytes(content)
        with pytest.raises(UnitError, match="in the way"):
            await rig.manager.install(candidate)
        with pytest.raises(UnitError):
            await rig.manager.uninstall(candidate.name)
        assert Path(candidate.path).read_bytes() == content
    assert len(list(rig.units.iterdir())) == 2


async def test_what_can_not_be_expressed_is_refused(rig: Rig) -> None:
    rig.write("base", SLEEPER)
    rig.boot()
    base = await rig.manager.facts("base.service")
    with pytest.raises(UnitError):
        rig.manager.candidate_name("../../etc")
    for argv, env in (((), {}), (("a\0b",), {}), (("a",), {"A B": "1"}), (("a",), {"PATH": None})):
        with pytest.raises(UnitError):
            rig.manager.render(base, trial="t", installation="i", argv=argv, env=env, stop_timeout_s=1)


async def test_a_directory_that_can_not_be_written_leaves_nothing(rig: Rig) -> None:
    rig.write("base", SLEEPER)
    rig.boot()
    candidate = await candidate_of(rig, ["/bin/true"])
    away = dataclasses.replace(candidate, path="/proc/self/none/x.service.json")
    with pytest.raises(FileProblem) as caught:
        await rig.manager.install(away)
    assert caught.value.reason == "missing"
    blocked = Path(candidate.path).with_name(f".{Path(candidate.path).name}.new")
    blocked.mkdir()
    with pytest.raises(FileProblem):
        await rig.manager.install(candidate)
    assert not Path(candidate.path).exists()


async def test_preflight_says_what_it_found(rig: Rig) -> None:
    rig.write("base", SLEEPER, enabled=True)
    rig.write("loose", ["/no/such/program"])
    rig.boot()
    assert all(check.status is CheckStatus.PASSED for check in await rig.manager.preflight("base.service"))
    loose = {check.name: check.status for check in await rig.manager.preflight("loose.service")}
    assert loose["unit.enabled"] is CheckStatus.WARNING
    assert loose["unit.executable"] is CheckStatus.FAILED
    assert "unit.exists" in [check.name for check in failures(await rig.manager.preflight("none.service"))]
    rig.end()
    assert [check.name for check in failures(await rig.manager.preflight("base.service"))] == ["manager.supervisor"]


async def test_the_journal_is_followed_from_its_start_and_from_a_cursor(rig: Rig) -> None:
    count = "import sys, time\nfor n in range(40):\n  print(n, file=[sys.stdout, sys.stderr][n % 2]); time.sleep(0.01)"
    rig.write("one", python(count))
    rig.boot()
    await rig.run("one.service")
    await rig.manager.start("one.service")
    running = await rig.manager.status("one.service")
    async with rig.manager.journal("one.service", running.invocation) as records:
        whole = await _up_to(records, "39")
    async with rig.manager.journal("one.service", running.invocation, after=whole[10].cursor) as records:
        rest = await _up_to(records, "39")
    assert rest == whole[11:]
    # Two pipes: each keeps its order, between them it is approximate.
    for parity in range(2):
        printed = [int(record.text) for record in whole if int(record.text) % 2 == parity]
        assert printed == list(range(parity, 40, 2))
    assert {record.pid for record in whole} == {running.main_pid}
    await rig.down("one.service")
    last = await rig.manager.history("one.service", running.invocation, last=3)
    assert last[0] == whole[-1]
    assert [record.from_manager for record in last] == [False, True, True]
    assert await rig.manager.history("one.service", "0" * 32) == []
    assert await rig.manager.history("never.service", "0" * 32) == []


async def _up_to(records: AsyncIterator[JournalRecord], text: str) -> list[JournalRecord]:
    """Return what processes printed, up to the record of a text."""
    found: list[JournalRecord] = []
    async with asyncio.timeout(20):
        async for record in records:
            if not record.from_manager:
                found.append(record)
            if record.text == text:
                break
    return found


async def test_twenty_thousand_lines_arrive_each_once_and_hold_nobody_up(rig: Rig) -> None:
    flood = "import time\nbegan = time.monotonic()\nfor n in range(20_000): print(f'line {n} ' + 'x' * 100)\n"
    rig.write("one", python(flood + "print('took', time.monotonic() - began)"))
    rig.boot()
    await rig.manager.start("one.service")
    invocation = (await rig.manager.status("one.service")).invocation
    seen: list[str] = []
    async with asyncio.timeout(60), rig.manager.journal("one.service", invocation) as records:
        async for record in records:
            if not record.from_manager:
                seen.append(record.text)
            if record.text.startswith("took"):
                break
    assert [text.split(" x")[0] for text in seen[:-1]] == [f"line {number}" for number in range(20_000)]
    assert float(seen[-1].split()[1]) < 10


async def test_a_bar_of_carriage_returns_is_one_record_and_a_last_part_is_kept(rig: Rig) -> None:
    bar = "import sys\nfor n in range(10): sys.stderr.write(f'\\rbar {n}')\nsys.stderr.write('\\n')\n"
    rig.write("one", python(bar + "sys.stdout.write('no newline'); sys.stdout.flush()"))
    rig.boot()
    ended = await rig.run("one.service")
    texts = await rig.texts("one.service", ended.invocation)
    assert sorted(texts) == ["".join(f"\rbar {number}" for number in range(10)), "no newline"]


async def test_who_listens_on_a_port_is_told(rig: Rig) -> None:
    serve = "import socket, sys, time\ns = socket.create_server((sys.argv[1], 0))\nprint(s.getsockname()[1])\n"
    rig.write("four", python(serve + "time.sleep(60)", "127.0.0.1"), enabled=True)
    rig.boot()
    record = await rig.printed("four.service", "")
    port = int(record.text)
    (owner,) = await rig.manager.port_owners(port)
    assert (owner.pid, owner.unit) == (record.pid, "four.service")
    assert "create_server" in owner.command
    await rig.manager.stop("four.service")
    await rig.down("four.service")
    assert await rig.manager.port_owners(port) == []
    with socket.create_server(("127.0.0.1", 0)) as own:
        (owner,) = await rig.manager.port_owners(own.getsockname()[1])
        assert (owner.pid, owner.unit) == (os.getpid(), "")
        assert isinstance(owner, PortOwner)


async def test_a_guard_that_runs_out_brings_the_baseline_back(rig: Rig) -> None:
    rig.write("base", SLEEPER, enabled=True)
    rig.write("cand", DEAF, stop_timeout_s=0.3)
    rig.boot()
    assert await rig.manager.guard("t1") is None
    await rig.manager.stop("base.service")
    await rig.down("base.service")
    await rig.manager.arm_guard(GuardPlan(trial="t1", candidate="cand.service", baseline="base.service", lease_s=0.7))
    await rig.manager.start("cand.service")
    candidate = await rig.printed("cand.service", "up")
    armed = await rig.manager.guard("t1")
    assert armed is not None
    assert armed.state == "armed"
    assert 0 < armed.remaining_s <= 0.7
    back = await rig.until("base.service", lambda status: status.active == "active")
    assert not is_alive(candidate.pid)
    assert (await rig.manager.status("cand.service")).active == "inactive"
    fired = await rig.manager.guard("t1")
    assert fired is not None
    assert (fired.state, fired.remaining_s) == ("fired", 0)
    plan = GuardPlan(trial="t1", candidate="cand.service", baseline="base.service", lease_s=60)
    await rig.manager.arm_guard(plan)
    assert await rig.manager.guard("t1") == fired
    assert (await rig.manager.status("base.service")).invocation == back.invocation
    await rig.manager.disarm_guard("t1")
    await rig.manager.disarm_guard("t1")
    assert await rig.manager.guard("t1") is None


async def test_a_guard_clears_the_baselines_failure_and_a_candidate_may_be_gone(rig: Rig) -> None:
    rig.write("base", python("import sys, time\ntime.sleep(60)"))
    rig.boot()
    await rig.manager.start("base.service")
    await rig.manager.kill("base.service")
    assert (await rig.down("base.service")).active == "failed"
    await rig.manager.arm_guard(GuardPlan(trial="t", candidate="gone.service", baseline="base.service", lease_s=0.1))
    await rig.until("base.service", lambda status: status.active == "active")


async def test_a_guard_that_is_renewed_or_disarmed_does_not_fire(rig: Rig) -> None:
    rig.write("base", SLEEPER)
    rig.write("cand", SLEEPER, enabled=True)
    rig.boot()
    plan = GuardPlan(trial="t1", candidate="cand.service", baseline="base.service", lease_s=0.4)
    for _ in range(6):
        await rig.manager.arm_guard(plan)
        await asyncio.sleep(0.2)
    armed = await rig.manager.guard("t1")
    assert armed is not None
    assert armed.state == "armed"
    await rig.manager.disarm_guard("t1")
    await asyncio.sleep(0.6)
    assert (await rig.manager.status("cand.service")).active == "active"
    with pytest.raises(UnitError):
        await rig.manager.arm_guard(dataclasses.replace(plan, baseline="none.service"))


async def test_a_supervisor_is_started_on_demand_and_found_again(rig: Rig) -> None:
    rig.write("base", SLEEPER, enabled=True)
    with pytest.raises(HostUnreachable):
        await rig.manager.status("base.service")
    first, second = EmbeddedManager(rig.directory), EmbeddedManager(rig.directory)
    one, two = await asyncio.gather(first.status("base.service"), second.status("base.service"))
    assert one == two
    assert isinstance(one, UnitStatus)
    assert one.active == "active"
    supervisor = int((rig.directory / "supervisor.pid").read_text())
    assert os.getsid(supervisor) != os.getsid(0)
    assert (await rig.manager.status("base.service")).invocation == one.invocation


async def test_a_directory_of_any_length_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / ("e" * 120)
    deep.mkdir(parents=True)
    with Rig(deep) as rig:
        rig.write("one", ["/bin/echo", "hello"])
        rig.boot()
        ended = await rig.run("one.service")
        assert await rig.texts("one.service", ended.invocation) == ["hello"]
    shutil.rmtree(deep)
