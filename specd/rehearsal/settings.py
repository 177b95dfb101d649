"""From a parsed command line to the settings of one start, with the refusals that come before any load."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .command import Command
from .script import Script
from .speculative import Speculative, SpeculativeError, merge_shortcuts, resolve

# Python files and functions named in vLLM's tracebacks for a refused configuration; text only, nothing is run.
_CONFIG_FRAMES = (
    ("vllm/entrypoints/cli/serve.py", "cmd"),
    ("vllm/entrypoints/launchers/api_server/entry.py", "run_server"),
    ("vllm/entrypoints/launchers/api_server/entry.py", "build_async_engine_client"),
    ("vllm/engine/arg_utils.py", "create_engine_config"),
)


class ConfigError(Exception):
    """A configuration that vLLM refuses after parsing; the text is its last exception, exit code 1."""

    exit_code = 1
    frames: Sequence[tuple[str, str]] = _CONFIG_FRAMES


@dataclass(frozen=True)
class Settings:
    """Everything a start needs to know from its command line, environment and model directory."""

    model: str
    served_model_names: Sequence[str]
    host: str
    port: int
    uds: str | None
    api_keys: Sequence[str]
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    tensor_parallel_size: int
    is_eager: bool
    has_prefix_caching: bool
    has_log_stats: bool
    has_access_log: bool
    quiet_endpoints: Sequence[str]
    has_reasoning_parser: bool
    forces_usage: bool
    stream_interval: int
    shutdown_timeout_s: float
    reads_weights: bool
    gpu_memory_utilization: float
    speculative: Speculative | None
    architecture: str


def resolve_settings(command: Command, script: Script, environ: Mapping[str, str]) -> Settings:
    """Check what can be checked without loading; raises ConfigError."""
    values = command.values
    model_config = _model_config(command.model, script)
    max_model_len = _max_model_len(values.get("max_model_len"), model_config, script, environ)
    tensor_parallel = values["tensor_parallel_size"]
    try:
        speculative = resolve(
            merge_shortcuts(values), command.model, tensor_parallel, draft_must_exist=script.model_must_exist
        )
    except SpeculativeError as error:
        raise ConfigError(str(error)) from error
    keys = [key for key in (values.get("api_key") or [environ.get("VLLM_API_KEY", "")]) if key]
    quiet = values.get("disable_access_log_for_endpoints") or ""
    level = str(values.get("optimization_level", 2))
    return Settings(
        model=command.model,
        served_model_names=values.get("served_model_name") or [command.model],
        host=values.get("host") or "0.0.0.0",
        port=values["port"],
        uds=values.get("uds"),
        api_keys=keys,
        max_model_len=max_model_len,
        max_num_seqs=_positive(values.get("max_num_seqs"), "max_num_seqs", "SchedulerConfig", script.max_num_seqs),
        max_num_batched_tokens=_positive(
            values.get("max_num_batched_tokens"), "max_num_batched_tokens", "SchedulerConfig", 8192
        ),
        tensor_parallel_size=_positive(tensor_parallel, "tensor_parallel_size", "ParallelConfig", 1),
        is_eager=bool(values["enforce_eager"]) or level == "0",
        has_prefix_caching=values.get("enable_prefix_caching") is not False,
        has_log_stats=not values["disable_log_stats"],
        has_access_log=not values["disable_uvicorn_access_log"],
        quiet_endpoints=[path.strip() for path in quiet.split(",") if path.strip()],
        has_reasoning_parser=bool(values.get("reasoning_parser")),
        forces_usage=bool(values["enable_force_include_usage"]),
        stream_interval=max(1, values["stream_interval"]),
        shutdown_timeout_s=values["shutdown_timeout"],
        reads_weights=values["load_format"] != "dummy",
        gpu_memory_utilization=values["gpu_memory_utilization"],
        speculative=speculative,
        architecture=str((model_config.get("architectures") or ["Qwen3MoeForCausalLM"])[0]),
    )


def _model_config(model: str, script: Script) -> Mapping[str, Any]:
    """Return the model directory's config.json, empty where there is none; raises ConfigError for a missing path."""
    is_path = model.startswith(("/", "./", "../"))
    if is_path and script.model_must_exist and not os.path.isdir(model):
        raise ConfigError(
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
            f"'namespace/repo_name': '{model}'. Use `repo_type` argument if needed."
        )
    try:
        with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"OSError: It looks like the config file at '{model}/config.json' is not a valid JSON file. ({error})"
        ) from error
    return config if isinstance(config, dict) else {}


def _max_model_len(asked: int | None, config: Mapping[str, Any], script: Script, environ: Mapping[str, str]) -> int:
    text_config = config.get("text_config")
    source = text_config if isinstance(text_config, dict) else config
    derived = source.get("max_position_embeddings", config.get("max_position_embeddings"))
    if asked is None or asked == -1:
        return int(derived or script.max_model_len)
    if asked < 1:
        raise ConfigError(_validation("ModelConfig", f"max_model_len must be positive, got {asked}"))
    if derived and asked > derived and environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") != "1":
        raise ConfigError(
            _validation(
                "ModelConfig",
                f"User-specified max_model_len ({asked}) is greater than the derived max_model_len "
                f"(max_position_embeddings={float(derived)} or model_max_length=None in model's config.json). To allow "
                "overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1.",
            )
        )
    return asked


def _positive(value: int | None, name: str, config: str, default: int) -> int:
    if value is None:
        return default
    if value < 1:
        raise ConfigError(
            f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {config}\n{name}\n  Input should be "
            f"greater than or equal to 1 [type=greater_than_equal, input_value={value}, input_type=int]\n"
            "    For further information visit https://errors.pydantic.dev/2.14/v/greater_than_equal"
        )
    return value


def _validation(config: str, reason: str) -> str:
    return (
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {config}\n  Value error, {reason} "
        "[type=value_error, input_value=ArgsKwargs((), {...}), input_type=ArgsKwargs]\n"
        "    For further information visit https://errors.pydantic.dev/2.14/v/value_error"
    )
