"""Cyclic garbage of a service that runs for weeks."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

from libs.runtime.garbage import collect_rarely


class Frame:
    """Names itself, as an exception and its frame name each other."""

    def __init__(self) -> None:
        self.me = self


async def until(done: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if done():
            return
        await asyncio.sleep(0.001)


async def until_gone(what: weakref.ref[Frame], collections: list[float], most: int) -> int:
    """Collections until it was gone."""
    before = len(collections)
    await until(lambda: what() is None or len(collections) - before >= most)
    return len(collections) - before


async def test_what_names_itself_goes_although_the_collector_looks_at_old_objects_rarely() -> None:
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    collections: list[float] = []
    task = asyncio.create_task(collect_rarely(collections.append, every_s=0.001, all_every=5))
    try:
        await asyncio.sleep(0.01)
        assert gc.get_threshold()[2] > 10_000 and gc.get_freeze_count() > frozen
        young = Frame()
        gone = weakref.ref(young)
        del young
        assert await until_gone(gone, collections, 20) <= 2
        old = Frame()
        gone, kept_since = weakref.ref(old), len(collections)
        await until(lambda: len(collections) >= kept_since + 2)
        del old
        assert await until_gone(gone, collections, 20) <= 6, "set aside, and looked at with all others"
        assert gone() is None
        assert all(seconds > 0 for seconds in collections)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert gc.get_threshold() == thresholds and gc.get_freeze_count() <= frozen
