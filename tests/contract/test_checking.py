"""The checks of a planned restart, on this machine's own files and with programs that stand in for tools."""

import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specd.checking import Plan
from specd.checking.accelerator import gpu_check
from specd.checking.draft import draft_checks
from specd.checking.machine import machine_checks
from specd.checking.outage import outage_checks
from specd.checking.unit import unit_checks
from specd.checks import CheckStatus
from specd.engines.model_files import check_model
from specd.engines.server import read_server
from specd.hosts import Host, open_host
from specd.services.service import Process, UnitFacts
from specd.settings import HostSettings, ServiceSettings


class Manager:
    """Just the processes of the service."""

    async def processes(self, unit: str) -> list[Process]:
        return [Process(pid=100, argv=("vllm",), rss_bytes=1, cpu_s=1.0)]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return open_host(HostSettings(name="here"), tmp_path)


def model(path: Path, **config: Any) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(
        json.dumps({"architectures": ["A"], "vocab_size": 100, "hidden_size": 8, **config})
    )
    (path / "tokenizer.json").write_text(json.dumps({"model": config.get("tokens", "same")}))
    return str(path)


async def plan(host: Host, words: list[str], extra: Mapping[str, str] | None = None, **more: Any) -> Plan:
    argv = ["vllm", "serve", *words]
    server = await read_server(host, argv, {}, "/")
    assert server is not None
    facts = UnitFacts(
        name="llm.service", argv=tuple(argv), environment={}, user="", working_directory="/", enabled="enabled",
        files={}, text="", fragment_path="/etc/systemd/system/llm.service", extra=extra or {},
    )  # fmt: skip
    service = ServiceSettings(name="llm", host="here", unit="llm.service")
    return replace(Plan(host=host, manager=Manager(), service=service, facts=facts, server=server), **more)  # type: ignore[arg-type]


def speculative(**config: Any) -> list[str]:
    return ["--speculative-config", json.dumps({"num_speculative_tokens": 2, **config})]


@pytest.mark.parametrize(
    ("target", "draft", "method", "status", "words"),
    [
        ({}, {}, "draft_model", "passed", "vocabulary 100"),
        ({}, {"vocab_size": 99}, "draft_model", "failed", "100 tokens, the draft one of 99"),
        ({}, {"vocab_size": 99, "draft_vocab_size": 99}, "eagle3", "passed", ""),
        ({}, {"hidden_size": 9}, "eagle3", "failed", "states of 9, the target's are 8"),
        ({"text_config": {"vocab_size": 7}}, {"vocab_size": 7}, "draft_model", "passed", "vocabulary 7"),
        ({"max_position_embeddings": 4096}, {"max_position_embeddings": 512}, "draft_model", "warning", "made for 512"),
    ],
)
async def test_a_draft_against_its_target(
    host: Host, tmp_path: Path, target: dict[str, Any], draft: dict[str, Any], method: str, status: str, words: str
) -> None:
    paths = model(tmp_path / "target", **target), model(tmp_path / "draft", **draft)
    found = await draft_checks(await plan(host, [paths[0], *speculative(method=method, model=paths[1])]))
    assert found[0].status.value == status, found[0].evidence
    assert words in found[0].evidence


async def test_tokenizers_and_own_layers(host: Host, tmp_path: Path) -> None:
    target, draft = model(tmp_path / "t"), model(tmp_path / "d", tokens="others")
    found = await draft_checks(await plan(host, [target, *speculative(method="draft_model", model=draft)]))
    assert [(c.name, c.status) for c in found][1] == ("draft.tokenizer", CheckStatus.WARNING)
    (layers,) = await draft_checks(await plan(host, [target, *speculative(method="mtp")]))
    assert layers.status is CheckStatus.FAILED
    model(tmp_path / "t", num_nextn_predict_layers=1)
    (layers,) = await draft_checks(await plan(host, [target, *speculative(method="mtp")]))
    assert layers.status is CheckStatus.PASSED
    assert await draft_checks(await plan(host, [target, *speculative(method="ngram")])) == []


def safetensors(path: Path, size: int, *, cut: int = 0) -> None:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    content = struct.pack("<Q", len(header)) + header + b"x" * size
    path.write_bytes(content[: len(content) - cut])


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize(("cut", "words"), [(0, ""), (1, "is cut: it has"), (1040, "inside its header")])
async def test_a_cut_weight_file_is_found(host: Host, tmp_path: Path, has_index: bool, cut: int, words: str) -> None:
    path = tmp_path / "m"
    model(path)
    names = ["model-1.safetensors", "model-2.safetensors"]
    for name in names:
        safetensors(path / name, 1000, cut=cut if name == names[1] else 0)
    if has_index:
        index = {"metadata": {"total_size": 2000 + 200}, "weight_map": {"a": names[0], "b": names[1]}}
        if not cut:
            index["metadata"] = {"total_size": 2000}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = await check_model(host, "engine.model", str(path), "/")
    assert (found.status is CheckStatus.FAILED) == bool(words), found.evidence
    assert words in found.evidence


def nvidia_smi(directory: Path, monkeypatch: pytest.MonkeyPatch, processes: str) -> None:
    tool = directory / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\ncase $1 in *compute-apps*) printf '%b' '" + processes + "' ;; "
        "*) printf '0, u0, 9000, 10000\\n1, u1, 9000, 10000\\n' ;; esac\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("processes", "environment", "status", "words"),
    [
        ("u0, 100, 9000, vllm\\nu1, 100, 9000, vllm\\n", {}, "passed", "2 GPUs, 20000 MiB"),
        ("u0, 100, 8900, vllm\\nu0, 7, 300, python\\n", {}, "warning", "GPU 0: pid 7 (python) holds 300 MiB"),
        ("u1, 7, 2000, train\\n", {}, "failed", "GPU 1: 8000 of 10000 MiB would be free"),
        ("u1, 7, 2000, train\\n", {"CUDA_VISIBLE_DEVICES": "0"}, "passed", "1 GPUs, 10000 MiB"),
    ],
)
async def test_who_holds_the_gpus(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    processes: str,
    environment: dict[str, str],
    status: str,
    words: str,
) -> None:
    nvidia_smi(tmp_path, monkeypatch, processes)
    host = open_host(HostSettings(name="here"), tmp_path)
    (found,) = await gpu_check(await plan(host, ["/m"], environment=environment))
    assert found.status.value == status, found.evidence
    assert words in found.evidence


async def test_the_machine_is_read_by_one_command(host: Host, tmp_path: Path) -> None:
    path = model(tmp_path / "m")
    found = {check.name: check for check in await machine_checks(await plan(host, [path, "-tp", "2"]))}
    assert set(found) == {"host.clock", "host.memory", "host.shm", "host.compile-cache"}
    assert found["host.clock"].status is CheckStatus.PASSED
    assert "GiB available" in found["host.memory"].evidence


@pytest.mark.parametrize(
    ("extra", "name", "status"),
    [
        ({}, "unit.start", "passed"),
        ({"Type": "notify", "TimeoutStartUSec": "90000000"}, "unit.start", "warning"),
        ({"Type": "notify", "TimeoutStartUSec": "infinity"}, "unit.start", "passed"),
        ({"Type": "notify", "WatchdogUSec": "60000000"}, "unit.start", "warning"),
        ({"Type": "exec", "WatchdogUSec": "60000000"}, "unit.start", "passed"),
        ({"KillMode": "process", "TimeoutStopUSec": "1000000"}, "unit.stop", "warning"),
        ({"TimeoutStopUSec": "infinity"}, "unit.stop", "warning"),
        ({"TimeoutStopUSec": "30000000"}, "unit.stop", "passed"),
        ({"Restart": "no"}, "unit.restarts", "warning"),
        ({"Restart": "always"}, "unit.restarts", "passed"),
    ],
)
async def test_the_units_own_settings(host: Host, extra: dict[str, str], name: str, status: str) -> None:
    found = {check.name: check for check in unit_checks(await plan(host, ["/m"], extra))}
    assert found[name].status.value == status, found[name].evidence


async def test_the_expected_outage_against_deadlines_and_window(host: Host) -> None:
    expected = {"loading": 1800.0, "benchmark": 300.0, "rollback": 1800.0}
    meant = await plan(host, ["/m"], expected_s=expected)
    (found,) = outage_checks(meant)
    assert found.status is CheckStatus.PASSED
    assert "1 h 05 min" in found.evidence
    (found,) = outage_checks(replace(meant, expected_s={**expected, "loading": 9000.0}))
    assert "loading is expected to take" in found.evidence
    always = replace(meant.service, windows=("00:00-23:59", "23:00-01:00"))
    assert [check.status.value for check in outage_checks(replace(meant, service=always))] == ["passed", "passed"]
    assert outage_checks(await plan(host, ["/m"]))[0].status is CheckStatus.UNCHECKED
