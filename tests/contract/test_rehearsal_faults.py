"""Every fault of the rehearsal engine, seen from outside."""

import concurrent.futures
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.contract.rehearsal import is_alive, started, text_of, wait_until

GENERIC = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}\n"
)
CAUSES = {
    "engine": "RuntimeError: NCCL error",
    "weights": "RuntimeError: Cannot find any model weights with `acme/moe`",
    "compile": "torch._inductor.exc.InductorError",
    "capture": "torch.AcceleratorError: CUDA error: an illegal memory access",
}


@pytest.mark.parametrize(("stage", "status"), [("engine", 1), ("weights", 0), ("compile", 137), ("capture", 0)])
def test_die_in_a_stage_of_the_worker(tmp_path: Path, stage: str, status: int) -> None:
    with started(tmp_path, fault=f"die:{stage}:{status}") as engine:
        assert engine.wait_exit() == status
        log, errors = engine.log(), engine.errors()
    failed = [line for line in log.splitlines() if " ERROR " in line]
    assert failed[0].startswith("(Worker pid=")
    assert failed[0].endswith("WorkerProc failed to start.")
    assert any(CAUSES[stage] in line and line.startswith("(Worker pid=") for line in failed)
    assert any("EngineCore failed to start." in line for line in failed)
    assert errors.endswith(GENERIC)
    assert CAUSES[stage] not in errors


@pytest.mark.parametrize("stage", ["import", "config", "startup"])
def test_die_in_a_stage_of_the_api_process(tmp_path: Path, stage: str) -> None:
    with started(tmp_path, fault=f"die:{stage}:3") as engine:
        assert engine.wait_exit() == 3
        assert "Traceback (most recent call last):" in engine.errors()
        assert ("EngineCore" in engine.log()) == (stage == "startup")


def test_die_leaves_the_lines_before_it(tmp_path: Path) -> None:
    with started(tmp_path, fault="die:weights") as engine:
        assert engine.wait_exit() == 1
        assert " 50% Completed | 2/4 " in engine.errors()
        assert "75% Completed" not in engine.errors()


@pytest.mark.parametrize("stage", ["import", "config", "engine", "weights", "compile", "capture", "startup"])
def test_hang_in_a_stage(tmp_path: Path, stage: str) -> None:
    with started(tmp_path, fault=f"hang:{stage}") as engine:
        before = ""
        while (now := engine.log() + engine.errors() + str(_activity(engine.children()))) != before or not now:
            before = now
            time.sleep(0.25)
        assert engine.process.poll() is None
        assert not engine.accepts()
        # Nothing moves any more: no line, no byte read, no processor time.
        time.sleep(0.2)
        assert engine.log() + engine.errors() + str(_activity(engine.children())) == now


def _activity(pids: list[int]) -> list[tuple[str, str]]:
    found = []
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        read = re.findall(r"rchar: (\d+)", Path(f"/proc/{pid}/io").read_text())[0]
        found.append((fields[11] + fields[12], read))
    return found


@pytest.mark.parametrize("stage", ["weights", "capture", "startup"])
def test_out_of_memory_is_said_and_the_process_stays(tmp_path: Path, stage: str) -> None:
    with started(tmp_path, fault=f"oom:{stage}") as engine:
        wait_until(lambda: "torch.OutOfMemoryError: CUDA out of memory." in engine.log() + engine.errors(), 10)
        with pytest.raises(subprocess.TimeoutExpired):
            engine.wait_exit(0.3)
        assert not engine.accepts()


def test_out_of_memory_while_serving(tmp_path: Path) -> None:
    with started(tmp_path, fault="oom:serving:5") as engine:
        engine.wait_ready()
        assert _stalls_after(engine.port, 5)
        assert "torch.OutOfMemoryError" in engine.log()
        assert engine.request("/health")[0] == 200


def test_never_ready(tmp_path: Path) -> None:
    with started(tmp_path, fault="never-ready") as engine:
        wait_until(lambda: "Supported tasks" in engine.log(), 10)
        with pytest.raises(subprocess.TimeoutExpired):
            engine.wait_exit(0.4)
        assert not engine.accepts()
        assert "startup complete" not in engine.errors()


def test_health_but_no_token(tmp_path: Path) -> None:
    with started(tmp_path, fault="no-token") as engine:
        engine.wait_ready()
        assert engine.request("/health")[0] == 200
        assert _stalls_after(engine.port, 0)


@pytest.mark.parametrize("limit", [0, 7])
def test_hang_while_serving(tmp_path: Path, limit: int) -> None:
    with started(tmp_path, fault=f"hang:serving:{limit}") as engine:
        engine.wait_ready()
        assert _stalls_after(engine.port, limit)
        assert engine.request("/health")[0] == 200


def _stalls_after(port: int, tokens: int) -> bool:
    """Stream until nothing comes for 0.3 s; tells whether headers and exactly that many token chunks came."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 50}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    response = connection.getresponse()
    assert response.status == 200
    assert connection.sock is not None
    connection.sock.settimeout(0.3)
    lines: list[bytes] = []
    is_silent = False
    try:
        while line := response.readline():
            lines.append(line)
    except TimeoutError:
        is_silent = True
    connection.close()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
    return is_silent and sum("role" not in chunk["choices"][0]["delta"] for chunk in chunks) == tokens


def test_error_in_a_stream(tmp_path: Path) -> None:
    with started(tmp_path, fault="error-in-stream:4") as engine:
        engine.wait_ready()
        events = [event for _, event in engine.stream({"max_tokens": 20})]
        assert events[-1] == "[DONE]"
        assert events[-2]["error"]["type"] == "InternalServerError"
        assert len(events) == 1 + 4 + 2
        status, _ = engine.request("/v1/completions", {"prompt": "x", "max_tokens": 20})
        assert status == 500
        assert engine.metric("vllm:num_requests_running") == 0


def test_a_stream_is_cut(tmp_path: Path) -> None:
    with started(tmp_path, fault="cut-stream:2") as engine:
        engine.wait_ready()
        events = [event for _, event in engine.stream({"max_tokens": 20})]
        assert len(events) == 1 + 2
        assert "[DONE]" not in events
        assert engine.request("/health")[0] == 200


def test_slow_stop(tmp_path: Path) -> None:
    with started(tmp_path, fault="slow-stop:0.8") as engine:
        engine.wait_ready()
        began = time.monotonic()
        engine.process.terminate()
        assert engine.wait_exit() == 0
        assert 0.8 <= time.monotonic() - began < 1.6


@pytest.mark.parametrize("is_loading", [False, True])
def test_sigterm_is_ignored(tmp_path: Path, is_loading: bool) -> None:
    with started(tmp_path, fault="ignore-sigterm") as engine:
        if is_loading:
            wait_until(lambda: "Starting to load" in engine.log(), 5)
        else:
            engine.wait_ready()
        for _ in range(3):
            os.killpg(engine.pid, signal.SIGTERM)
            time.sleep(0.05)
        engine.wait_ready()
        assert all(map(is_alive, engine.children()))
        assert engine.request("/health")[0] == 200


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_orphans_live_on(tmp_path: Path, signum: signal.Signals) -> None:
    with started(tmp_path, fault="orphans") as engine:
        engine.wait_ready()
        children = engine.children()
        os.kill(engine.pid, signum)
        engine.wait_exit()
        time.sleep(0.3)
        assert len(children) == 2
        assert all(map(is_alive, children))
        # They hold memory, not the port.
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", engine.port))
        for pid in children:
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not any(map(is_alive, children)), 2)


@pytest.mark.parametrize(("fault", "status"), [("die-serving:0.3", 0), ("die-serving:0.3:9", 9), ("die:serving:4", 4)])
def test_death_while_serving(tmp_path: Path, fault: str, status: int) -> None:
    with started(tmp_path, fault=fault) as engine:
        wait_until(lambda: "startup complete" in engine.errors(), 10)
        assert engine.wait_exit() == status
        log = engine.log()
    errors = [line for line in log.splitlines() if " ERROR " in line]
    assert errors[0].startswith("(Worker pid=")
    assert "EngineCore encountered a fatal error." in log
    assert log.index("torch.AcceleratorError") < log.index("EngineDeadError")


def test_a_crowd_kills_the_engine(tmp_path: Path) -> None:
    with started(tmp_path, fault="crash-on-load:3") as engine:
        engine.wait_ready()
        body = {"max_tokens": 3000, "ignore_eos": True}
        assert engine.stream({"max_tokens": 3})[-1][1] == "[DONE]"
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            streams = list(pool.map(lambda _: engine.stream(body), range(3)))
        assert all(events[-2][1]["error"]["code"] == 500 for events in streams)
        assert engine.wait_exit() == 0


@pytest.mark.parametrize("kind", ["loop", "replacement"])
def test_garbage(tmp_path: Path, kind: str) -> None:
    with started(tmp_path, fault=f"garbage:{kind}") as engine:
        words = text_of(engine.wait_ready().stream({"max_tokens": 40}))
        assert words.count("�") == 40 if kind == "replacement" else len(set(words.split())) == 1


def test_http_500(tmp_path: Path) -> None:
    with started(tmp_path, fault="http-500") as engine:
        engine.wait_ready()
        assert engine.request("/health")[0] == 200
        status, body = engine.request("/v1/completions", {"prompt": "x"})
        assert (status, json.loads(body)["error"]["code"]) == (500, 500)


def test_wrong_model_name(tmp_path: Path) -> None:
    with started(tmp_path, "--served-model-name", "kimi", fault="wrong-model-name") as engine:
        assert engine.wait_ready().ask("/v1/models")["data"][0]["id"] == "kimi-other"
        assert engine.request("/v1/completions", {"model": "kimi", "prompt": "x"})[0] == 404


def test_no_usage(tmp_path: Path) -> None:
    with started(tmp_path, fault="no-usage") as engine:
        engine.wait_ready()
        events = [event for _, event in engine.stream({"max_tokens": 5, "stream_options": {"include_usage": True}})]
        assert not any("usage" in event for event in events[:-1])
        assert "usage" not in engine.ask("/v1/completions", {"prompt": "x", "max_tokens": 2})


def test_slow_first_request(tmp_path: Path) -> None:
    with started(tmp_path, fault="slow-first:0.6") as engine:
        engine.wait_ready()
        seconds = []
        for _ in range(2):
            began = time.monotonic()
            engine.ask("/v1/completions", {"prompt": "x", "max_tokens": 3})
            seconds.append(time.monotonic() - began)
        assert seconds[0] > 0.6 > 0.3 > seconds[1]


@pytest.mark.parametrize("variant", ["spec-inactive", "spec-inactive:silent"])
def test_speculation_that_never_drafts(tmp_path: Path, variant: str) -> None:
    flags = ["-sc", '{"method": "ngram", "num_speculative_tokens": 5}']
    with started(tmp_path, *flags, fault=variant) as engine:
        engine.wait_ready()
        engine.ask("/v1/completions", {"prompt": "x", "max_tokens": 50, "ignore_eos": True})
        drafts = engine.metric("vllm:spec_decode_num_drafts_total")
        is_silent = variant.endswith("silent")
        assert drafts is None if is_silent else drafts == 0
        assert ("speculative_config=None" in engine.log()) == is_silent
        assert engine.metric("vllm:iteration_tokens_total_count") == 50
