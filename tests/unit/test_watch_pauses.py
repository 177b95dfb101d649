"""Waiting for a change never swallows a cancellation, not even one that comes together with the change."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from specd.engines import by_name
from specd.watch import UnitWatch, WatchSource
from states.table import State


@pytest.fixture
def watch() -> UnitWatch:
    source = SimpleNamespace(engine=by_name("rehearsal"), history_s={})
    return UnitWatch(cast(WatchSource, source), "specd-x.service", "invocation", State.LOADING)


@pytest.mark.parametrize("change_first", [True, False])
async def test_a_change_and_a_cancellation_in_one_moment(watch: UnitWatch, change_first: bool) -> None:
    waiting = asyncio.create_task(watch.changed(timeout_s=30))
    await asyncio.sleep(0.01)
    if change_first:
        watch._changed.set()
    waiting.cancel()
    watch._changed.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_pause_ends_at_its_time(watch: UnitWatch) -> None:
    async with asyncio.timeout(5):
        await watch.changed(timeout_s=0.01)
