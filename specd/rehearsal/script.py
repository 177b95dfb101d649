"""The script of a rehearsal: every time, size and rate the engine plays by, each with a default.

SPECD_REHEARSAL holds it as JSON text or as the path of a JSON file; SPECD_REHEARSAL_FAULT adds faults on top, so that
one environment variable is enough to make a start go wrong.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .faults import STAGES, FaultError, Faults
from .faults import parse as parse_faults

SCRIPT_VARIABLE = "SPECD_REHEARSAL"
FAULT_VARIABLE = "SPECD_REHEARSAL_FAULT"

DEFAULT_STAGE_S = {
    "import": 0.2,
    "config": 0.2,
    "engine": 0.3,
    "weights": 1.0,
    "compile": 0.6,
    "capture": 0.5,
    "startup": 0.2,
}


class ScriptError(ValueError):
    """A script that cannot be used; the text has one line for each mistake."""


@dataclass(frozen=True)
class Script:
    """What a start takes and how the server then behaves. Times in s or ms, sizes in MiB or GiB, as the names say.

    `model_must_exist` covers a draft model too. `time_scale` stretches everything that is timed here: stages, steps and
    prefill. 0 in a count of captures, null in `acceptance` and -1 in `draft_ms_per_token` mean the default of the
    speculation method; `reasoning` is by default a field of its own exactly when --reasoning-parser is given, as in
    vLLM. `answer_tokens` bounds the natural length of an answer, reasoning included; `reasoning_share` is its share of
    thinking.
    """

    version: str = "0.32.0+rehearsal"
    model_must_exist: bool = True
    stages: Mapping[str, float] = field(default_factory=dict)
    time_scale: float = 1.0
    shards: int = 4
    bar: str = "newline"
    silent_loading: bool = False
    weights_mib: float = 16.0
    read_mib: float = 16.0
    reported_weights_gib: float = 57.72
    cpu_share: float = 0.05
    piecewise_captures: int = 0
    full_captures: int = 0
    kv_cache_tokens: int = 652_016
    max_model_len: int = 32_768
    max_num_seqs: int = 256
    swallow_sigterm: bool = True
    death_linger_s: float = 2.0
    base_step_ms: float = 13.6
    slope: float = 0.21
    saturation: float = 3.5
    step_noise: float = 0.01
    prefill_ms_per_token: float = 0.05
    ngram_match_rate: float = 0.6
    acceptance: Any = None
    acceptance_spread: float = 0.15
    draft_ms_per_token: float = -1.0
    tokens_per_chunk: int = 1
    reasoning: str = "auto"
    reasoning_share: float = 0.4
    ignore_thinking_switch: bool = False
    answer_tokens: Sequence[int] = (180, 420)
    seed: int = 0
    faults: str = ""

    def stage_s(self, stage: str) -> float:
        """Return how long a stage takes, in seconds."""
        return float(self.stages.get(stage, DEFAULT_STAGE_S.get(stage, 0.0))) * self.time_scale


_CHOICES: dict[str, Sequence[Any]] = {
    "bar": ("newline", "cr"),
    "reasoning": ("auto", "reasoning", "reasoning_content", "both", "none"),
    "tokens_per_chunk": (1, 2, 4, 8, 16),
}
# Lowest and highest value allowed, both included.
_RANGES: dict[str, tuple[float, float]] = {
    "time_scale": (0, 10_000),
    "shards": (1, 10_000),
    "weights_mib": (0, 1 << 20),
    "read_mib": (0, 1 << 30),
    "reported_weights_gib": (0, 1 << 20),
    "cpu_share": (0, 1),
    "piecewise_captures": (0, 10_000),
    "full_captures": (0, 10_000),
    "kv_cache_tokens": (1, 1 << 40),
    "max_model_len": (16, 1 << 40),
    "max_num_seqs": (1, 1 << 20),
    "death_linger_s": (0, 3600),
    "base_step_ms": (0, 60_000),
    "slope": (0, 1000),
    "saturation": (1, 1_000_000),
    "step_noise": (0, 0.5),
    "prefill_ms_per_token": (0, 10_000),
    "ngram_match_rate": (0, 1),
    "acceptance_spread": (0, 1),
    "draft_ms_per_token": (-1, 10_000),
    "reasoning_share": (0, 1),
}


def load(environ: Mapping[str, str]) -> tuple[Script, Faults]:
    """Read script and faults from the environment; raises ScriptError."""
    text = environ.get(SCRIPT_VARIABLE, "").strip()
    script = from_mapping(_read(text)) if text else Script()
    try:
        faults = parse_faults(f"{script.faults},{environ.get(FAULT_VARIABLE, '')}")
    except FaultError as error:
        raise ScriptError(str(error)) from error
    return script, faults


def from_mapping(values: Mapping[str, Any]) -> Script:
    """Build a script from decoded JSON; raises ScriptError with all mistakes at once."""
    known = {each.name: each for each in dataclasses.fields(Script)}
    defaults = Script()
    mistakes: list[str] = []
    for key, value in values.items():
        if key not in known:
            mistakes.append(f"unknown key {key!r}{_nearest(key, list(known))}")
        else:
            mistakes.extend(_mistakes(key, value, getattr(defaults, key)))
    if mistakes:
        raise ScriptError("\n".join(f"{SCRIPT_VARIABLE}: {mistake}" for mistake in mistakes))
    return Script(**values)


def _read(text: str) -> Mapping[str, Any]:
    try:
        if not text.startswith("{"):
            with open(text, encoding="utf-8") as file:
                text = file.read()
        values = json.loads(text)
    except OSError as error:
        raise ScriptError(f"{SCRIPT_VARIABLE}: cannot read {text!r}: {error.strerror}") from error
    except ValueError as error:
        raise ScriptError(f"{SCRIPT_VARIABLE}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ScriptError(f"{SCRIPT_VARIABLE}: expected a JSON object")
    return values


def _mistakes(key: str, value: Any, default: Any) -> list[str]:
    if key == "stages":
        return _stage_mistakes(value)
    if key == "acceptance":
        return [] if _is_acceptance(value) else ["acceptance: expected null, a rate or a list of rates between 0 and 1"]
    if key == "answer_tokens":
        is_pair = isinstance(value, list) and len(value) == 2 and all(type(n) is int and n > 0 for n in value)
        return [] if is_pair and value[0] <= value[1] else ["answer_tokens: expected [lowest, highest]"]
    if not _has_type_of(value, default):
        return [f"{key}: expected {type(default).__name__}, not {value!r}"]
    if key in _CHOICES and value not in _CHOICES[key]:
        return [f"{key}: {value!r} is not one of {', '.join(map(str, _CHOICES[key]))}"]
    low, high = _RANGES.get(key, (float("-inf"), float("inf")))
    if not isinstance(value, (str, bool)) and not low <= value <= high:
        return [f"{key}: {value!r} is not between {low:g} and {high:g}"]
    return []


def _stage_mistakes(value: Any) -> list[str]:
    if not isinstance(value, dict):
        return ["stages: expected an object of stage: seconds"]
    mistakes = []
    for stage, seconds in value.items():
        if stage not in DEFAULT_STAGE_S:
            mistakes.append(f"stages: unknown stage {stage!r}{_nearest(stage, STAGES[:-1])}")
        elif isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= 86_400:
            mistakes.append(f"stages.{stage}: {seconds!r} is not a number of seconds")
    return mistakes


def _is_acceptance(value: Any) -> bool:
    rates = value if isinstance(value, list) else [value]
    return value is None or all(
        isinstance(rate, (int, float)) and not isinstance(rate, bool) and 0 <= rate <= 1 for rate in rates
    )


def _has_type_of(value: Any, default: Any) -> bool:
    if isinstance(default, float):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is type(default)


def _nearest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
