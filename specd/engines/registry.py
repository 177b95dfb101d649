"""The engines there are, and which of them a unit's command line starts."""

from collections.abc import Sequence

from specd.engines.engine import Engine, ServerCommand
from specd.engines.llamacpp import LlamaCpp
from specd.engines.rehearsal import Rehearsal
from specd.engines.sglang import Sglang
from specd.engines.vllm.engine import Vllm
from specd.engines.wrappers import find_opaque
from specd.errors import EngineError

__all__ = ["ENGINES", "by_name", "recognise"]

# The rehearsal engine comes first: its archive may be called through names that mention another engine.
ENGINES: tuple[Engine, ...] = (Rehearsal(), Vllm(), Sglang(), LlamaCpp())


def by_name(name: str) -> Engine:
    """Return the engine of that name; raises EngineError."""
    for engine in ENGINES:
        if engine.name == name:
            return engine
    raise EngineError(f"there is no engine {name!r}; known: {', '.join(engine.name for engine in ENGINES)}")


def recognise(argv: Sequence[str]) -> tuple[Engine, ServerCommand] | None:
    """Find the engine and its command line in a unit's argv; None for a program that is no LLM server.

    Raises EngineError where a server is, or may be, hidden behind something that a change can't be carried through.
    """
    for engine in ENGINES:
        command = engine.recognise(argv)
        if command is not None:
            return engine, command
    opaque = find_opaque(argv)
    if opaque is not None:
        raise EngineError(
            f"what server is started through {opaque.what} can't be told from the unit",
            next_step=f"the change would have to go {opaque.instead}",
        )
    return None
