"""What captured and composed vLLM logs say: stages, progress, facts, and the root cause or none."""

import json
from pathlib import Path

import pytest

from specd.engines.engine import Observation, Stage
from specd.engines.vllm.log import VllmReader
from tests.corpus import VLLM, records


def read(name: str) -> tuple[VllmReader, list[Observation]]:
    reader = VllmReader()
    seen = [observation for _, text in records(name) for observation in reader.feed(text)]
    return reader, seen


def feed(*lines: str) -> tuple[VllmReader, list[Observation]]:
    reader = VllmReader()
    return reader, [observation for line in lines for observation in reader.feed(line)]


def stages(seen: list[Observation]) -> list[str]:
    order: list[str] = []
    for observation in seen:
        if observation.stage and observation.stage not in order[-1:]:
            order.append(observation.stage)
    return order


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("fail-json.log", "bad-argument", "--speculative-config"),
        ("fail-spec-key.log", "bad-value", "--speculative-config has no key bogus_key"),
        ("fail-spec-method.log", "bad-value", "--speculative-config refuses method: 'bogus' is none of 'ngram'"),
        ("fail-unknown-flag.log", "bad-argument", "--no-such-flag"),
        ("fail-no-model.log", "missing-file", "/srv/vllm/no-such-model"),
        ("fail-port.log", "port", "in use"),
        ("fail-kv-over-ram.log", "kv-cache", "200.0 GiB"),
        ("fail-kv-too-small.log", "kv-cache", "2048"),
        ("fail-lookup.log", "bad-value", "prompt_lookup_min=4 must be <= prompt_lookup_max=2"),
        ("fail-zero-tokens.log", "bad-value", "num_speculative_tokens: Input should be greater than 0"),
        ("fail-no-draft.log", "missing-file", "/srv/vllm/no-draft"),
        ("fail-dtype.log", "bad-argument", "--dtype"),
        ("fail-max-len.log", "bad-value", "max_model_len (1000000)"),
        ("fail-bad-integer.log", "bad-argument", "--max-model-len"),
        ("fail-no-weights.log", "missing-file", "no weight files in /srv/vllm/cfgonly"),
        ("died-engine-killed.log", "engine-died", "engine's own process"),
        ("died-engine-killed-in-load.log", "engine-died", "the engine's own process ended without a word"),
        ("died-worker-killed.log", "engine-died", "Worker proc VllmWorker-0 was killed (signal 9)"),
    ],
)
def test_real_failures_have_their_class_and_cause(name: str, kind: str, words: str) -> None:
    failure = read(name)[0].failure()
    assert failure is not None
    assert (failure.kind, words in failure.sentence) == (kind, True), failure
    assert 2 <= len(failure.lines) <= 24


@pytest.mark.parametrize(
    "name",
    [
        "start-cpu-ngram.log",
        "start-gpu-ngram.log",
        "stop-while-streaming.log",
        "stop-sigint-in-load.log",
        "stop-in-load.log",
    ],
)
def test_clean_stops_and_harmless_errors_are_no_failure(name: str) -> None:
    reader = VllmReader()
    for _, text in records(name):
        reader.feed(text)
        assert reader.failure() is None
    assert reader.is_stopping


def test_every_captured_failure_is_silent_until_it_happens() -> None:
    names = sorted(path.name for path in Path(VLLM).glob("*.log"))
    assert len(names) >= 23
    for name in names:
        reader = VllmReader()
        for _, text in records(name):
            reader.feed(text)
            if "Traceback" in text or "rror" in text or "died" in text or "unexpectedly" in text:
                break
            assert reader.failure() is None, (name, text)


def test_gpu_start_stage_by_stage() -> None:
    reader, seen = read("start-gpu-ngram.log")
    assert stages(seen) == list(Stage.ORDER)
    facts = reader.facts()
    assert {
        "version": "0.26.0",
        "model": "/models/moe",
        "architecture": "Qwen3MoeForCausalLM",
        "max_model_len": 4096,
        "speculative": {"method": "ngram", "num_speculative_tokens": 5},
        "runner": "V1",
        "drafter": True,
        "compile_cache_hit": False,
        "compile_s": 39.36,
        "graphs_total": 66,
        "kv_tokens": 649104,
        "kv_concurrency": 158.47,
        "capture_s": 18.0,
        "init_s": 85.47,
        "url": "http://0.0.0.0:18101",
    }.items() <= facts.items()
    assert facts["load_bytes"] == int(57.72 * 2**30)
    assert facts["server_arguments"]["speculative_config"]["method"] == "ngram"


def test_graph_captures_add_up_over_their_bars() -> None:
    _, seen = read("start-gpu-ngram.log")
    progress = [
        (observation.done, observation.total)
        for observation in seen
        if observation.stage == Stage.CAPTURE and observation.total
    ]
    assert (progress[0], progress[-1]) == ((0, 66), (66, 66))
    assert (41, 66) in progress
    assert progress == sorted(progress)


def test_cpu_start_has_shards_and_no_graphs() -> None:
    reader, seen = read("start-cpu-ngram.log")
    assert stages(seen) == [Stage.LAUNCH, Stage.CONFIG, Stage.WEIGHTS, Stage.SERVER]
    assert (1.0, 1.0) in [(observation.done, observation.total) for observation in seen]
    facts = reader.facts()
    assert facts["checkpoint_bytes"] == int(0.5 * 2**30)
    assert facts["runner"] == "V1"
    assert facts["kv_tokens"] == 55356
    finished = [observation.stage for observation in seen if observation.finished]
    assert finished[-1] == Stage.SERVER


def test_speculation_off_is_told_from_not_told() -> None:
    line = "(EngineCore_0 pid=7) INFO 11-01 10:00:00 [core.py:58] Initializing a V1 LLM engine (v0.10.2) with config: "
    assert feed(line + "model='m', speculative_config=None, tokenizer='m'")[0].facts()["speculative"] == {}
    assert "speculative" not in feed(line + "model='m'")[0].facts()
    nested = "speculative_config=SpeculativeConfig(method='eagle3', model='/d (x)', num_spec_tokens=3), tokenizer='m'"
    assert feed(line + nested)[0].facts()["speculative"] == {
        "method": "eagle3",
        "model": "/d (x)",
        "num_speculative_tokens": 3,
    }


@pytest.mark.parametrize(
    ("line", "stage", "facts"),
    [
        (
            "INFO 12-27 10:00:00 api_server.py:585] vLLM API server version 0.6.6.post1",
            Stage.LAUNCH,
            {"version": "0.6.6.post1"},
        ),
        (
            "(VllmWorkerProcess pid=9) INFO 12-27 10:00:00 model_runner.py:1099] Loading model weights took 14.99 GB",
            Stage.WEIGHTS,
            {"load_bytes": int(14.99 * 2**30)},
        ),
        (
            "\x1b[1;36m(VllmWorker rank=1 pid=77)\x1b[0;0m INFO 05-02 10:00:00 [backends.py:430] "
            "Compiling a graph for general shape takes 30.51 s",
            Stage.COMPILE,
            {"compile_cache_hit": False, "inductor_s": 30.51},
        ),
        (
            "(EngineCore_DP0 pid=7) INFO 09-13 10:00:00 [backends.py:164] Directly load the compiled graph(s) for "
            "dynamic shape from the cache, took 3.021 s",
            Stage.COMPILE,
            {"compile_cache_hit": True},
        ),
        (
            "(Worker_TP0_EP0 pid=7) INFO 09-13 10:00:00 [gpu_model_runner.py:2338] Model loading took 73.1 GiB and "
            "311.5 seconds",
            Stage.WEIGHTS,
            {"load_s": 311.5},
        ),
        (
            '{"asctime": "12-01 10:00:00", "levelname": "INFO", "name": "vllm.v1.core", "processName": "EngineCore", '
            '"process": 7, "message": "GPU KV cache size: 1,234,567 tokens, Maximum concurrency for 32,768 tokens per '
            'request: 12.34x"}',
            "",
            {"kv_tokens": 1234567, "kv_concurrency": 12.34},
        ),
        (
            "Loading safetensors checkpoint shards:  21% Completed | 34/163 [02:10<08:14,  3.83s/it]",
            Stage.WEIGHTS,
            {},
        ),
        (
            "(EngineCore pid=7) [transformers] x\rCapturing CUDA graph shapes:  50%|#####     | 18/35 [00:05<00:05]",
            Stage.CAPTURE,
            {},
        ),
        (
            "(EngineCore pid=7) WARNING 12-01 10:00:00 [vllm.py:725] Model Runner V2 does not yet support ngram; "
            "using the V1 model runner instead.",
            "",
            {"runner": "V1"},
        ),
        ("(EngineCore pid=7) INFO 12-01 10:00:00 [x.py:1] Using V2 Model Runner", "", {"runner": "V2"}),
    ],
)
def test_lines_of_other_versions(line: str, stage: str, facts: dict[str, object]) -> None:
    reader, seen = feed(line)
    assert [observation.stage for observation in seen] == [stage]
    assert facts.items() <= reader.facts().items()


def test_several_redraws_in_one_record_all_count() -> None:
    bar = "Capturing CUDA graphs (decode, FULL): {:3}%|{}| {}/10 [00:01<00:00, 7.0it/s]"
    record = "\r".join(bar.format(10 * done, "#" * done, done) for done in range(11))
    _, seen = feed(record)
    assert [observation.done for observation in seen] == [float(done) for done in range(11)]


def test_a_late_process_does_not_take_the_stage_back() -> None:
    _, seen = feed(
        "(EngineCore_DP0 pid=7) INFO 12-01 10:00:00 [x.py:1] Dynamo bytecode transform time: 9.0 s",
        "(EngineCore_DP1 pid=8) INFO 12-01 10:00:01 [x.py:1] Starting to load model m...",
    )
    assert stages(seen) == [Stage.COMPILE]


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139 GiB"


def test_the_deepest_process_first_error_wins_over_later_and_shallower_ones() -> None:
    api, core, worker = "(APIServer pid=1) ", "(EngineCore_0 pid=2) ", "(Worker_TP{} pid={}) "
    lines = [worker.format(0, 3) + "INFO 12-01 10:00:00 [x.py:1] Starting to load model m..."]
    for rank in (1, 0):
        head = worker.format(rank, 3 + rank) + "ERROR 12-01 10:00:01 [multiproc_executor.py:5] "
        lines += [
            head + "WorkerProc failed to start.",
            head + "Traceback (most recent call last):",
            head + '  File "/v/worker.py", line 1, in load_model',
            head + (OOM if rank == 1 else "RuntimeError: NCCL error: remote process exited"),
        ]
    lines += [
        core + "ERROR 12-01 10:00:02 [core.py:700] EngineCore failed to start.",
        core + "ERROR 12-01 10:00:02 [core.py:700] Traceback (most recent call last):",
        core + '  ERROR 12-01 10:00:02 [core.py:700]   File "/v/core.py", line 2, in init',
        core + "ERROR 12-01 10:00:02 [core.py:700] Exception: WorkerProc initialization failed due to an exception",
        api + "Traceback (most recent call last):",
        api + '  File "/opt/vllm/bin/vllm", line 8, in <module>',
        api + "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ]
    reader, _ = feed(*lines)
    failure = reader.failure()
    assert failure is not None
    assert failure.kind == "gpu-memory"
    assert "CUDA out of memory" in failure.sentence
    assert any("load_model" in line for line in failure.lines)


def test_json_lines_carry_whole_tracebacks() -> None:
    def line(process: str, level: str, message: str) -> str:
        return json.dumps({"asctime": "x", "levelname": level, "name": "n", "processName": process, "message": message})

    trace = 'WorkerProc failed to start.\nTraceback (most recent call last):\n  File "w.py", line 1\n' + OOM
    reader, _ = feed(line("Worker_TP0", "ERROR", trace), line("EngineCore", "ERROR", "EngineCore failed to start."))
    failure = reader.failure()
    assert failure is not None
    assert failure.kind == "gpu-memory"


FREE = "ValueError: Free memory on device cuda:0 (3/139 GiB) is less than desired GPU memory utilization (0.9)"
PROFILING = "AssertionError: Error in memory profiling. Initial free memory 70 GiB, current free memory 71 GiB."
NO_BLOCKS = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
NCCL = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1, unhandled system error"
LIMIT = "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/x"
NO_HUB = "OSError: We couldn't connect to 'https://huggingface.co' to load the files"
NO_FILE = "FileNotFoundError: [Errno 2] No such file or directory: '/models/x/model-00001.safetensors'"
NO_PACKAGE = "ImportError: arctic_inference is needed. Please install it with `pip install arctic-inference==0.1.1`"


@pytest.mark.parametrize(
    ("error", "kind", "transient"),
    [
        (FREE, "gpu-memory", True),
        (PROFILING, "gpu-memory", True),
        (NO_BLOCKS, "kv-cache", False),
        (NCCL, "distributed", False),
        ("torch._inductor.exc.InductorError: CalledProcessError", "compile", False),
        (LIMIT, "hub", True),
        (NO_HUB, "hub", True),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "engine-died", False),
        (NO_FILE, "missing-file", False),
        (NO_PACKAGE, "missing-file", False),
        ("ValueError: something that nobody has seen before", "unknown", False),
    ],
)
def test_error_texts_and_their_classes(error: str, kind: str, transient: bool) -> None:
    head = "(EngineCore pid=2) ERROR 12-01 10:00:02 [core.py:700] "
    reader, _ = feed(
        head + "EngineCore failed to start.",
        head + "Traceback (most recent call last):",
        head + "  File x",
        head + error,
    )
    failure = reader.failure()
    assert failure is not None
    assert (failure.kind, failure.transient) == (kind, transient)


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=1) ERROR 12-01 01:25:20 [serving.py:274] Error with model error=ErrorInfo(message='The model "
        "`nope` does not exist.', type='NotFoundError', code=404)",
        "(APIServer pid=1) WARNING 12-01 10:00:00 [x.py:1] Failed to import from vllm._C with ModuleNotFoundError",
        "INFO:     127.0.0.1:1 - \"GET /v1/error HTTP/1.1\" 500 Internal Server Error",
        "[W1201 02:43:21.799893932 socket.cpp:207] [c10d] The hostname of the socket cannot be retrieved. err=-3",
        "UserWarning: resource_tracker: There appear to be 1 leaked shared_memory objects",
        "(EngineCore pid=2) ERROR 12-01 10:00:00 [fa_utils.py:57] Cannot use FA version 3 is not supported",
        "No error here, CUDA out of memory is only mentioned",
        "(APIServer pid=1) INFO 12-01 10:00:00 [logger.py:1] Received request x: prompt: 'EngineCore failed to start.'",
        "(APIServer pid=1) INFO 12-01 10:00:00 [logger.py:1] EngineCore failed to start, said the user",
    ],
)  # fmt: skip
def test_harmless_lines(line: str) -> None:
    reader, _ = feed(line, "next line")
    assert reader.failure() is None


def test_a_prompt_in_the_log_is_no_fact() -> None:
    reader, seen = feed(
        "(APIServer pid=1) INFO 12-01 10:00:00 [logger.py:1] Received request cmpl-1: params: SamplingParams(n=1, "
        "temperature=0.0), prompt: 'GPU KV cache size: 7 tokens  version 6.6.6'"
    )
    assert (dict(reader.facts()), seen) == ({}, [])


def test_a_caught_traceback_is_no_failure() -> None:
    reader, _ = feed(
        "Traceback (most recent call last):",
        '  File "/opt/lib/some_library.py", line 3, in probe',
        "ModuleNotFoundError: No module named 'flash_attn'",
        "INFO:     Started server process [1]",
    )
    assert reader.failure() is None


def test_a_flood_is_held_in_little_memory() -> None:
    reader = VllmReader()
    for number in range(20000):
        reader.feed(
            f"(Worker_TP{number} pid={number}) ERROR 12-01 10:00:00 [x.py:1] EngineCore failed {number} " + "x" * 200
        )
        reader.feed("Traceback (most recent call last):")
        reader.feed(f'  File "/x{number}.py", line 1')
    tracebacks = reader._tracebacks
    assert len(tracebacks._troubles) <= 24
    assert len(tracebacks._open) <= 256
    assert all(len(block.lines) <= 36 for block in tracebacks._open.values())


def test_errors_of_one_place_stay_apart_and_are_held_in_little_memory() -> None:
    head = "(APIServer pid=1) ERROR 12-01 10:00:00 [serving_chat.py:240] "
    one = ["Error in preprocessing prompt inputs", "Traceback (most recent call last):", '  File "/v/x.py", line 1']
    reader = VllmReader()
    for number in range(2000):
        for line in (*one, f"ValueError: too long: {number}"):
            reader.feed(head + line)
            assert reader.failure() is None
    (block,) = reader._tracebacks._open.values()
    assert [message[0] for message in block.exceptions] == ["ValueError: too long: 1999"]
    assert block.header == one[0]


def test_lines_shown_hold_no_control_characters() -> None:
    head = "(EngineCore pid=2) ERROR 12-01 10:00:02 [core.py:700] "
    reader, _ = feed(head + "EngineCore failed to start.", head + "Traceback (most recent call last):",
                     head + "ValueError: \x1b]0;evil\x07bad\x08\x00 value")  # fmt: skip
    failure = reader.failure()
    assert failure is not None
    shown = "".join([failure.sentence, *failure.lines])
    assert shown.isprintable()
    assert "evil" not in shown
