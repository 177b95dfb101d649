"""vLLM's command line: where it stands in a unit's argv, what it asks for, and how to change it."""

import posixpath
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from specd.engines.change import changed_words, over_file, read_flags
from specd.engines.engine import NO_FILE_FLAGS, FileFlags, FlagValue, ServerCommand
from specd.engines.flags import FlagTable, Kind, canonical
from specd.engines.programs import Found, Programs, find_program, reachable_address
from specd.errors import EngineError

__all__ = ["FLAGS", "VLLM_PROGRAMS", "change", "config_file", "parse", "recognise", "speculation_asked"]

FLAGS = FlagTable.from_lines((resources.files(__package__) / "flags.jsonl").read_text(encoding="utf-8"))

_DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
_DEFAULT_PORT = 8000
_SERVER_MODULES = frozenset({"vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"})
_CLI_MODULES = frozenset({"vllm", "vllm.entrypoints.cli.main", "vllm.scripts"})
# Each shortcut and the key of the JSON flag that it stands for.
_SHORTCUTS = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}
_OLD_STYLE = {
    "speculative-model": "model",
    "num-speculative-tokens": "num_speculative_tokens",
    "ngram-prompt-lookup-max": "prompt_lookup_max",
    "ngram-prompt-lookup-min": "prompt_lookup_min",
}


def _executable(path: str, rest: Sequence[str]) -> int | None:
    if posixpath.basename(path) == "vllm":
        return 1 if tuple(rest[:1]) == ("serve",) else None
    return 0 if path.endswith("vllm/entrypoints/openai/api_server.py") else None


def _module(name: str, rest: Sequence[str]) -> int | None:
    if name in _SERVER_MODULES:
        return 0
    return 1 if name in _CLI_MODULES and tuple(rest[:1]) == ("serve",) else None


VLLM_PROGRAMS = Programs("vLLM", _executable, _module)


def recognise(argv: Sequence[str]) -> ServerCommand | None:
    """Find vLLM's server command in a unit's argv; see Engine.recognise."""
    found = find_program(argv, VLLM_PROGRAMS)
    return None if found is None else parse("vllm", argv, found)


def config_file(words: Sequence[str]) -> str | None:
    """Return the file of --config as the server finds it; None where it reads none."""
    places = [at for at, word in enumerate(words) if word == "--config"]
    return words[places[0] + 1] if places and places[0] + 1 < len(words) else None


def parse(engine: str, argv: Sequence[str], found: Found, file_flags: FileFlags = NO_FILE_FLAGS) -> ServerCommand:
    """Read the command line of a server that takes vLLM's flags; raises EngineError for one without a TCP port."""
    words = argv[found.server_at :]
    flags = {**file_flags.flags, **read_flags(FLAGS, words)}
    if "uds" in flags:
        raise EngineError(f"the server listens on the unix socket {flags['uds']}, not on a TCP port")
    positionals = FLAGS.positionals(words)
    model = words[positionals[0]] if positionals else str(flags.get("model", _DEFAULT_MODEL))
    served = flags.get("served-model-name")
    port = str(flags.get("port", _DEFAULT_PORT))
    if not port.isdigit():
        raise EngineError(f"--port {port} is no number")
    host = flags.get("host")
    return ServerCommand(
        engine=engine,
        server_at=found.server_at,
        flags=flags,
        model=model,
        served_name=str(served[0]) if isinstance(served, list) and served else model,
        address=reachable_address(host if isinstance(host, str) else ""),
        port=int(port),
        wrapper=found.launch.wrapper,
        file_flags=file_flags,
    )


def change(
    argv: Sequence[str], server_at: int, flags: Mapping[str, FlagValue], file_flags: FileFlags = NO_FILE_FLAGS
) -> tuple[str, ...]:
    """Return argv with vLLM flags changed; `model` is the positional word. See Engine.change."""
    words = list(argv[server_at:])
    wanted = over_file(FLAGS, words, flags, file_flags)
    by_name = {_name(name): name for name in wanted}
    if (model := by_name.get("model")) is not None and FLAGS.positionals(words):
        value = wanted.pop(model)
        if not isinstance(value, str) or value in {"", "null"}:
            raise EngineError("a server needs a model: `model` can be changed, not removed")
        words[FLAGS.positionals(words)[0]] = value
    _settle_shortcuts(words, wanted, by_name)
    return (*argv[:server_at], *changed_words(FLAGS, words, wanted))


def _name(spelling: str) -> str:
    head, dot, path = spelling.partition(".")
    return FLAGS.find(head).name + dot + path


def _settle_shortcuts(words: list[str], wanted: dict[str, FlagValue], by_name: Mapping[str, str]) -> None:
    """Keep --spec-* and --speculative-config from naming one key twice, which the engine refuses."""
    whole = by_name.get("speculative-config")
    named_keys = {path for head, _, path in (name.partition(".") for name in by_name) if head == "speculative-config"}
    for shortcut, key in _SHORTCUTS.items():
        spelled = by_name.get(shortcut)
        if spelled is None:
            if whole is not None or key in named_keys:
                # The JSON flag says all there is to say from now on.
                wanted.setdefault(shortcut, None)
            continue
        if wanted[spelled] in (None, "null"):
            continue
        if whole is not None and wanted[whole] not in (None, "null"):
            raise EngineError(f"--{shortcut} and --speculative-config can't be changed together: put {key} inside")
        present = read_flags(FLAGS, words).get("speculative-config")
        if whole is None and isinstance(present, dict) and key in present:
            raise EngineError(
                f"--{shortcut} conflicts with {key} inside --speculative-config",
                next_step=f"change speculative-config.{key} instead",
            )


def speculation_asked(command: ServerCommand) -> Mapping[str, Any]:
    """Return the speculation settings that a vLLM command line asks for, keys with underscores; {} for none."""
    asked: dict[str, Any] = {}
    for name, key in (*_OLD_STYLE.items(), *_SHORTCUTS.items()):
        if name in command.flags:
            value = command.flags[name]
            asked[key] = int(value) if isinstance(value, str) and value.isdigit() else value
    config = command.flags.get("speculative-config")
    if isinstance(config, dict):
        asked.update({key.replace("-", "_"): value for key, value in config.items()})
    elif isinstance(config, str) and config:
        asked["unreadable"] = config
    if asked and "method" not in asked and asked.get("model") in {"ngram", "[ngram]"}:
        asked["method"] = "ngram"
    return asked


def is_json(flag: str) -> bool:
    """True for a flag whose value is JSON."""
    return FLAGS.find(canonical(flag).partition(".")[0]).kind in {Kind.JSON, Kind.TEXT_OR_JSON}
