"""Named, owned tasks. An eternal task that ends is a fault, never a silence.

Guarantees: nothing started here outlives the call that started it; a fault of one task ends its siblings and reaches
the caller; cancellation is passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Coroutine, Mapping
from types import FrameType
from typing import Any, NoReturn

import structlog

log = structlog.get_logger()


class EndedTask(Exception):
    """A task that was meant to run for ever returned."""


async def never_ends(coro: Awaitable[object], name: str) -> NoReturn:
    """Await `coro`; that it returns is an error."""
    await coro
    raise EndedTask(f"the task {name!r} returned although it was meant to run for ever")


async def ended(tasks: Collection[asyncio.Task[Any]], *, again_s: float = 0.5) -> None:
    """Cancel until all have ended; their faults are left to whoever owns them. Once is not enough: until Python 3.12 a
    cancellation that arrives together with the answer that `asyncio.wait_for` waits for is lost, and libraries under us
    use it. A task that then goes on for ever would hold up the end of the process."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=again_s)


async def at_most(work: Coroutine[Any, Any, object], seconds: float, name: str) -> bool:
    """Do `work` in a task of its own and wait so long for it; whether it ended in time, with its fault swallowed. What
    is late is cancelled and left alone: a library's `stop` may take the cancellation for its own task's and go on, so
    a time limit around awaiting it is none."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    return bool(done)


async def comes(event: asyncio.Event, within_s: float | None) -> bool:
    """Wait for the event, at most so long (None: however long); whether it is set."""
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


def waits_at(task: asyncio.Task[Any]) -> list[FrameType]:
    """Where a task stands, outermost frame first, down to what it awaits."""
    frames: list[FrameType] = []
    waits: Any = task.get_coro()
    while waits is not None and len(frames) < 30:
        frame = getattr(waits, "cr_frame", None) or getattr(waits, "gi_frame", None) or getattr(waits, "ag_frame", None)
        if frame is not None:
            frames.append(frame)
        waits = (
            getattr(waits, "cr_await", None) or getattr(waits, "gi_yieldfrom", None) or getattr(waits, "ag_await", None)
        )
    return frames


def still_wanted() -> None:
    """Raise the cancellation of the running task that was lost in what it awaited. Libraries under us await their own
    cancelled tasks and take our cancellation for theirs; a task that was asked to end would go on for ever, and a
    deposed leader would lead on. Called where we return from such a library."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def run_until(stop: asyncio.Event, tasks: Mapping[str, Coroutine[Any, Any, object]]) -> None:
    """Run eternal tasks, by name, until `stop` is set; then cancel them and return. A task that fails or returns ends
    the others, and its fault is raised (alone, not in a group, if it is the only one)."""
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(never_ends(coro, name), name=name) for name, coro in tasks.items()]
            await stop.wait()
            await ended(running)
    except BaseExceptionGroup as faults:
        if len(faults.exceptions) == 1:
            raise faults.exceptions[0] from None
        raise
