"""Who holds the event loop, so that nobody else of the service is served."""

from __future__ import annotations

import asyncio
import threading
import time

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


async def test_a_callback_that_works_for_long_is_named_with_the_cpu_that_it_took() -> None:
    seen: list[held.Held] = []
    watching = asyncio.create_task(held.watch(seen.append, late_s=0.05, beat_s=0.005))
    try:
        await asyncio.sleep(0.02)
        works(0.4)
        worked = await heard(seen, "works")
        assert worked.seconds >= 0.39
        assert worked.cpu_s >= 0.4
        assert worked.at[-1].endswith(" works"), "the innermost frame is the last"
    finally:
        watching.cancel()
        await asyncio.wait({watching})


async def test_a_callback_that_waits_is_named_too_and_shows_no_cpu() -> None:
    seen: list[held.Held] = []
    watching = asyncio.create_task(held.watch(seen.append, late_s=0.05, beat_s=0.005))
    try:
        await asyncio.sleep(0.02)
        waits(0.5)
        waited = await heard(seen, "waits")
        assert waited.seconds >= 0.49
        assert waited.cpu_s < waited.seconds
    finally:
        watching.cancel()
        await asyncio.wait({watching})


async def test_a_turn_is_told_once_and_the_thread_ends_with_the_watch() -> None:
    seen: list[held.Held] = []
    watching = asyncio.create_task(held.watch(seen.append, late_s=0.2, beat_s=0.005))
    await asyncio.sleep(0.02)
    works(0.4)
    await heard(seen, "works")
    watching.cancel()
    await asyncio.wait({watching})
    assert len([one for one in seen if any("works" in where for where in one.at)]) == 1
    names = {thread.name for thread in threading.enumerate()}
    for _ in range(2_000):
        if "who holds the loop" not in names:
            return
        await asyncio.sleep(0.005)
        names = {thread.name for thread in threading.enumerate()}
    raise AssertionError("the thread goes on")
