"""Tasks that must not end, pauses that must not fall into step, writes that must not pass each other."""

import asyncio
import random

import pytest

from libs.runtime.backoff import Backoff
from libs.runtime.merge import MergeQueue, Put
from libs.runtime.phases import Phase, run_phases
from libs.runtime.tasks import (
    EndedTask,
    at_most,
    comes,
    ended,
    never_ends,
    run_until,
    still_wanted,
    waits_at,
)


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def test_an_eternal_task_that_returns_is_an_error() -> None:
    with pytest.raises(EndedTask, match="'pod watch'"):
        await never_ends(asyncio.sleep(0), "pod watch")


async def test_stop_ends_all_tasks_and_a_fault_ends_them_too() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, stop.set)
    await run_until(stop, {"a": _for_ever(), "b": _for_ever()})

    async def fails() -> None:
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        await run_until(asyncio.Event(), {"a": _for_ever(), "b": fails()})


async def test_a_cancellation_that_was_lost_in_a_library_does_not_hold_up_the_end() -> None:
    lost = 0

    async def swallows_two() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                lost += 1
                if lost > 2:
                    raise

    task = asyncio.create_task(swallows_two(), name="swallows")
    await asyncio.sleep(0)
    await ended([task], again_s=0.01)
    assert task.cancelled()
    assert lost == 3


def test_backoff_is_capped_jittered_and_never_overflows() -> None:
    backoff = Backoff(0.1, 5.0, random.Random(1))
    pauses = [backoff.next() for _ in range(2000)]
    assert max(pauses) <= 5.0
    assert len(set(pauses[100:])) > 1000
    backoff.reset()
    assert backoff.next() <= 0.1


async def test_five_changes_of_one_job_are_one_write_and_two_never_overtake() -> None:
    queue: MergeQueue[str, int] = MergeQueue(limit=2)
    assert queue.put("job", 1) is Put.QUEUED
    assert [queue.put("job", n) for n in range(2, 6)] == [Put.MERGED] * 4
    assert await queue.take(10) == [("job", 5)]
    assert queue.put("job", 6) is Put.QUEUED
    assert queue.take_ready(10) == []  # the first write is still under way
    queue.done("job")
    assert queue.take_ready(10) == [("job", 6)]
    queue.done("job")
    assert len(queue) == 0


async def test_a_full_merge_queue_says_so_and_waiting_takers_wake() -> None:
    queue: MergeQueue[str, int] = MergeQueue(limit=1, merge=lambda old, new: None if old == new else new)
    taking = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.put("a", 1)
    assert await taking == [("a", 1)]
    assert queue.put("b", 1) is Put.QUEUED
    assert queue.put("c", 1) is Put.FULL
    assert queue.put("b", 1) is Put.SKIPPED
    assert queue.put("c", 1) is Put.QUEUED


async def test_a_phase_over_budget_or_failing_keeps_no_later_one_from_running() -> None:
    done: list[str] = []

    async def fails() -> None:
        raise OSError("gone")

    async def closes() -> None:
        done.append("closed")

    results = await run_phases(
        [Phase("stop intake", 0.01, _for_ever), Phase("flush", 1, fails), Phase("close", 1, closes)]
    )
    assert [(r.name, r.fault) for r in results] == [
        ("stop intake", "over budget"),
        ("flush", "OSError('gone')"),
        ("close", ""),
    ]
    assert done == ["closed"]


async def test_a_task_tells_where_it_stands_down_to_what_it_awaits() -> None:
    never = asyncio.Event()

    async def inner() -> None:
        await never.wait()

    async def outer() -> None:
        await inner()

    task = asyncio.create_task(outer())
    await asyncio.sleep(0)
    assert [frame.f_code.co_name for frame in waits_at(task)][:3] == ["outer", "inner", "wait"]
    await ended([task])


async def test_a_cancellation_that_a_library_took_for_its_own_ends_the_task_at_the_next_call() -> None:
    went_on = False

    async def library() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return

    async def leads() -> None:
        nonlocal went_on
        await library()
        still_wanted()
        went_on = True

    task = asyncio.create_task(leads())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert not went_on
    still_wanted()  # nobody cancelled us


async def test_a_stop_that_takes_our_cancellation_for_its_own_tasks_holds_nobody_up() -> None:
    async def stop() -> None:
        for _ in range(3):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    assert not await at_most(stop(), 0.01, "stop")

    async def fails() -> None:
        raise OSError("gone")

    assert await at_most(fails(), 1.0, "stop"), "ended, whatever it said"
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        await ended([task], again_s=0.01)


async def test_an_event_comes_or_the_time_is_over() -> None:
    event = asyncio.Event()
    assert not await comes(event, 0.01)
    asyncio.get_running_loop().call_later(0.01, event.set)
    assert await comes(event, None)
