"""Cancellation that neither cuts a step in two nor gets lost."""

import asyncio
import contextlib

import pytest

from specd.uncut import end_task, to_the_end


async def test_a_step_is_finished_before_its_cancellation_counts() -> None:
    steps: list[str] = []

    async def step() -> None:
        steps.append("begun")
        await asyncio.sleep(0.05)
        steps.append("done")

    task = asyncio.create_task(to_the_end(step()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["begun", "done"]


async def test_our_own_cancellation_is_not_taken_for_that_of_the_task_we_end() -> None:
    release = asyncio.Event()
    after: list[str] = []

    async def stubborn() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await release.wait()

    async def owner(work: asyncio.Task[None]) -> None:
        await end_task(work)
        after.append("went on")

    work = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    ending = asyncio.create_task(owner(work))
    await asyncio.sleep(0.01)
    ending.cancel()
    await asyncio.sleep(0.01)
    assert not ending.done(), "the task's end was not waited for"
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert work.done()
    assert after == []


async def test_a_task_that_ended_by_itself_is_no_trouble() -> None:
    async def fails() -> None:
        raise ValueError("its own fault")

    task = asyncio.create_task(fails())
    await asyncio.wait({task})
    await end_task(task)
