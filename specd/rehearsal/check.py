"""`check -- ARGV`: would this engine accept that argv? The same code as a real start, without starting."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .command import Command, UsageError, parse
from .script import Script
from .settings import ConfigError, Settings, resolve_settings

MODULE_NAME = "vllm.entrypoints.openai.api_server"


def parse_serve(argv: Sequence[str]) -> Command:
    """Parse `serve MODEL ...`, or the argv of the module form (with or without `-m MODULE`); raises UsageError."""
    if argv[:1] == ["serve"]:
        return parse(argv[1:])
    if argv[:2] == ["-m", MODULE_NAME]:
        return parse(argv[2:], is_module_form=True)
    return parse(argv, is_module_form=True)


def run_check(argv: Sequence[str], script: Script, environ: Mapping[str, str]) -> int:
    """Print one JSON object about `argv` and return the exit code that a start would have had."""
    began = time.monotonic()
    answer = _refusal("argparse", "", 0) | {"version": script.version}
    words = list(argv)
    # A bare MODEL without `serve` is how a check of the flags alone is written.
    if words and words[0] not in ("serve", "-m") and not words[0].startswith("-"):
        words = ["serve", *words]
    try:
        command = parse_serve(words)
        answer["stage"] = "create_engine_config"
        answer.update(_accepted(resolve_settings(command, script, environ)))
    except UsageError as error:
        answer.update(error=_without_usage(str(error)), exit_code=error.exit_code)
    except ConfigError as error:
        answer.update(error=str(error), exit_code=error.exit_code)
    return _print({**answer, "seconds": round(time.monotonic() - began, 3)})


def _without_usage(text: str) -> str:
    """Drop the usage lines that argparse puts before its refusal."""
    lines = text.strip().splitlines()
    first = next(index for index, line in enumerate(lines) if ": error: " in line)
    return "\n".join(lines[first:])


def refuse_script(error: str) -> int:
    """Print the answer to a check whose script cannot be used, and return the exit code."""
    return _print(_refusal("script", error, 2))


def _refusal(stage: str, error: str, exit_code: int) -> dict[str, Any]:
    answer: dict[str, Any] = {"ok": False, "stage": stage, "error": error, "exit_code": exit_code}
    return {**answer, "speculative": None, "max_model_len": None, "served_model_name": None, "version": None}


def _print(answer: Mapping[str, Any]) -> int:
    sys.stdout.write(json.dumps(answer) + "\n")
    return int(answer["exit_code"])


def _accepted(settings: Settings) -> dict[str, Any]:
    speculative = settings.speculative
    return {
        "ok": True,
        "max_model_len": settings.max_model_len,
        "served_model_name": list(settings.served_model_names),
        "speculative": None
        if speculative is None
        else {
            "method": speculative.method,
            "num_speculative_tokens": speculative.num_speculative_tokens,
            "prompt_lookup_min": speculative.prompt_lookup_min,
            "prompt_lookup_max": speculative.prompt_lookup_max,
            "model": speculative.model,
        },
    }
