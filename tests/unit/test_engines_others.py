"""SGLang, llama.cpp and the rehearsal engine: command lines, logs, failures; and the list of engines."""

import pytest

from specd.engines import ENGINES, by_name, recognise
from specd.engines.engine import FlagValue, Stage
from specd.errors import EngineError

SGLANG = ["/opt/sglang/bin/python", "-m", "sglang.launch_server", "--model-path", "/m", "--tp", "8", "--port", "30001"]
LLAMA = ["/usr/local/bin/llama-server", "-m", "/m/x.gguf", "-c", "8192", "-ngl", "-1", "--alias", "x"]
ARCHIVE = ["/usr/bin/python3", "/var/lib/specd/rehearsal.pyz", "serve", "/m", "--port", "8002"]


def test_names_are_unique_and_found() -> None:
    assert [engine.name for engine in ENGINES] == ["rehearsal", "vllm", "sglang", "llamacpp"]
    assert all(by_name(engine.name) is engine for engine in ENGINES)
    with pytest.raises(EngineError, match="known: rehearsal"):
        by_name("tgi")


@pytest.mark.parametrize(
    ("argv", "engine", "at", "model", "served", "port"),
    [
        (SGLANG, "sglang", 3, "/m", "/m", 30001),
        (["sglang", "serve", "--model=/m", "--served-model-name", "k"], "sglang", 2, "/m", "k", 30000),
        (["numactl", "-N", "0", *LLAMA], "llamacpp", 4, "/m/x.gguf", "x", 8080),
        (["llama-server", "-hf", "org/repo:Q4"], "llamacpp", 1, "org/repo:Q4", "org/repo:Q4", 8080),
        (ARCHIVE, "rehearsal", 3, "/m", "/m", 8002),
        (["python", "-m", "specd.rehearsal", "--model", "/m"], "rehearsal", 3, "/m", "/m", 8000),
        (
            ["python", "r/specd-rehearsal.pyz", "-m", "vllm.entrypoints.openai.api_server", "--model", "/m"],
            "rehearsal",
            4,
            "/m",
            "/m",
            8000,
        ),
        (["/srv/rehearsal.pyz", "serve", "/m"], "rehearsal", 2, "/m", "/m", 8000),
    ],
)
def test_recognised(argv: list[str], engine: str, at: int, model: str, served: str, port: int) -> None:
    found = recognise(argv)
    assert found is not None
    command = found[1]
    assert (command.engine, command.server_at, command.model, command.served_name, command.port) == (
        engine,
        at,
        model,
        served,
        port,
    )


def test_the_rehearsals_own_commands_are_no_server() -> None:
    assert recognise(["python", "-m", "specd.rehearsal", "check", "--", "m"]) is None
    assert recognise(["python", "-m", "specd.rehearsal", "--version"]) is None


def test_a_unit_can_be_rehearsed_with_only_its_program_replaced() -> None:
    real = ["/opt/vllm/bin/vllm", "serve", "/m", "-sc", '{"method": "ngram"}', "--port", "9000"]
    vllm, rehearsal = recognise(real), recognise([*ARCHIVE[:2], *real[1:]])
    assert vllm is not None
    assert rehearsal is not None
    assert vllm[1].flags == rehearsal[1].flags


@pytest.mark.parametrize(
    ("argv", "flags", "words"),
    [
        (SGLANG, {"tp-size": 4}, [*SGLANG[:5], "--tp-size", "4", *SGLANG[7:]]),
        (SGLANG, {"speculative-algorithm": "EAGLE3"}, [*SGLANG, "--speculative-algorithm", "EAGLE3"]),
        (SGLANG, {"enable-metrics": True}, [*SGLANG, "--enable-metrics"]),
        (LLAMA, {"ctx-size": 4096}, [*LLAMA[:3], "--ctx-size", "4096", *LLAMA[5:]]),
        (LLAMA, {"n-gpu-layers": None}, [*LLAMA[:5], *LLAMA[7:]]),
        (LLAMA, {"draft-max": 8}, [*LLAMA, "--draft-max", "8"]),
        (LLAMA, {"n-gpu-layers": -2}, [*LLAMA[:5], "--n-gpu-layers", "-2", *LLAMA[7:]]),
    ],
)
def test_changes(argv: list[str], flags: dict[str, FlagValue], words: list[str]) -> None:
    found = recognise(argv)
    assert found is not None
    assert list(found[0].change(argv, flags)) == words


def test_removing_the_model_is_refused() -> None:
    with pytest.raises(EngineError, match="model"):
        by_name("llamacpp").change(LLAMA, {"model": None})
    with pytest.raises(EngineError, match="names no model"):
        recognise(["llama-server", "-c", "1"])


def test_speculation_asked() -> None:
    found = recognise([*SGLANG, "--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8"])
    assert found is not None
    assert found[0].speculation_asked(found[1]) == {"algorithm": "NGRAM", "num_draft_tokens": 8}
    llama = recognise([*LLAMA, "-md", "/d.gguf", "--draft-max", "8"])
    assert llama is not None
    assert llama[0].speculation_asked(llama[1]) == {"spec_draft_model": "/d.gguf", "spec_draft_n_max": "8"}


def test_sglang_start() -> None:
    reader = by_name("sglang").reader()
    lines = [
        "[2026-11-01 10:00:00] server_args=ServerArgs(model_path='/m', speculative_algorithm='EAGLE3', "
        "speculative_num_steps=3, speculative_token_map=None, tp_size=8)",
        "[2026-11-01 10:00:05 TP0] Load weight begin. avail mem=138.20 GB",
        "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:10<00:10,  5.00s/it]",
        "[2026-11-01 10:01:05 TP0] Load weight end. elapsed=60.51 s, type=X, avail mem=60.1 GB, mem usage=78.10 GB.",
        "[2026-11-01 10:01:06 TP0] Capture target decode CUDA graph begin. This can take up to minutes.",
        "Capturing batches (bs=8 avail_mem=50.1 GB):  50%|#####     | 18/36 [00:05<00:05]",
        "[2026-11-01 10:01:26 TP0] Capture cuda graph end. Time elapsed: 20.11 s",
        "[2026-11-01 10:01:27 TP0] max_total_num_tokens=652016, chunked_prefill_size=8192, context_len=32768",
        "[2026-11-01 10:01:30] INFO:     Application startup complete.",
        "[2026-11-01 10:01:33] The server is fired up and ready to roll!",
    ]
    seen = [observation for line in lines for observation in reader.feed(line)]
    stages = [observation.stage for observation in seen if observation.stage]
    assert list(dict.fromkeys(stages)) == [Stage.LAUNCH, Stage.WEIGHTS, Stage.CAPTURE, Stage.SERVER]
    assert (18.0, 36.0) in [(observation.done, observation.total) for observation in seen]
    facts = reader.facts()
    assert (facts["weights_s"], facts["kv_tokens"]) == (60.51, 652016)
    assert facts["speculative"] == {"algorithm": "EAGLE3", "num_steps": 3}
    assert seen[-1].finished
    assert reader.failure() is None


def test_sglang_failure_in_a_scheduler() -> None:
    reader = by_name("sglang").reader()
    for line in (
        "[2026-11-01 10:00:05 TP1] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/opt/sglang/scheduler.py", line 1, in run_scheduler_process',
        "    scheduler = Scheduler()",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "",
        "[2026-11-01 10:00:05] Received sigquit from a child process. It usually means the child failed.",
        "Killed",
    ):
        reader.feed(line)
    failure = reader.failure()
    assert failure is not None
    assert failure.kind == "gpu-memory"
    assert any("run_scheduler_process" in line for line in failure.lines)


def test_llamacpp_start_and_failures() -> None:
    engine = by_name("llamacpp")
    reader = engine.reader()
    for line in (
        "srv  main: initializing ...",
        "srv load_model: loading model '/m/x.gguf'",
        "load_tensors: CUDA0 = 5 MiB",
        "srv main: model loaded",
        "srv main: server is listening on http://127.0.0.1:8080",
    ):
        reader.feed(line)
    assert reader.facts()["url"] == "http://127.0.0.1:8080"
    assert reader.failure() is None
    cases = {
        "bad-argument": ["error: invalid argument: --speculative-config"],
        "missing-file": [
            "gguf_init_from_file: failed to open GGUF file '/m/none.gguf'",
            "srv main: exiting due to model loading error",
        ],
        "gpu-memory": [
            "ggml_backend_cuda_buffer_type: allocating 90 MiB on device 0: cudaMalloc failed: out of memory",
            "main: exiting due to model loading error",
        ],
        "port": ["start: couldn't bind HTTP server socket, port: 8080", "exiting due to HTTP server error"],
    }
    for kind, lines in cases.items():
        reader = engine.reader()
        for line in lines:
            reader.feed(line)
        failure = engine.explain_exit(reader, result="exit-code", code="exited", status=1)
        assert failure.kind == kind, failure
