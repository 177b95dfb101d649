"""The speculative configuration: vLLM's checks and defaults, in its words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

METHODS = [
    "ngram",
    "medusa",
    "mlp_speculator",
    "draft_model",
    "suffix",
    "custom_class",
    "eagle",
    "eagle3",
    "extract_hidden_states",
    "deepseek_mtp",
    "dots3_note_mtp",
    "mimo_mtp",
    "mimo_v2_mtp",
    "glm4_moe_mtp",
    "glm4_moe_lite_mtp",
    "glm_ocr_mtp",
    "ernie_mtp",
    "nemotron_h_mtp",
    "exaone_moe_mtp",
    "exaone4_5_mtp",
    "qwen3_next_mtp",
    "qwen4_exp_mtp",
    "qwen3_5_mtp",
    "longcat_flash_mtp",
    "bailing_hybrid_v3_mtp",
    "minimax_m3_mtp",
    "bailing_hybrid_mtp",
    "mtp",
    "kimi_k3_mtp",
    "pangu_ultra_moe_mtp",
    "step3p5_mtp",
    "hy_v3_mtp",
    "hy_v4_mtp",
    "gemma4_mtp",
    "inkling_mtp",
    "glm5_next_mtp",
    "dflash",
    "ngram_gpu",
    "dspark",
]
_WITHOUT_DRAFT = ("ngram", "ngram_gpu", "suffix", "extract_hidden_states", "custom_class")
_NGRAM = ("ngram", "ngram_gpu")

# Field: (type, lowest value allowed or None). The order is the order of pydantic's complaints.
_FIELDS: dict[str, tuple[str, int | None]] = {
    "enforce_eager": ("bool", None),
    "num_speculative_tokens": ("int", 1),
    "model": ("str", None),
    "method": ("method", None),
    "draft_tensor_parallel_size": ("int", 1),
    "tensor_parallel_size": ("int", None),
    "quantization": ("str", None),
    "moe_backend": ("str", None),
    "attention_backend": ("str", None),
    "kv_cache_dtype": ("str", None),
    "max_model_len": ("int", 1),
    "revision": ("str", None),
    "code_revision": ("str", None),
    "index_share_for_mtp_iteration": ("bool", None),
    "disable_padded_drafter_batch": ("bool", None),
    "disable_eagle_block_drop": ("bool", None),
    "use_local_argmax_reduction": ("bool", None),
    "use_heterogeneous_vocab": ("bool", None),
    "prompt_lookup_max": ("int", 1),
    "prompt_lookup_min": ("int", 1),
    "parallel_drafting": ("bool", None),
    "num_speculative_tokens_per_batch_size": ("list", None),
    "suffix_decoding_max_tree_depth": ("int", None),
    "suffix_decoding_max_cached_requests": ("int", None),
    "suffix_decoding_max_spec_factor": ("float", None),
    "suffix_decoding_min_token_prob": ("float", None),
    "draft_load_config": ("dict", None),
    "rejection_sample_method": ("str", None),
    "synthetic_acceptance_rates": ("list", None),
    "synthetic_acceptance_length": ("float", None),
    "enable_adaptive_verification": ("bool", None),
    "draft_sample_method": ("str", None),
    "dspark_draft_topk": ("int", 1),
}


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "str": (str,),
    "list": (list,),
    "dict": (dict,),
    "float": (int, float),
}


class SpeculativeError(ValueError):
    """A speculative configuration that vLLM refuses; the text is the exception it prints, name included."""


@dataclass(frozen=True)
class Speculative:
    """A resolved speculative configuration."""

    method: str
    num_speculative_tokens: int
    model: str | None = None
    prompt_lookup_min: int = 0
    prompt_lookup_max: int = 0

    def __repr__(self) -> str:
        """Show it as the engine's config line does."""
        return (
            f"SpeculativeConfig(method={self.method!r}, model={self.model!r}, "
            f"num_spec_tokens={self.num_speculative_tokens})"
        )


def merge_shortcuts(values: Mapping[str, Any]) -> Any:
    """Join --speculative-config with --spec-method, --spec-model and --spec-tokens; raises SpeculativeError."""
    raw = values.get("speculative_config")
    for dest, key in (("spec_method", "method"), ("spec_model", "model"), ("spec_tokens", "num_speculative_tokens")):
        if values.get(dest) is None:
            continue
        raw = {} if raw is None else raw
        flag = f"--{dest.replace('_', '-')}"
        if key in raw:
            raise SpeculativeError(f"ValueError: {flag} and --speculative-config['{key}'] are mutually exclusive")
        raw = {**raw, key: values[dest]}
    return raw


def resolve(
    raw: Any, target_model: str, target_tensor_parallel: int, *, draft_must_exist: bool = True
) -> Speculative | None:
    """Check a speculative configuration and fill in its defaults; raises SpeculativeError."""
    if raw is None:
        return None
    if not isinstance(raw, dict):
        raise SpeculativeError(f"AttributeError: '{type(raw).__name__}' object has no attribute 'items'")
    given = {key.replace("-", "_"): value for key, value in raw.items()}
    complaints = _field_complaints(given)
    if complaints:
        raise SpeculativeError(_validation_error(complaints))
    given.update({name: int(given[name]) for name in given if _FIELDS[name][0] == "int" and given[name] is not None})
    method = _infer_method(given)
    tokens = given.get("num_speculative_tokens")
    if method == "suffix" and tokens is None:
        tokens = 24
    _check_draft(given, method, tokens, target_tensor_parallel)
    low, high = _lookup_window(given) if method in _NGRAM else (0, 0)
    if low > high:
        raise _value_error(given, f"prompt_lookup_min={low} must be <= prompt_lookup_max={high}")
    model = given.get("model")
    if draft_must_exist and method not in _WITHOUT_DRAFT and model is not None and not _may_exist(model):
        raise _value_error(given, _NO_DRAFT.format(model=model))
    if method in ("mtp", "dspark") and model is None:
        model = target_model
    if tokens is None:
        raise _value_error(
            given,
            "num_speculative_tokens must be provided with speculative model unless the draft model config contains an "
            "n_predict parameter.",
        )
    return Speculative(method, tokens, None if method in _WITHOUT_DRAFT else model, low, high)


_NO_DRAFT = """Invalid repository ID or local directory specified: '{model}'.
Please verify the following requirements:
1. Provide a valid Hugging Face repository ID.
2. Specify a local directory that contains a recognized configuration file.
   - For Hugging Face models: ensure the presence of a 'config.json'.
   - For Mistral models: ensure the presence of a 'params.json'.
"""


def _infer_method(given: Mapping[str, Any]) -> str:
    method = given.get("method")
    model = given.get("model")
    if method is None:
        if model in ("ngram", "[ngram]"):
            return "ngram"
        named = [kind for kind in ("eagle3", "eagle-", "dflash", "dspark") if kind in str(model or "").lower()]
        return named[0].rstrip("-") if named else "draft_model"
    return "mtp" if method.endswith("_mtp") else str(method)


def _check_draft(given: Mapping[str, Any], method: str, tokens: int | None, target_tensor_parallel: int) -> None:
    if given.get("tensor_parallel_size") is not None:
        raise _value_error(
            given,
            "'tensor_parallel_size' is not a valid argument in the speculative_config. Please pass "
            "'draft_tensor_parallel_size' instead.",
        )
    needs_model = method not in (*_WITHOUT_DRAFT, "mtp", "dspark")
    if needs_model and given.get("model") is None and tokens is not None:
        raise _value_error(given, "num_speculative_tokens was provided but without speculative model.")
    draft_parallel = given.get("draft_tensor_parallel_size")
    if draft_parallel not in (None, 1, target_tensor_parallel) and method not in _WITHOUT_DRAFT:
        raise _value_error(
            given,
            f"speculative_draft_tensor_parallel_size={draft_parallel} cannot be other value than 1 or target model "
            "tensor_parallel_size",
        )


def _lookup_window(given: Mapping[str, Any]) -> tuple[int, int]:
    low, high = given.get("prompt_lookup_min"), given.get("prompt_lookup_max")
    if low is None and high is None:
        return 5, 5
    return (high if low is None else low), (low if high is None else high)  # type: ignore[return-value]


def _may_exist(model: str) -> bool:
    is_path = model.startswith(("/", "./", "../", "~"))
    return os.path.isdir(os.path.expanduser(model)) or not is_path


def _field_complaints(given: Mapping[str, Any]) -> list[str]:
    complaints: list[str] = []
    for name, (kind, lowest) in _FIELDS.items():
        if given.get(name) is not None:
            complaints += _type_complaint(name, kind, lowest, given[name])
    for name in given:
        if name not in _FIELDS:
            reason = "Unexpected keyword argument"
            complaints.append(_complaint(name, reason, "unexpected_keyword_argument", given[name]))
    return complaints


def _type_complaint(name: str, kind: str, lowest: int | None, value: Any) -> list[str]:
    if kind == "method":
        if value in METHODS:
            return []
        listed = ", ".join(f"'{method}'" for method in METHODS[:-1]) + f" or '{METHODS[-1]}'"
        return [_complaint(name, f"Input should be {listed}", "literal_error", value)]
    if kind == "int":
        return _int_complaint(name, lowest, value)
    if isinstance(value, _PYTHON_TYPES[kind]) and not (kind == "float" and isinstance(value, bool)):
        return []
    words = {"bool": "boolean", "str": "string", "list": "list", "dict": "dictionary", "float": "number"}
    return [_complaint(name, f"Input should be a valid {words[kind]}", f"{words[kind]}_type", value)]


def _int_complaint(name: str, lowest: int | None, value: Any) -> list[str]:
    if isinstance(value, str) and value.lstrip("+-").isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        if isinstance(value, str):
            reason = "Input should be a valid integer, unable to parse string as an integer"
            return [_complaint(name, reason, "int_parsing", value)]
        return [_complaint(name, "Input should be a valid integer", "int_type", value)]
    if lowest is None or value >= lowest:
        return []
    if name == "num_speculative_tokens":
        return [_complaint(name, "Input should be greater than 0", "greater_than", value)]
    return [_complaint(name, f"Input should be greater than or equal to {lowest}", "greater_than_equal", value)]


def _complaint(name: str, reason: str, code: str, value: Any) -> str:
    return (
        f"{name}\n  {reason} [type={code}, input_value={_shorten(repr(value))}, input_type={type(value).__name__}]\n"
        f"    For further information visit https://errors.pydantic.dev/2.14/v/{code}"
    )


def _validation_error(complaints: list[str]) -> str:
    count = f"{len(complaints)} validation error{'s' if len(complaints) > 1 else ''} for SpeculativeConfig"
    return "\n".join([f"pydantic_core._pydantic_core.ValidationError: {count}", *complaints])


def _value_error(given: Mapping[str, Any], reason: str) -> SpeculativeError:
    arguments = _shorten(f"ArgsKwargs((), {dict(given)!r})")
    complaint = (
        f"  Value error, {reason} [type=value_error, input_value={arguments}, input_type=ArgsKwargs]\n"
        "    For further information visit https://errors.pydantic.dev/2.14/v/value_error"
    )
    return SpeculativeError(_validation_error([complaint]))


def _shorten(text: str) -> str:
    return text if len(text) <= 50 else f"{text[:25]}...{text[-24:]}"
