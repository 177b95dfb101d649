"""The command line of `vllm serve`: every flag of 0.32, its spelling variants and its refusals.

`flags.jsonl` has one flag a line in the order in which vLLM declares them (which is also the order of the
`non-default args` log line): names, destination, arity, kind of value, choices, default.
"""

from __future__ import annotations

import argparse
import functools
import json
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
_SERVE_USAGE = "usage: vllm serve [model_tag] [options]\n"
_MAIN_USAGE = (
    "usage: vllm [-h] [-v]\n"
    "            {chat,complete,serve,launch,bench,collect-env,download-kernels,preload,run-batch,snapshot}\n"
    "            ...\n"
)
_MODULE_PROG = "api_server.py"
_SUFFIX = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class UsageError(Exception):
    """An argv that vLLM's parser refuses; the text is what it prints, the exit code is 2."""

    exit_code = 2


@dataclass(frozen=True)
class Command:
    """A parsed command line: all values by destination, and those that differ from vLLM's defaults."""

    model: str
    values: Mapping[str, Any]
    changed: Mapping[str, Any]
    warnings: Sequence[str]


def parse(argv: Sequence[str], *, is_module_form: bool = False) -> Command:
    """Parse what follows `serve` (or the module form's argv); raises UsageError, and SystemExit(0) after --help."""
    warnings: list[str] = []
    words = list(argv)
    if not is_module_form:
        words = _move_model_to_front(words, warnings)
    words, duplicates = _normalise(words)
    if duplicates:
        warnings.append(f"Found duplicate keys {', '.join(duplicates)}")
    if any(word == "--config" or word.startswith("--config=") for word in words):
        raise UsageError(
            f"{_SERVE_USAGE}vllm serve: error: argument --config: the rehearsal engine does not read config files; "
            "write the flags on the command line\n"
        )
    parser, defaults = _build_parser(_MODULE_PROG if is_module_form else "vllm serve")
    namespace, extra = parser.parse_known_args(words)
    if extra:
        head = f"usage: {_MODULE_PROG} [-h]\n{_MODULE_PROG}" if is_module_form else f"{_MAIN_USAGE}vllm"
        raise UsageError(f"{head}: error: unrecognized arguments: {' '.join(extra)}\n")
    values = vars(namespace)
    model = values["model_tag"] or values["model"]
    values["model"] = model
    return Command(model, values, _changed(values, defaults), warnings)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        usage = _SERVE_USAGE if self.prog == "vllm serve" else f"usage: {self.prog} [-h]\n"
        raise UsageError(f"{usage}{self.prog}: error: {message}\n")


def _build_parser(prog: str) -> tuple[_Parser, dict[str, Any]]:
    parser = _Parser(prog=prog, usage="vllm serve [model_tag] [options]", allow_abbrev=True)
    parser.add_argument("model_tag", nargs="?", default=None)
    defaults: dict[str, Any] = {"model_tag": None}
    text = pkgutil.get_data(__name__.rpartition(".")[0], "flags.jsonl") or b""
    for line in text.decode().splitlines():
        flag = json.loads(line)
        _add_flag(parser, flag)
        defaults[flag["dest"]] = flag.get("default", False if flag["arity"] in ("flag", "pair") else None)
    parser.set_defaults(**defaults)
    return parser, defaults


def _add_flag(parser: _Parser, flag: Mapping[str, Any]) -> None:
    names, dest, arity = flag["names"], flag["dest"], flag["arity"]
    if arity == "flag":
        parser.add_argument(*names, dest=dest, action="store_true")
    elif arity == "pair":
        positive = [name for name in names if not name.startswith("--no-")]
        parser.add_argument(*positive, dest=dest, action=argparse.BooleanOptionalAction)
    elif arity == "append":
        parser.add_argument(*names, dest=dest, action="append")
    else:
        convert = _converter(flag)
        choices = [choice and convert(choice) for choice in flag["choices"]] if "choices" in flag else None
        nargs = {"many": "+", "optional": "?"}.get(arity)
        parser.add_argument(
            *names, dest=dest, type=convert, nargs=nargs, const=True if nargs == "?" else None, choices=choices
        )


def _converter(flag: Mapping[str, Any]) -> Callable[[str], Any]:
    convert = _CONVERTERS.get(flag["kind"], str)
    if flag["kind"] == "config":
        convert = functools.partial(_config, flag["config"], frozenset(flag["keys"]))
    if not flag.get("nullable"):
        return convert

    def convert_or_none(text: str) -> Any:
        return None if text in ("", "None") else convert(text)

    convert_or_none.__name__ = getattr(convert, "__name__", "config")
    return convert_or_none


def _human_int(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text.strip())
    if match is None:
        return int(text)
    number, suffix = match.groups()
    if suffix.isupper() and "." in number:
        raise argparse.ArgumentTypeError(
            f"Decimals are not allowed with binary suffixes like {suffix}. "
            f"Did you mean to use {number}{suffix.lower()} instead?"
        )
    return int(float(number) * _SUFFIX[suffix]) if "." in number else int(number) * _SUFFIX[suffix]


def _human_int_or_auto(text: str) -> int:
    return -1 if text.strip() == "-1" or text.strip().lower() == "auto" else _human_int(text)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to {json.loads}.") from None


def _config(config: str, keys: frozenset[str], text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        reason = f"Invalid JSON: {error} [type=json_invalid, input_value={text!r}, input_type=str]"
        raise argparse.ArgumentTypeError(_pydantic(config, reason, "json_invalid")) from None
    if not isinstance(value, dict):
        kind = type(value).__name__
        reason = f"Input should be an object [type=dataclass_type, input_value={value!r}, input_type={kind}]"
        raise argparse.ArgumentTypeError(_pydantic(config, reason, "dataclass_type"))
    for key in value:
        if key.replace("-", "_") not in keys:
            code = "unexpected_keyword_argument"
            kind = type(value[key]).__name__
            reason = f"Unexpected keyword argument [type={code}, input_value={value[key]!r}, input_type={kind}]"
            raise argparse.ArgumentTypeError(_pydantic(config, reason, code, key))
    return value


def _dict_or_text(text: str) -> Any:
    return _json(text) if re.match(r"(?s)^\s*{.*}\s*$", text) else text


def _pydantic(config: str, reason: str, code: str, key: str = "") -> str:
    return (
        f"1 validation error for {config}\n{key}{chr(10) if key else ''}  {reason}\n"
        f"    For further information visit https://errors.pydantic.dev/2.14/v/{code}"
    )


# argparse names the converter in its own refusal, so these carry the names that vLLM's users see.
_human_int.__name__ = "human_readable_int"
_human_int_or_auto.__name__ = "human_readable_int_or_auto"
_CONVERTERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "loads": json.loads,
    "json": _json,
    "dict_or_str": _dict_or_text,
    "human_int": _human_int,
    "human_int_or_auto": _human_int_or_auto,
}


def _move_model_to_front(words: list[str], warnings: list[str]) -> list[str]:
    """Treat `--model X` as the positional argument, as `vllm serve` does."""
    for index, word in enumerate(words):
        if word != "--model" and not word.startswith("--model="):
            continue
        warnings.append(
            "With `vllm serve`, you should provide the model as a positional argument or in a config file instead of "
            "via the `--model` option. The `--model` option will be removed in a future version."
        )
        if word.startswith("--model="):
            return [word.split("=", 1)[1], *words[:index], *words[index + 1 :]]
        if index + 1 == len(words) or words[index + 1].startswith("-"):
            raise UsageError(f"{_SERVE_USAGE}vllm serve: error: argument --model: expected one argument\n")
        return [words[index + 1], *words[:index], *words[index + 2 :]]
    return words


def _normalise(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Unify spelling, merge dotted keys into one JSON value each; returns the words and the duplicated keys."""
    plain: list[str] = []
    dotted: dict[str, dict[str, Any]] = {}
    seen: set[str] = set()
    duplicates: list[str] = []
    pending = list(words)
    while pending:
        name, has_value, value = pending.pop(0).partition("=")
        if name.startswith("--"):
            head, dot, tail = name.partition(".")
            name = head.replace("_", "-") + dot + tail
        if name.startswith("-") and "." in name and not name.startswith("-."):
            if not has_value and not pending:
                raise UsageError(f"{_SERVE_USAGE}vllm serve: error: argument {name}: expected one argument\n")
            key, update = _dotted(name, value if has_value else pending.pop(0))
            duplicates.extend(f"{key}.{path}" for path in _merge(dotted.setdefault(key, {}), update))
            continue
        if name.startswith("--") and name in seen:
            duplicates.append(name)
        seen.add(name)
        plain.extend(_undotted(name, has_value, value, pending))
    for key, merged in dotted.items():
        plain += [key, json.dumps(merged)]
    return plain, list(dict.fromkeys(duplicates))


def _undotted(name: str, has_value: str, value: str, pending: Sequence[str]) -> list[str]:
    if name == "--help":
        return ["--help"]
    if name.startswith("-O"):
        if name == "-O" and not has_value:
            return ["--optimization-level"] if pending and pending[0] in ("0", "1", "2", "3") else [name]
        return ["--optimization-level", value if has_value else name[2:]]
    return [f"{name}{has_value}{value}"]


def _dotted(name: str, text: str) -> tuple[str, dict[str, Any]]:
    if name.endswith("+"):
        name, text = name[:-1], json.dumps(text.split(","))
    key, *path = name.split(".")
    try:
        nested = json.loads(text)
    except ValueError:
        try:
            nested = _human_int(text)
        except (ValueError, argparse.ArgumentTypeError):
            nested = text
    for part in reversed(path):
        nested = {part: nested}
    return key, nested


def _merge(into: dict[str, Any], update: Mapping[str, Any]) -> list[str]:
    """Merge recursively, lists by appending; returns the paths whose older value was lost."""
    lost: list[str] = []
    for key, value in update.items():
        old = into.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            lost += [f"{key}.{path}" for path in _merge(old, value)]
        elif isinstance(value, list) and isinstance(old, list):
            old += value
        else:
            lost += [key] if key in into else []
            into[key] = value
    return lost


def _changed(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    changed = {name: values[name] for name in defaults if values[name] != defaults[name]}
    if "api_key" in changed:
        changed["api_key"] = ["***"] * len(changed["api_key"])
    if "hf_token" in changed:
        changed["hf_token"] = "***"
    return changed
