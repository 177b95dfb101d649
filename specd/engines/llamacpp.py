"""llama.cpp's server as an Engine, by tables."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from specd.engines.engine import ServerCommand, Stage
from specd.engines.exposition import Series
from specd.engines.flags import Flag, FlagTable, Kind
from specd.engines.log_rules import FailureRule, LogRules, StageRule
from specd.engines.log_text import parse_plain_line
from specd.engines.programs import Programs
from specd.engines.table_engine import TableEngine

__all__ = ["LlamaCpp"]

_VALUES: Mapping[str, tuple[str, ...]] = {
    "model": ("-m",),
    "hf-repo": ("-hf", "-hfr"),
    "model-url": ("-mu",),
    "alias": ("-a",),
    "host": (),
    "port": (),
    "ctx-size": ("-c",),
    "parallel": ("-np",),
    "n-gpu-layers": ("-ngl", "--gpu-layers"),
    "threads": ("-t",),
    "threads-batch": ("-tb",),
    "batch-size": ("-b",),
    "ubatch-size": ("-ub",),
    "cache-type-k": ("-ctk",),
    "cache-type-v": ("-ctv",),
    "split-mode": ("-sm",),
    "tensor-split": ("-ts",),
    "main-gpu": ("-mg",),
    "device": ("-dev",),
    "flash-attn": ("-fa",),
    "api-key": (),
    "api-key-file": (),
    "chat-template": (),
    "chat-template-file": (),
    "reasoning-format": (),
    "timeout": ("-to",),
    "slot-save-path": (),
    "spec-type": (),
    "spec-draft-model": ("-md", "--model-draft"),
    "spec-draft-n-max": ("--draft-max", "--draft", "--draft-n"),
    "spec-draft-n-min": ("--draft-min", "--draft-n-min"),
    "spec-draft-p-min": ("--draft-p-min",),
    "spec-synth-len": (),
    "spec-synth-rates": (),
    "n-gpu-layers-draft": ("-ngld", "--gpu-layers-draft"),
    "ctx-size-draft": ("-cd",),
    "lookup-cache-static": ("-lcs",),
    "lookup-cache-dynamic": ("-lcd",),
    "sleep-idle-seconds": (),
}
_SWITCHES: Mapping[str, tuple[str, ...]] = {
    "metrics": (),
    "jinja": (),
    "no-mmap": (),
    "mlock": (),
    "cont-batching": ("-cb",),
    "no-cont-batching": ("-nocb",),
    "no-webui": (),
    "slots": (),
    "props": (),
    "spec-default": (),
    "embeddings": ("--embedding",),
    "verbose": ("-v", "--log-verbose"),
    "swa-full": (),
    "no-warmup": (),
}
# llama.cpp has its own parser: no prefixes of names, no `--flag=value`.
_FLAGS = FlagTable.of(
    [
        *(Flag(name, Kind.VALUE, aliases) for name, aliases in _VALUES.items()),
        *(Flag(name, Kind.SWITCH, aliases) for name, aliases in _SWITCHES.items()),
        Flag("chat-template-kwargs", Kind.JSON),
    ],
    abbreviates=False,
    takes_equals=False,
)


def _executable(path: str, rest: Sequence[str]) -> int | None:
    name = posixpath.basename(path)
    if name in {"llama-server", "llama-server-cuda", "llama-server-vulkan", "llama-server-rocm"}:
        return 0
    if name == "llama":
        return 1 if tuple(rest[:1]) == ("serve",) else None
    return None


def _rule(pattern: str, stage: str = "", **more: Any) -> StageRule:
    return StageRule(re.compile(pattern), stage, **more)


_RULES = LogRules(
    parse=parse_plain_line,
    by_head={
        "build:": (_rule(r"build: (?P<version>\d+) ", Stage.LAUNCH),),
    },
    anywhere=(
        ("initializing", _rule(r"\binitializing \.\.\.", Stage.LAUNCH)),
        ("loading model", _rule(r"loading model(?: '(?P<loading>[^']*)')?$", Stage.WEIGHTS)),
        ("load_tensors", _rule(r"load_tensors:", Stage.WEIGHTS)),
        ("KV self size", _rule(r"KV self size\s*=\s*(?P<kv_mib_f>[\d.]+) MiB")),
        ("model loaded", _rule(r"model loaded$", Stage.WEIGHTS, finishes=True)),
        ("listening on http", _rule(r"(?:server is )?listening on (?P<url>http\S+)", Stage.SERVER, finishes=True)),
    ),
    terminal=re.compile(
        r"exiting due to (?:model loading|HTTP server) error|error: invalid argument:|error while handling argument"
        r"|couldn't bind HTTP server socket|GGML_ASSERT|killed by the OOM killer"
    ),
    stop=re.compile(r"(?:.*: )?(?:cleaning up before exit|Received second interrupt)"),
    harmless=re.compile(r"$^"),
    generic=re.compile(r"exiting due to|failed to load model, '|error loading model: unable"),
    died=re.compile(r"OOM killer"),
    native=re.compile(
        r"CUDA error|out of memory|error loading model|failed to open|unable to allocate|failed to allocate"
        r"|couldn't bind HTTP|terminate called after|GGML_ASSERT|[Ss]egmentation fault|unknown model architecture"
    ),
    fatal=re.compile(r"$^"),
    entry_frame=re.compile(r"$^"),
    failures=(
        FailureRule(
            re.compile(r"error: invalid argument: (?P<flag>\S+)"),
            "bad-argument",
            "the server does not know the argument {flag}",
        ),
        FailureRule(
            re.compile(r"error while handling argument \"(?P<flag>[^\"]+)\": (?P<why>.*)"),
            "bad-argument",
            "the server refuses the value of {flag}: {why}",
        ),
        FailureRule(re.compile(r"couldn't bind HTTP server socket"), "port", "the port is in use already"),
        FailureRule(
            re.compile(r"(?:cuda|CUDA|ROCm|Vulkan).*(?:out of memory|failed to allocate)|unable to allocate \w*CUDA"),
            "gpu-memory",
            "GPU memory ran out: {line}",
            "fewer layers on the GPU, or a smaller context",
        ),
        FailureRule(re.compile(r"failed to allocate|unable to allocate|std::bad_alloc"), "host-memory"),
        FailureRule(
            re.compile(r"failed to open (?P<path>\S+)|No such file or directory"),
            "missing-file",
            "a file is missing: {line}",
        ),
        FailureRule(re.compile(r"unknown model architecture"), "bad-value"),
        FailureRule(re.compile(r"OOM killer"), "host-memory", "the host's memory ran out: {line}"),
        FailureRule(re.compile(r"CUDA error|GGML_ASSERT|[Ss]egmentation fault|terminate called"), "engine-died"),
    ),
)


class LlamaCpp(TableEngine):
    """llama.cpp's `llama-server`."""

    name = "llamacpp"
    uses_graphs = False
    programs = Programs("llama.cpp", _executable, lambda name, rest: None)
    flags = _FLAGS
    rules = _RULES
    default_port = 8080
    model_flags = ("model", "hf-repo", "model-url")
    draft_flag = "spec-draft-model"
    series = Series(
        {
            "process_start": ("process_start_time_seconds",),
            "prompt_tokens": ("llamacpp:prompt_tokens_total",),
            "generation_tokens": ("llamacpp:tokens_predicted_total",),
            "running": ("llamacpp:requests_processing",),
            "waiting": ("llamacpp:requests_deferred",),
            "kv_usage": ("llamacpp:kv_cache_usage_ratio",),
            "drafts": ("llamacpp:spec_decode_num_drafts_total",),
            "draft_tokens": ("llamacpp:spec_decode_num_draft_tokens_total",),
            "accepted_tokens": ("llamacpp:spec_decode_num_accepted_tokens_total",),
        },
        by_position=("llamacpp:spec_decode_num_accepted_tokens_per_pos_total",),
    )

    def served_name(self, flags: Mapping[str, Any], model: str) -> str:
        """Return the alias, else the model as it is written: the server answers to any name."""
        alias = flags.get("alias")
        return alias if isinstance(alias, str) else model

    def speculation_asked(self, command: ServerCommand) -> Mapping[str, Any]:
        """See Engine.speculation_asked; keys are the flags' own names with underscores."""
        names = [name for name in command.flags if name.startswith("spec-")]
        return {name.replace("-", "_"): command.flags[name] for name in names}
