"""A start of the rehearsal engine: lines, stages, processes, refusals."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specd.rehearsal.archive import build
from tests.contract.rehearsal import REPO, is_alive, started, wait_until

NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4})
PREFIX = r"\((APIServer|EngineCore|Worker) pid=\d+\) (INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[[\w.]+:\d+\] "

# In the order of a real start; each must stand on a line of the process named.
MILESTONES = [
    ("APIServer", r" version 0\.32\.0"),
    ("APIServer", r"non-default args: \{'model_tag': "),
    ("APIServer", r"Resolved architecture: \w+"),
    ("APIServer", r"Using max model len \d+"),
    ("EngineCore", r"Initializing a V1 LLM engine \(v0\.32\.0\S*\) with config: .*speculative_config="),
    ("Worker", r"world_size=1 rank=0 local_rank=0 distributed_init_method=\S+ backend=nccl"),
    ("Worker", r"Starting to load model .*\.\.\.$"),
    ("Worker", r"Checkpoint size: [\d.]+ GiB\. Available RAM: [\d.]+ GiB\."),
    ("Worker", r"Loading weights took [\d.]+ seconds"),
    ("Worker", r"Model loading took [\d.]+ GiB memory and [\d.]+ seconds"),
    ("Worker", r"Dynamo bytecode transform time: [\d.]+ s"),
    ("Worker", r"Compiling a graph for compile range \(1, 8192\) takes [\d.]+ s"),
    ("Worker", r"torch\.compile took [\d.]+ s in total"),
    ("Worker", r"Profiling CUDA graph memory: PIECEWISE=11 \(largest=64\), FULL=7 \(largest=32\)"),
    ("Worker", r"Available KV cache memory: [\d.]+ GiB"),
    ("EngineCore", r"KV cache size: [\d,]+ tokens, Maximum concurrency for [\d,]+ tokens per request: [\d.]+x"),
    ("Worker", r"Graph capturing finished in \d+ secs, took [\d.]+ GiB"),
    ("EngineCore", r"init engine \(.*\) took [\d.]+ s \(compilation: [\d.]+ s\)"),
    ("APIServer", r"Supported tasks: \['generate'\]"),
    ("APIServer", r"Starting vLLM server on http://127\.0\.0\.1:\d+"),
]


def test_start_up_lines_in_order(tmp_path: Path) -> None:
    with started(tmp_path) as engine:
        engine.wait_ready()
        lines = [line.rstrip("\r") for line in engine.log().split("\n")]
        position = 0
        for process, pattern in MILESTONES:
            while not (lines[position].startswith(f"({process} pid=") and re.search(pattern, lines[position])):
                position += 1
                assert position < len(lines), f"{process}: {pattern} not found in order"
        assert all(re.match(PREFIX, line) for line in lines if line and not line.startswith("INFO:     "))
        errors = engine.errors()
    shards = re.findall(r"\rLoading safetensors checkpoint shards: +(\d+)% Completed \| (\d+)/4 \[[^]]*\]\n", errors)
    assert [int(done) for _, done in shards] == [0, 1, 2, 3, 4]
    captures = [line for line in errors.split("\n") if "Capturing CUDA graphs" in line]
    assert [line.count("\rCapturing CUDA graphs") for line in captures] == [12, 8]
    assert "INFO:     Application startup complete.\n" in errors


def test_speculation_shows_in_the_log(tmp_path: Path) -> None:
    with started(tmp_path, "--speculative-config", NGRAM) as engine:
        log = engine.wait_ready().log()
    assert "speculative_config=SpeculativeConfig(method='ngram', model=None, num_spec_tokens=5)" in log
    assert "'speculative_config': {'method': 'ngram', 'num_speculative_tokens': 5, 'prompt_lookup_max': 4}" in log
    assert "Async scheduling not supported with ngram-based speculative decoding" in log
    assert "PIECEWISE=41 (largest=384), FULL=25" in log


def test_eager_neither_compiles_nor_captures(tmp_path: Path) -> None:
    with started(tmp_path, "--enforce-eager") as engine:
        text = engine.wait_ready().log() + engine.errors()
    assert "speculative_config=None" in text
    assert not re.search(r"torch\.compile|Captur|CUDA graph", text)


def test_bars_with_returns_end_in_one_newline(tmp_path: Path) -> None:
    with started(tmp_path, script={"bar": "cr", "shards": 3}) as engine:
        errors = engine.wait_ready().errors()
    bar = next(line for line in errors.split("\n") if "shards" in line)
    assert bar.count("\rLoading safetensors checkpoint shards") == 4


def test_silent_load_still_reads_and_grows(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    with (model / "model-00001.safetensors").open("wb") as file:
        file.truncate(32 << 20)
    script = {"silent_loading": True, "weights_mib": 48, "read_mib": 32, "stages": {"weights": 1.0, "engine": 0.1}}
    with started(tmp_path, model=str(model), script=script) as engine:
        wait_until(lambda: "Starting to load model" in engine.log(), 5)
        worker = engine.children()[-1]
        wait_until(lambda: _bytes_read(worker) > 4 << 20, 5)
        early = (_bytes_read(worker), _resident(worker))
        wait_until(lambda: _bytes_read(worker) >= 30 << 20, 5)
        assert _resident(worker) > early[1] + (16 << 20)
        assert "shards" not in engine.errors()


def _bytes_read(pid: int) -> int:
    return int(re.findall(r"rchar: (\d+)", Path(f"/proc/{pid}/io").read_text())[0])


def _resident(pid: int) -> int:
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) * 1024


def test_connections_are_refused_until_ready(tmp_path: Path) -> None:
    with started(tmp_path, script={"stages": {"weights": 0.5}}) as engine:
        wait_until(lambda: "Starting to load model" in engine.log(), 5)
        with socket.socket() as sock:
            assert sock.connect_ex(("127.0.0.1", engine.port)) == 111
        engine.wait_ready()
        assert "Application startup complete." in engine.errors()


def test_processes_are_three_and_named(tmp_path: Path) -> None:
    with started(tmp_path) as engine:
        engine.wait_ready()
        names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in engine.children()]
    assert names == ["VLLM::EngineCor", "VLLM::Worker"]


def test_tensor_parallel_starts_a_worker_each(tmp_path: Path) -> None:
    with started(tmp_path, "-tp", "2") as engine:
        log = engine.wait_ready().log()
        assert len(engine.children()) == 3
    assert {"(Worker_TP0", "(Worker_TP1"} <= {line.split(" ")[0] for line in log.splitlines()}


def test_a_whole_start_is_cheap(tmp_path: Path) -> None:
    with started(tmp_path) as engine:
        engine.wait_ready()
        ticks = 0
        for pid in [engine.pid, *engine.children()]:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    # Typically 0.12 s; a loaded machine is given room, a heavy import is not.
    assert ticks / os.sysconf("SC_CLK_TCK") < 0.4


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["--no-such-flag", "1"], 2, "vllm: error: unrecognized arguments: --no-such-flag 1\n"),
        (["--max-model-len", "abc"], 2, "invalid human_readable_int_or_auto value: 'abc'\n"),
        (["--speculative-config", '{"method":"ngram",'], 2, "argument --speculative-config/-sc: Value {"),
        (["-sc", '{"method":"ngram","num_speculative_tokens":5,"bogus":1}'], 1, "bogus\n  Unexpected keyword argument"),
        (["-sc", '{"method":"ngram","num_speculative_tokens":0}'], 1, "Input should be greater than 0"),
    ],
)
def test_refused_command_lines(tmp_path: Path, flags: list[str], status: int, words: str) -> None:
    with started(tmp_path, *flags) as engine:
        assert engine.wait_exit() == status
        assert words in engine.errors()
        assert ("Traceback (most recent call last):" in engine.errors()) == (status == 1)
        assert ("non-default args" in engine.log()) == (status == 1)


def test_a_missing_model_directory(tmp_path: Path) -> None:
    with started(tmp_path, model="/no/such/model") as engine:
        assert engine.wait_exit() == 1
        assert "HFValidationError: Repo id must be in the form" in engine.errors()
    with started(tmp_path, model="/no/such/model", script={"model_must_exist": False}) as engine:
        engine.wait_ready()


def test_a_length_beyond_the_models(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 4096, "architectures": ["LlamaForCausalLM"]}')
    with started(tmp_path, "--max-model-len", "8192", model=str(tmp_path)) as engine:
        assert engine.wait_exit() == 1
        assert "User-specified max_model_len (8192) is greater than the derived max_model_len" in engine.errors()
    with started(tmp_path, model=str(tmp_path)) as engine:
        assert engine.wait_ready().ask("/v1/models")["data"][0]["max_model_len"] == 4096
        assert "Resolved architecture: LlamaForCausalLM" in engine.log()


def test_a_taken_port_shows_before_any_load(tmp_path: Path) -> None:
    with started(tmp_path) as first:
        first.wait_ready()
        (tmp_path / "second").mkdir()
        with started(tmp_path / "second", "--port", str(first.port)) as second:
            assert second.wait_exit() == 1
            assert second.errors().endswith("OSError: [Errno 98] Address already in use\n")
            assert "EngineCore" not in second.log()


def test_an_unusable_script_is_refused(tmp_path: Path) -> None:
    with started(tmp_path, fault="dye:weights") as engine:
        assert engine.wait_exit() == 2
        assert "did you mean 'die'?" in engine.errors()


def _run(*argv: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "specd.rehearsal", *argv]
    return subprocess.run(program, cwd=REPO, capture_output=True, text=True, timeout=20, check=False)


def test_check_accepts_without_starting() -> None:
    done = _run("check", "--", "serve", "acme/moe", "--served-model-name", "kimi", "-sc", NGRAM)
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, answer["ok"], answer["exit_code"]) == (0, True, 0)
    assert answer["served_model_name"] == ["kimi"]
    assert answer["speculative"] == {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_min": 4,
        "prompt_lookup_max": 4,
        "model": None,
    }


@pytest.mark.parametrize(
    ("argv", "status", "stage", "words"),
    [
        (["serve", "m", "--no-such-flag"], 2, "argparse", "vllm: error: unrecognized arguments: --no-such-flag"),
        (["m", "--dtype", "foo"], 2, "argparse", "argument --dtype: invalid choice: 'foo'"),
        (["serve", "m", "-sc", '{"method":"bogus"}'], 1, "create_engine_config", "Input should be 'ngram'"),
        (["--model", "/no/such"], 1, "create_engine_config", "Repo id must be in the form"),
        (["-m", "vllm.entrypoints.openai.api_server", "--model", "m"], 0, "create_engine_config", ""),
    ],
)
def test_check_has_the_exit_code_of_a_start(argv: list[str], status: int, stage: str, words: str) -> None:
    done = _run("check", "--", *argv)
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, answer["exit_code"], answer["stage"], answer["ok"]) == (status, status, stage, status == 0)
    assert words in answer["error"]
    assert "usage:" not in answer["error"]


def test_check_reports_an_unusable_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECD_REHEARSAL_FAULT", "dye")
    done = _run("check", "--", "serve", "m")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["stage"], answer["ok"]) == (2, "script", False)


def test_version_and_usage() -> None:
    assert _run("--version").stdout == "0.32.0+rehearsal\n"
    assert _run().returncode == 2


def _pythons() -> list[str]:
    """Return this interpreter and the oldest and newest others (3.9 or newer) that are installed."""
    found: dict[tuple[int, int], str] = {}
    candidates = [str(path) for path in Path.home().glob(".pyenv/versions/3.*/bin/python3")]
    candidates += [path for minor in range(9, 16) if (path := shutil.which(f"python3.{minor}"))]
    for path in candidates:
        probe = [path, "-c", "import sys; print(*sys.version_info[:2])"]
        done = subprocess.run(probe, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            major, minor = map(int, done.stdout.split())
            found[major, minor] = path
    usable = [found[version] for version in sorted(found) if version >= (3, 9) and version != sys.version_info[:2]]
    return [sys.executable, *dict.fromkeys([*usable[:1], *usable[-1:]])]


@pytest.mark.parametrize("python", _pythons())
def test_archive_runs_alone(tmp_path: Path, python: str) -> None:
    archive = tmp_path / "rehearsal.pyz"
    archive.write_bytes(build())
    with started(tmp_path, program=(python, "-I", str(archive), "serve")) as engine:
        engine.wait_ready()
        assert engine.ask("/v1/completions", {"prompt": "hello", "max_tokens": 3})["usage"]["completion_tokens"] == 3
        engine.process.terminate()
        assert engine.wait_exit() == 0
        assert "Traceback" not in engine.errors()


def test_archive_is_reproducible() -> None:
    assert build() == build()


def test_module_form_serves(tmp_path: Path) -> None:
    program = (sys.executable, "-m", "specd.rehearsal")
    with started(tmp_path, "--model", "acme/moe", model="", program=program) as engine:
        assert engine.wait_ready().ask("/v1/models")["data"][0]["id"] == "acme/moe"


def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with started(tmp_path, "--uds", str(path)) as engine:
        wait_until(lambda: "startup complete" in engine.errors(), 10)
        with socket.socket(socket.AF_UNIX) as sock:
            wait_until(lambda: sock.connect_ex(str(path)) == 0, 5)
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert sock.recv(100).startswith(b"HTTP/1.1 200 OK")


def test_sigterm_in_mid_load_is_swallowed_once(tmp_path: Path) -> None:
    with started(tmp_path, script={"stages": {"weights": 0.8}}) as engine:
        wait_until(lambda: "Starting to load model" in engine.log(), 5)
        engine.process.terminate()
        engine.wait_ready()
        assert engine.request("/health")[0] == 200


def test_second_sigterm_ends_the_load(tmp_path: Path) -> None:
    with started(tmp_path, script={"stages": {"weights": 30}}) as engine:
        wait_until(lambda: "Starting to load model" in engine.log(), 5)
        children = engine.children()
        engine.process.terminate()
        time.sleep(0.1)
        engine.process.terminate()
        assert engine.wait_exit(3) == -signal.SIGINT
        wait_until(lambda: not any(map(is_alive, children)), 2)


def test_sigterm_to_the_group_in_mid_load_leaves_the_api_process(tmp_path: Path) -> None:
    with started(tmp_path, script={"stages": {"weights": 30}}) as engine:
        wait_until(lambda: "Starting to load model" in engine.log(), 5)
        children = engine.children()
        os.killpg(engine.pid, signal.SIGTERM)
        wait_until(lambda: not any(map(is_alive, children)), 2)
        with pytest.raises(subprocess.TimeoutExpired):
            engine.wait_exit(0.4)


@pytest.mark.parametrize(("victim", "status"), [(0, -9), (1, 1)])
def test_kill_9_of_engine_or_worker_in_mid_load(tmp_path: Path, victim: int, status: int) -> None:
    with started(tmp_path, script={"stages": {"weights": 30}}) as engine:
        wait_until(lambda: "Starting to load model" in engine.log(), 5)
        children = engine.children()
        os.kill(children[victim], signal.SIGKILL)
        assert engine.wait_exit(3) == 1
        assert engine.errors().endswith(f"Failed core proc(s): {{'EngineCore': {status}}}\n")
        wait_until(lambda: not any(map(is_alive, children)), 2)


def test_sigterm_is_obeyed_where_the_script_says_so(tmp_path: Path) -> None:
    with started(tmp_path, script={"swallow_sigterm": False, "stages": {"weights": 30}}) as engine:
        wait_until(lambda: "Starting to load model" in engine.log(), 5)
        engine.process.terminate()
        assert engine.wait_exit(3) == -signal.SIGINT
