"""vLLM's log: what its lines say, versions 0.6 to 0.33."""

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specd.engines.engine import Observation, Stage
from specd.engines.log_reader import RuleReader
from specd.engines.log_rules import LogRules, StageRule
from specd.engines.log_text import parse_vllm_line
from specd.engines.masking import is_secret_name
from specd.engines.vllm.failures import FAILURES

__all__ = ["VLLM_RULES", "VllmReader"]


def _rule(pattern: str, stage: str = "", **more: Any) -> StageRule:
    return StageRule(re.compile(pattern), stage, **more)


_SHARD_BAR = (
    r"(?:Loading|Multi-thread loading) [\w ]*?(?:shards|Model Streamer|loader):?\s+\d+% Completed \| "
    r"(?P<done>\d+)/(?P<total>\d+) \["
)
_BY_HEAD: Mapping[str, tuple[StageRule, ...]] = {
    "vLLM": (
        _rule(r"vLLM (?:API )?server version (?P<version>[^\s,]+)(?:, serving model (?P<model>\S+))?", Stage.LAUNCH),
        _rule(r"vLLM's torch\.compile cache is disabled", Stage.COMPILE, facts={"compile_cache_hit": False}),
    ),
    "non-default": (_rule(r"non-default args: (?P<arguments>\{.*)", Stage.LAUNCH),),
    "args:": (_rule(r"args: Namespace\(", Stage.LAUNCH),),
    "Resolved": (_rule(r"Resolved architecture: (?P<architecture>\S+)", Stage.CONFIG),),
    "Using": (
        _rule(r"Using max model len (?P<max_model_len_i>[\d,]+)", Stage.CONFIG),
        _rule(r"Using V2 Model Runner", facts={"runner": "V2"}),
        _rule(r"Using cache directory: (?P<compile_cache>\S+) for vLLM's torch\.compile", Stage.COMPILE),
    ),
    "Model": (
        _rule(r"Model Runner V2 (?P<runner_reason>[^;]*); using the V1 model runner", facts={"runner": "V1"}),
        _rule(
            r"Model loading took (?P<load_gib>[\d.]+) Gi?B(?: memory)?(?: and (?P<load_s_f>[\d.]+) seconds)?",
            Stage.WEIGHTS,
            finishes=True,
        ),
    ),
    "Initializing": (
        _rule(
            r"Initializing an? (?P<engine_generation>V\d )?LLM engine \(v(?P<version>[^)]+)\) with config: "
            r"(?P<config>.*)",
            Stage.CONFIG,
        ),
    ),
    "Starting": (
        _rule(r"Starting to load model (?P<loading>\S+?)\.\.\.", Stage.WEIGHTS),
        _rule(r"Starting torch\.compile", Stage.COMPILE),
        _rule(r"Starting vLLM (?:API )?server (?:\d+ )?on (?P<url>\S+)", Stage.SERVER),
    ),
    "Filesystem": (
        _rule(
            r"Filesystem type for checkpoints: (?P<checkpoint_filesystem>[^.]+)\. Checkpoint size: "
            r"(?P<checkpoint_gib>[\d.]+) GiB",
            Stage.WEIGHTS,
        ),
    ),
    "Prefetching": (_rule(r"Prefetching checkpoint files", Stage.WEIGHTS),),
    "Loading": (
        _rule(_SHARD_BAR, Stage.WEIGHTS),
        _rule(r"Loading weights took (?P<weights_s_f>[\d.]+) seconds", Stage.WEIGHTS),
        _rule(r"Loading model weights took (?P<load_gib>[\d.]+) GB", Stage.WEIGHTS, finishes=True),
        _rule(r"Loading drafter model", Stage.WEIGHTS, facts={"drafter": True}),
        _rule(r"Loading model from scratch", Stage.WEIGHTS),
    ),
    "Multi-thread": (_rule(_SHARD_BAR, Stage.WEIGHTS),),
    "Mapped": (_rule(r"Mapped \d+ tensors from the weight cache daemon", Stage.WEIGHTS, facts={"weight_cache": True}),),
    "Weight": (_rule(r"Weight cache unusable", Stage.WEIGHTS, facts={"weight_cache": False}),),
    "Dynamo": (_rule(r"Dynamo bytecode transform time: (?P<dynamo_s_f>[\d.]+) s", Stage.COMPILE),),
    "Compiling": (
        _rule(
            r"Compiling a graph for .*? takes (?P<inductor_s_f>[\d.]+) s",
            Stage.COMPILE,
            facts={"compile_cache_hit": False},
        ),
    ),
    "Directly": (_rule(r"Directly load ", Stage.COMPILE, facts={"compile_cache_hit": True}),),
    "saved": (_rule(r"saved AOT compiled function", Stage.COMPILE, facts={"compile_cache_hit": False}),),
    "torch.compile": (
        _rule(
            r"torch\.compile (?:and initial profiling/warmup run together took|takes|took) (?P<compile_s_f>[\d.]+) s",
            Stage.COMPILE,
        ),
    ),
    "Warming": (_rule(r"Warming up model for the compilation", Stage.COMPILE),),
    "Initial": (_rule(r"Initial profiling/warmup run took (?P<profiling_s_f>[\d.]+) s", Stage.COMPILE),),
    "Memory": (_rule(r"Memory profiling takes (?P<profiling_s_f>[\d.]+) seconds"),),
    "Profiling": (_rule(r"Profiling CUDA graph memory: (?P<graphs_by_mode>.*)", Stage.COMPILE),),
    "Available": (_rule(r"Available KV cache memory: (?P<kv_gib>[\d.]+) GiB"),),
    "#": (_rule(r"# [A-Z]+ blocks: (?P<kv_blocks_i>\d+)"),),
    "Maximum": (
        _rule(
            r"Maximum concurrency for (?P<concurrency_tokens_i>[\d,]+) tokens per request: "
            r"(?P<kv_concurrency_f>[\d.]+)x"
        ),
    ),
    "Capturing": (
        _rule(
            r"Capturing [\w -]*CUDA graphs?(?: shapes)?(?: \([^)]*\))?:\s+\d+%\|[^|]*\|\s*(?P<done>\d+)/(?P<total>\d+)",
            Stage.CAPTURE,
            bar=True,
        ),
        _rule(r"Capturing ", Stage.CAPTURE),
    ),
    "Graph": (
        _rule(
            r"Graph capturing finished in (?P<capture_s_f>[\d.]+) secs?(?:, took (?P<graphs_gib>[\d.]+) GiB)?",
            Stage.CAPTURE,
            finishes=True,
        ),
    ),
    "init": (_rule(r"init engine \(.*?\) took (?P<init_s_f>[\d.]+) s", finishes=True),),
    "Supported": (_rule(r"Supported[_ ]tasks: ", Stage.SERVER),),
    "INFO:": (
        _rule(r"INFO:\s+Application startup complete", Stage.SERVER, finishes=True),
        _rule(r"INFO:\s+Uvicorn running on ", Stage.SERVER, finishes=True),
        _rule(r"INFO:\s+(?:Started server process|Waiting for application startup)", Stage.SERVER),
    ),
    "world_size=": (),
}
_ANYWHERE = (
    (
        "KV cache size: ",
        _rule(
            r"KV cache size: (?P<kv_tokens_i>[\d,]+) tokens(?:, Maximum concurrency for "
            r"(?P<concurrency_tokens_i>[\d,]+) tokens per request: (?P<kv_concurrency_f>[\d.]+)x)?"
        ),
    ),
    ("  version ", _rule(r"  version (?P<version>\d\S*)", Stage.LAUNCH)),
    ("  model  ", _rule(r"  model   (?P<model>\S+)", Stage.LAUNCH)),
    ("world_size=", _rule(r"world_size=(?P<world_size_i>\d+) rank=\d+", Stage.CONFIG)),
)

VLLM_RULES = LogRules(
    parse=parse_vllm_line,
    by_head=_BY_HEAD,
    anywhere=_ANYWHERE,
    terminal=re.compile(
        r"(?:EngineCore|WorkerProc) failed to start|EngineCore encountered a fatal error"
        r"|[Ee]ngine core initialization failed|Core engine initialization failed"
        r"|engine core exited unexpectedly|died unexpectedly"
        r"|EngineDeadError: |Timed out waiting for engine core processes"
        r"|killed by the OOM killer|Engine process failed to start|Engine loop is dead"
        r"|EngineCore hit an exception|Got fatal signal from worker processes"
        r"|error while attempting to bind on address|MQLLMEngine is already dead"
    ),
    stop=re.compile(
        r"\[shutdown\] API server: shutdown triggered|\[shutdown\] EngineCore: trigger received signal"
        r"|(?:Gracefully s|S)hutting down FastAPI HTTP server|INFO:\s+Shutting down$|KeyboardInterrupt"
    ),
    harmless=re.compile(
        r"Error (?:in|with|while|occurred|during)\b|Exception in ASGI application|AsyncLLM output_handler failed"
        r"|Error in \w+|Dumping (?:input data|scheduler)|Failed to (?:import|load module|read metric)"
    ),
    generic=re.compile(
        r"EngineDeadError|ngine (?:core )?initialization failed|RuntimeError: cancelled\b"
        r"|Engine loop (?:is dead|has died)"
        r"|BrokenPipeError|ConnectionResetError|EOFError|zmq\.error|Worker failed with error"
        r"|EngineCore (?:failed to start|encountered)|WorkerProc (?:failed to start|hit an exception)"
        r"|WorkerProc initialization failed|Engine process failed to start|Got fatal signal from worker"
        r"|RayTaskError\("
    ),
    died=re.compile(r"died unexpectedly|exited unexpectedly|OOM killer|MQLLMEngine is already dead"),
    native=re.compile(
        r"terminate called after|Segmentation fault|Segfault encountered|Fatal Python error|CUDA error: "
        r"|Watchdog caught collective operation timeout|ncclInternalError|ncclSystemError"
        r"|ncclUnhandledCudaError|std::bad_alloc|Aborted \(core dumped\)"
    ),
    fatal=re.compile(
        r"OutOfMemoryError|out of memory|illegal memory access|device-side assert|unspecified launch failure"
        r"|No available memory for the cache blocks|uncorrectable ECC"
    ),
    entry_frame=re.compile(
        r'File "(?:<frozen runpy>|<string>|.*/bin/vllm|.*multiprocessing/(?:process|spawn)\.py)", line'
    ),
    failures=FAILURES,
    refusing_frame=re.compile(
        r'File ".*/vllm/(?:config(?:/|\.py)|engine/arg_utils\.py|platforms/|model_executor/layers/quantization/)'
        r'|File ".*/vllm/entrypoints/.*, in validate_'
    ),
)

_SPECULATIVE = re.compile(
    r"speculative_config=(?:(?P<off>None)|SpeculativeConfig\((?P<fields>(?:[^()]|\([^()]*\))*)\)|(?P<other>\{[^}]*\}))"
)
_FIELD = re.compile(r"(\w+)=('(?:[^'\\]|\\.)*'|[^,]+)")
_FIELD_NAMES = {"num_spec_tokens": "num_speculative_tokens"}


class VllmReader(RuleReader):
    """Reads vLLM's log; facts besides those of the rules: `speculative` ({} for off), `runner`, `server_arguments`."""

    def __init__(self) -> None:
        super().__init__(VLLM_RULES)

    def feed(self, text: str) -> list[Observation]:
        """Take one journal record and say what it shows."""
        shown = [self._captures_begin(seen) for seen in super().feed(text)]
        facts = self._facts
        if "config" in facts:
            config = str(facts.pop("config"))
            speculative = _speculative(config)
            if speculative is not None:
                facts["speculative"] = speculative
            # No line says V1; the other runner always says so, and a fall-back does.
            facts.setdefault("runner", "V1")
        if "arguments" in facts:
            arguments = _literal(str(facts.pop("arguments")))
            if isinstance(arguments, dict):
                kept = {name: value for name, value in arguments.items() if not is_secret_name(str(name))}
                facts["server_arguments"] = kept
        return shown

    def _captures_begin(self, seen: Observation) -> Observation:
        """Captures announced before follow the KV cache at once; their own bars reach a journal only when they end."""
        total = self._facts.get("graphs_total")
        if "kv_tokens" not in seen.facts or not total or seen.stage or self.stage not in {Stage.WEIGHTS, Stage.COMPILE}:
            return seen
        self._stage = Stage.CAPTURE
        return replace(seen, stage=Stage.CAPTURE, done=0.0, total=float(total))


def _speculative(config: str) -> dict[str, Any] | None:
    """Return what the engine's own configuration line says of speculation: {} for off, None when it says nothing."""
    found = _SPECULATIVE.search(config)
    if found is None:
        return None
    if found["off"]:
        return {}
    settings: dict[str, Any] = {}
    for name, text in _FIELD.findall(found["fields"] or ""):
        value = _literal(text.strip())
        if value is not None:
            settings[_FIELD_NAMES.get(name, name)] = value
    return settings or {"unreadable": found.group(0)[:200]}


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
