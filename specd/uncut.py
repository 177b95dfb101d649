"""Steps that a cancellation may delay but never cut: what they began on a host would otherwise end after we looked."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import structlog

from specd.errors import SpecdError

__all__ = ["end_task", "to_the_end", "to_the_end_in_thread"]

log = structlog.get_logger()

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


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end, whatever it is; our own cancellation meanwhile counts after that.

    Awaiting the task itself would not do: its cancellation and ours could not be told apart, and ours would be lost.
    """
    task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if not task.cancelled() and (fault := task.exception()) is not None and not isinstance(fault, SpecdError):
        log.warning("task.ended-with-fault", task=task.get_name(), error=repr(fault))
    if cancelled is not None:
        raise cancelled
