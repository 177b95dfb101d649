"""SGLang as an Engine: `python -m sglang.launch_server` and `sglang serve`, by tables."""

import ast
import posixpath
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from specd.checks import Check
from specd.engines import masking
from specd.engines.asking import CantAsk, Question, ask, last_json_line
from specd.engines.engine import LogReader, Observation, ServerCommand, Stage
from specd.engines.exposition import Series
from specd.engines.flags import Flag, FlagTable, Kind
from specd.engines.log_reader import RuleReader
from specd.engines.log_rules import FailureRule, LogRules, StageRule
from specd.engines.log_text import parse_sglang_line, printable
from specd.engines.programs import Programs
from specd.engines.table_engine import TableEngine
from specd.engines.vllm.failures import COMMON_FAILURES
from specd.errors import PrivilegeRefused
from specd.hosts.host import Host

__all__ = ["Sglang"]

_PROBE = (resources.files(__package__) / "accept_sglang.py.txt").read_text(encoding="utf-8")
_ACCEPTS = "engine.accepts"

_VALUES = (
    "model-path tokenizer-path tokenizer-mode load-format dtype quantization kv-cache-dtype context-length host port "
    "mem-fraction-static max-running-requests max-total-tokens chunked-prefill-size max-prefill-tokens "
    "schedule-policy tensor-parallel-size pipeline-parallel-size data-parallel-size expert-parallel-size device "
    "served-model-name chat-template api-key log-level nnodes node-rank dist-init-addr attention-backend "
    "sampling-backend grammar-backend tool-call-parser reasoning-parser cuda-graph-max-bs speculative-algorithm "
    "speculative-draft-model-path speculative-draft-model-revision speculative-draft-load-format "
    "speculative-draft-model-quantization speculative-draft-attention-backend speculative-draft-window-size "
    "speculative-draft-sink-size speculative-num-steps speculative-eagle-topk speculative-num-draft-tokens "
    "speculative-accept-threshold-single speculative-accept-threshold-acc speculative-attention-mode "
    "speculative-token-map speculative-adaptive-config speculative-ngram-min-bfs-breadth "
    "speculative-ngram-max-bfs-breadth speculative-ngram-match-type speculative-ngram-max-trie-depth "
    "speculative-ngram-capacity speculative-ngram-external-corpus-path speculative-ngram-external-sam-budget "
    "speculative-dflash-block-size speculative-dspark-block-size stream-interval random-seed watchdog-timeout"
)
_SWITCHES = (
    "trust-remote-code enable-metrics disable-cuda-graph disable-radix-cache enable-torch-compile skip-server-warmup "
    "speculative-adaptive speculative-use-rejection-sampling speculative-use-block-verification log-requests "
    "enable-dp-attention disable-overlap-schedule enable-p2p-check disable-custom-all-reduce skip-tokenizer-init"
)
_ALIASES = {
    "model-path": ("--model",),
    "tensor-parallel-size": ("--tp", "--tp-size"),
    "pipeline-parallel-size": ("--pp", "--pp-size"),
    "data-parallel-size": ("--dp", "--dp-size"),
    "expert-parallel-size": ("--ep", "--ep-size"),
    "speculative-draft-model-path": ("--speculative-draft-model",),
}
_LISTS = "cuda-graph-bs lora-paths"
_JSON = "json-model-override-args model-loader-extra-config"
_FLAGS = FlagTable.of(
    [
        *(Flag(name, Kind.VALUE, _ALIASES.get(name, ())) for name in _VALUES.split()),
        *(Flag(name, Kind.SWITCH) for name in _SWITCHES.split()),
        *(Flag(name, Kind.LIST) for name in _LISTS.split()),
        *(Flag(name, Kind.JSON) for name in _JSON.split()),
    ]
)


def _executable(path: str, rest: Sequence[str]) -> int | None:
    if posixpath.basename(path) == "sglang":
        return 1 if tuple(rest[:1]) == ("serve",) else None
    return 0 if path.endswith("sglang/launch_server.py") else None


def _module(name: str, rest: Sequence[str]) -> int | None:
    if name == "sglang.launch_server":
        return 0
    return 1 if name in {"sglang", "sglang.cli.main"} and tuple(rest[:1]) == ("serve",) else None


def _rule(pattern: str, stage: str = "", **more: Any) -> StageRule:
    return StageRule(re.compile(pattern), stage, **more)


_RULES = LogRules(
    parse=parse_sglang_line,
    by_head={
        "Load": (
            _rule(r"Load weight begin", Stage.WEIGHTS),
            _rule(
                r"Load weight end\.(?: elapsed=(?P<weights_s_f>[\d.]+) s,)?.*?"
                r"(?:mem usage=(?P<load_gib>[\d.]+) GB)?\.?$",
                Stage.WEIGHTS,
                finishes=True,
            ),
        ),
        "Loading": (_rule(r"Loading [\w ]*shards:\s+\d+% Completed \| (?P<done>\d+)/(?P<total>\d+)", Stage.WEIGHTS),),
        "Multi-thread": (_rule(r"Multi-thread loading shards:.*?(?P<done>\d+)/(?P<total>\d+) ", Stage.WEIGHTS),),
        "Using": (_rule(r"Using draft model load_format", Stage.WEIGHTS, facts={"drafter": True}),),
        "Memory": (_rule(r"Memory pool end", Stage.WEIGHTS, finishes=True),),
        "Capture": (
            _rule(r"Capture .*[Gg]raphs? begin", Stage.CAPTURE),
            _rule(
                r"Capture .*[Gg]raphs? end\.(?:.*?elapsed[:=] ?(?P<capture_s_f>[\d.]+))?", Stage.CAPTURE, finishes=True
            ),
        ),
        "Capturing": (
            _rule(r"Capturing batches.*?\|\s*(?P<done>\d+)/(?P<total>\d+)", Stage.CAPTURE),
            _rule(r"Capturing ", Stage.CAPTURE),
        ),
        "INFO:": (_rule(r"INFO:\s+(?:Uvicorn running on|Application startup complete)", Stage.SERVER),),
        "Application": (_rule(r"Application startup complete", Stage.SERVER),),
        "Uvicorn": (_rule(r"Uvicorn running on ", Stage.SERVER),),
        "The": (_rule(r"The server is fired up and ready to roll", Stage.SERVER, finishes=True),),
    },
    anywhere=(
        ("server_args=ServerArgs(", _rule(r"server_args=(?P<server_args>ServerArgs\(.*)", Stage.LAUNCH)),
        ("max_total_num_tokens=", _rule(r"max_total_num_tokens=(?P<kv_tokens_i>\d+)")),
    ),
    terminal=re.compile(
        r"Scheduler hit an exception|Received sigquit from a child process|Rank \d+ scheduler is dead"
        r"|error while attempting to bind on address|Watchdog timeout \("
        r"|Initialization failed\. (?:warmup|detoken)|killed by the OOM killer|TokenizerManager hit an exception"
    ),
    stop=re.compile(r"(?:INFO:)?\s*Shutting down$|Gracefully exiting|SIGTERM received|KeyboardInterrupt"),
    harmless=re.compile(r"Error (?:in|with|while) (?:request|handling|generat)|Exception in ASGI application"),
    generic=re.compile(r"Received sigquit|scheduler is dead|BrokenPipeError|EOFError|zmq\.error"),
    died=re.compile(r"OOM killer|scheduler is dead"),
    native=re.compile(r"terminate called after|Segmentation fault|Fatal Python error|CUDA error: |std::bad_alloc"),
    fatal=re.compile(
        r"OutOfMemoryError|out of memory|illegal memory access|device-side assert|unspecified launch failure"
        r"|No available memory for the cache blocks|uncorrectable ECC"
    ),
    entry_frame=re.compile(r'File "(?:<frozen runpy>|<string>|.*sglang/launch_server\.py|.*/bin/sglang)", line'),
    failures=(
        FailureRule(
            re.compile(r"Not enough memory\. Please try to increase --mem-fraction-static"),
            "kv-cache",
            "the KV cache does not fit",
            "change --mem-fraction-static",
        ),
        FailureRule(
            re.compile(r"alloc_\w+ runs out of memory|(?:Prefill|Decode) out of memory"),
            "kv-cache",
            "the KV cache ran out while it served: {line}",
            "lower --max-running-requests",
        ),
        FailureRule(
            re.compile(r"Watchdog timeout \("),
            "hang",
            "a forward pass took longer than the server's own watchdog allows",
            "see --watchdog-timeout; a hanging collective operation or a compilation can do it",
        ),
        *COMMON_FAILURES,
    ),
    repeats_prefix=False,
    refusing_frame=re.compile(r'File ".*/sglang/srt/(?:server_args\.py|configs/)'),
)
_SPECULATIVE = re.compile(r"speculative_(\w+)=('(?:[^'\\]|\\.)*'|None|True|False|[\d.]+)")


class SglangReader(RuleReader):
    """Reads SGLang's log; the fact `speculative` comes from the server's own argument line."""

    def __init__(self) -> None:
        super().__init__(_RULES)

    def feed(self, text: str) -> list[Observation]:
        """Take one journal record and say what it shows."""
        shown = super().feed(text)
        if "server_args" in self._facts:
            line = str(self._facts.pop("server_args"))
            values = {name: ast.literal_eval(text) for name, text in _SPECULATIVE.findall(line)}
            if "algorithm" in values:
                asked = {name: value for name, value in values.items() if value is not None}
                self._facts["speculative"] = asked if values["algorithm"] is not None else {}
        return shown


class Sglang(TableEngine):
    """SGLang's server, 0.4 and newer."""

    name = "sglang"
    uses_graphs = True
    programs = Programs("SGLang", _executable, _module)
    flags = _FLAGS
    rules = _RULES
    default_port = 30000
    model_flags = ("model-path", "model")
    draft_flag = "speculative-draft-model-path"
    series = Series(
        {
            "process_start": ("process_start_time_seconds",),
            "prompt_tokens": ("sglang:prompt_tokens_total",),
            "generation_tokens": ("sglang:generation_tokens_total",),
            "requests_finished": ("sglang:num_requests_total",),
            "running": ("sglang:num_running_reqs",),
            "waiting": ("sglang:num_queue_reqs",),
            "kv_usage": ("sglang:token_usage",),
            "preemptions": ("sglang:num_retracted_reqs_total", "sglang:num_retracted_reqs"),
            "drafts": ("sglang:spec_verify_calls_total",),
        }
    )

    def reader(self) -> LogReader:
        """See Engine.reader."""
        return SglangReader()

    def speculation_asked(self, command: ServerCommand) -> Mapping[str, Any]:
        """See Engine.speculation_asked; keys as SGLang's log names them: algorithm, num_steps, ..."""
        if "speculative-algorithm" not in command.flags:
            return {}
        prefix = "speculative-"
        return {
            name.removeprefix(prefix).replace("-", "_"): int(value)
            if isinstance(value, str) and value.isdigit()
            else value
            for name, value in command.flags.items()
            if name.startswith(prefix)
        }

    async def opinion(self, host: Host, question: Question) -> Check:
        """Ask SGLang's own argument parser, which also resolves settings against the model's configuration."""
        secrets = masking.secrets_in(question.argv, question.env)
        about = {"argv": list(question.server_words)}
        try:
            told = last_json_line(await ask(host, question, [None, "-c", _PROBE], about))
        except (CantAsk, PrivilegeRefused) as why:
            return Check.unchecked(_ACCEPTS, masking.mask(str(why), secrets))
        if told is None or told.get("stage") == "import":
            why_not = printable(str(told.get("error", "")))[:200] if told else "no answer"
            return Check.unchecked(_ACCEPTS, masking.mask(f"SGLang could not be asked: {why_not}", secrets))
        if told.get("ok"):
            return Check.passed(_ACCEPTS, f"SGLang {told.get('version')} accepts it")
        lines = printable(str(told.get("error", ""))).strip().splitlines() or ["no message"]
        return Check.failed(_ACCEPTS, masking.mask(f"SGLang would refuse it: {lines[-1][:300]}", secrets))
