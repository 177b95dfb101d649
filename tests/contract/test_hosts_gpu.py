"""GPU memory as a program called nvidia-smi prints it."""

import os
import shutil
from pathlib import Path

import pytest

from specd.hosts import open_host
from specd.hosts.gpu import GpuMemory, gpu_memory
from specd.settings import HostSettings

GPUS = "0, GPU-aaaa, 70123, 81559\n1, GPU-bbbb, 4, 81559\n"
USERS = "GPU-aaaa, 4242, 70000, /usr/bin/python3 -m vllm, serve\nGPU-aaaa, 4243, [N/A], python\n"
SCRIPT = """#!/bin/sh
case $1 in
--query-gpu=*) {gpus} ;;
--query-compute-apps=*) cat {directory}/users ;;
esac
"""


def install(directory: Path, monkeypatch: pytest.MonkeyPatch, gpus: str = "", users: str = USERS) -> None:
    """Put a program into PATH that prints this."""
    (directory / "gpus").write_text(GPUS)
    (directory / "users").write_text(users)
    program = directory / "nvidia-smi"
    program.write_text(SCRIPT.format(gpus=gpus or f"cat {directory}/gpus", directory=directory))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


async def memory(tmp_path: Path) -> list[GpuMemory] | None:
    return await gpu_memory(open_host(HostSettings(name="here"), tmp_path))


async def test_memory_and_its_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    assert await memory(tmp_path) == [
        GpuMemory(0, 70123, 81559, ((4242, 70000, "/usr/bin/python3 -m vllm, serve"), (4243, None, "python"))),
        GpuMemory(1, 4, 81559, ()),
    ]


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has one")
async def test_absent_is_unknown(tmp_path: Path) -> None:
    assert await memory(tmp_path) is None


@pytest.mark.parametrize(
    "gpus",
    [
        "echo no devices were found; exit 6",
        "exit 0",
        "echo '0, GPU-a, [N/A], [N/A]'",
        "echo '[GPU is lost]'",
        "kill $$",
    ],
)
async def test_trouble_is_unknown_never_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: str) -> None:
    install(tmp_path, monkeypatch, gpus)
    assert await memory(tmp_path) is None
