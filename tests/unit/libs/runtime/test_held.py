"""Who holds the event loop, so that nobody else of the service is served."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from libs.runtime import held


def works(seconds: float) -> None:
    """On the CPU, until so much of it was had."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def waits(seconds: float) -> None:
    time.sleep(seconds)


async def heard(seen: list[held.Held], of: str) -> held.Held:
    for _ in range(2_000):
        for one in seen:
            if any(of in where for where in one.at):
                return one
        await asyncio.sleep(0.005)
    raise AssertionError(f"nobody said {of}: {seen}")


@asynccontextmanager
async def watching(late_s: float = 0.05) -> AsyncIterator[list[held.Held]]:
    """What is told meanwhile."""
    seen: list[held.Held] = []
    task = asyncio.create_task(held.watch(seen.append, late_s=late_s, beat_s=0.005))
    await asyncio.sleep(0.02)
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_a_callback_that_works_for_long_is_named_with_the_cpu_that_it_took() -> None:
    async with watching() as seen:
        works(0.4)
        worked = await heard(seen, "works")
    assert worked.seconds >= 0.39
    assert worked.cpu_s >= 0.4
    assert worked.at[-1].endswith(" works"), "the innermost frame is the last"


async def test_a_callback_that_waits_is_named_too_and_shows_no_cpu() -> None:
    async with watching() as seen:
        waits(0.5)
        waited = await heard(seen, "waits")
    assert waited.seconds >= 0.49
    assert waited.cpu_s < 0.25


async def test_a_turn_is_told_once_and_the_thread_ends_with_the_watch() -> None:
    async with watching(late_s=0.2) as seen:
        works(0.4)
        await heard(seen, "works")
    assert len([one for one in seen if any("works" in where for where in one.at)]) == 1
    for _ in range(2_000):
        if "who holds the loop" not in {thread.name for thread in threading.enumerate()}:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("the thread goes on")
