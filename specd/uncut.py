"""Steps that a cancellation may delay but never cut: what they began on a host would otherwise end after we looked."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

__all__ = ["to_the_end", "to_the_end_in_thread"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def to_the_end(step: Coroutine[Any, Any, _T]) -> _T:
    """Await a step; when we are cancelled meanwhile, wait for its end and only then give way."""
    work = asyncio.ensure_future(step)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        if not work.cancelled():
            # Retrieved, so that a failure nobody waits for any more is not reported as lost.
            work.exception()
        raise


async def to_the_end_in_thread(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run a blocking function in a thread, which no cancellation can stop, and wait for its end in any case."""
    return await to_the_end(asyncio.to_thread(function, *args, **kwargs))
