"""The rehearsal engine, with its children and its habits, as a unit of the supervisor."""

import asyncio
import json
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.supervised import ROOT, Rig, is_alive

QUICK = {"time_scale": 0.2, "model_must_exist": False, "read_mib": 1, "weights_mib": 1, "bar": "cr"}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def engine(rig: Rig, port: int, fault: str = "", **keys: object) -> None:
    """Write the engine's unit, as `llm`."""
    argv = [sys.executable, "-m", "specd.rehearsal", "serve", "m", "--host", "127.0.0.1", "--port", str(port)]
    environment = {"SPECD_REHEARSAL": json.dumps(QUICK), "SPECD_REHEARSAL_FAULT": fault, "PYTHONPATH": str(ROOT)}
    rig.write("llm", argv, environment=environment, **keys)


def is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


async def until_healthy(port: int) -> None:
    deadline = time.monotonic() + 20
    while not await asyncio.to_thread(is_healthy, port):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_an_engine_loads_serves_and_is_gone_with_its_children(rig: Rig) -> None:
    port = free_port()
    engine(rig, port, enabled=True, stop_timeout_s=3)
    rig.boot()
    await until_healthy(port)
    processes = await rig.manager.processes("llm.service")
    status = await rig.manager.status("llm.service")
    assert len(processes) >= 3
    assert processes[0].pid == status.main_pid
    assert [owner.unit for owner in await rig.manager.port_owners(port)] == ["llm.service"]
    texts = await rig.texts("llm.service", status.invocation)
    (bar,) = [text for text in texts if "Capturing" in text and "PIECEWISE" in text]
    assert bar.count("\r") > 3
    await rig.manager.stop("llm.service")
    await rig.down("llm.service")
    assert not any(is_alive(process.pid) for process in processes)
    assert await rig.manager.port_owners(port) == []


@pytest.mark.parametrize("fault", ["hang:weights", "ignore-sigterm", "oom:weights"])
async def test_a_stop_wins_against_an_engine_that_will_not_go(rig: Rig, fault: str) -> None:
    engine(rig, free_port(), fault, stop_timeout_s=1)
    rig.boot()
    await rig.manager.start("llm.service")
    await rig.printed("llm.service", "Worker")
    processes = await rig.manager.processes("llm.service")
    assert len(processes) >= 2
    began = time.monotonic()
    await rig.manager.stop("llm.service")
    await rig.down("llm.service")
    assert time.monotonic() - began < 3
    assert not any(is_alive(process.pid) for process in processes)


@pytest.mark.parametrize(("status", "active"), [(1, "failed"), (0, "inactive")])
async def test_an_engine_that_dies_by_itself_is_told_with_its_status(rig: Rig, status: int, active: str) -> None:
    engine(rig, free_port(), f"die:weights:{status}")
    rig.boot()
    ended = await rig.run("llm.service")
    assert (ended.active, ended.exec_code, ended.exec_status) == (active, "exited", status)


async def test_orphans_of_an_engine_hold_its_port_no_longer_than_its_unit(rig: Rig) -> None:
    port = free_port()
    engine(rig, port, "orphans", enabled=True, stop_timeout_s=1)
    rig.boot()
    await until_healthy(port)
    processes = await rig.manager.processes("llm.service")
    await rig.manager.stop("llm.service")
    await rig.down("llm.service")
    assert not any(is_alive(process.pid) for process in processes)
    assert await rig.manager.port_owners(port) == []
