"""The engines there are, and which of them a unit's command line starts."""

from collections.abc import Sequence

from specd.engines.engine import Engine, ServerCommand
from specd.engines.llamacpp import LlamaCpp
from specd.engines.programs import find_program
from specd.engines.rehearsal import Rehearsal
from specd.engines.sglang import Sglang
from specd.engines.vllm.engine import Vllm
from specd.errors import EngineError

__all__ = ["ENGINES", "by_name", "recognise", "starts_server"]

# The rehearsal engine comes first: its archive may be called through names that mention another engine.
ENGINES: tuple[Engine, ...] = (Rehearsal(), Vllm(), Sglang(), LlamaCpp())


def by_name(name: str) -> Engine:
    """Return the engine of that name; raises EngineError."""
    for engine in ENGINES:
        if engine.name == name:
            return engine
    raise EngineError(f"there is no engine {name!r}; known: {', '.join(engine.name for engine in ENGINES)}")


def recognise(argv: Sequence[str]) -> tuple[Engine, ServerCommand] | None:
    """Find the engine and its command line in an opened command line; None for a program that is no LLM server."""
    for engine in ENGINES:
        command = engine.recognise(argv)
        if command is not None:
            return engine, command
    return None


def starts_server(argv: Sequence[str]) -> bool:
    """True for the command line of a server, whatever its flags say."""
    return any(find_program(argv, engine.programs) is not None for engine in ENGINES)
