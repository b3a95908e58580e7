"""The write pool: what is to be written next, with as many calls in flight as the window allows.

No write waits for a batch to fill: a write that is put in while the window has room is sent in the same turn of the
loop. Per object there is at most one write in flight and one waiting. A second write for the same claim joins the
first; one for another claim means that the first claim is closed (the ledger gives a task to one claim at a time), so
it takes its place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from services.binder.hand import Prepare, Write
from services.binder.window import Window

Item = Write | Prepare


class WritePool:
    def __init__(
        self,
        window: Window,
        serve: Callable[[Item], Awaitable[float | None]],
        superseded: Callable[[Write], None],
    ) -> None:
        """`serve` carries an item one or more steps on and returns None when it is done with it, or the seconds after
        which it must be put in again. Items that pause hold no place in the window."""
        self.window = window
        self._serve = serve
        self._superseded = superseded
        self._queue: deque[Item] = deque()
        self._waiting: dict[str, Write] = {}  # by task: not sent yet
        self._busy: dict[str, Write] = {}  # by task: in flight or pausing
        self._tasks: asyncio.TaskGroup | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._paused: set[asyncio.TimerHandle] = set()
        self.active = 0

    def run_in(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks

    @property
    def queued(self) -> int:
        return len(self._queue)

    def waiting(self) -> Iterable[Write]:
        """Writes that have not had their turn."""
        return self._waiting.values()

    def put(self, item: Item) -> None:
        if isinstance(item, Write) and not self._admit(item):
            return
        self._queue.append(item)
        self._one_more()

    def _admit(self, write: Write) -> bool:
        """Whether the write is to be queued now."""
        task = write.assignment.task
        waiting = self._waiting.get(task)
        busy = self._busy.get(task)
        for other in (waiting, busy):
            if other is not None and other.assignment.claim == write.assignment.claim:
                other.same.append(write)
                return False
        self._waiting[task] = write
        if waiting is not None:
            self._superseded(waiting)
            if busy is None:
                # The older one stands in the queue; its turn goes to the newer one (see `_next`).
                return False
        return busy is None

    def _next(self) -> Item | None:
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, Prepare):
                return item
            task = item.assignment.task
            if task in self._busy:
                if self._busy[task] is item:  # comes back from a pause
                    return item
                continue
            newest = self._waiting.pop(task, None)
            if newest is not None:
                self._busy[task] = newest
                return newest
        return None

    def _one_more(self) -> None:
        if self._tasks is not None and self._queue and self.active < self.window.size:
            self.active += 1
            worker = self._tasks.create_task(self._work(), name="write")
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        """Serve items until there are none, or the window has become smaller than the number of us. The window's floor
        keeps at least one of us while there is work."""
        try:
            while self.active <= self.window.size:
                item = self._next()
                if item is None:
                    return
                pause = await self._serve(item)
                if pause is None:
                    self._leave(item)
                else:
                    self._later(item, pause)
                self._one_more()
        finally:
            self.active -= 1

    def _leave(self, item: Item) -> None:
        if isinstance(item, Write):
            task = item.assignment.task
            self._busy.pop(task, None)
            behind = self._waiting.get(task)
            if behind is not None:
                self._queue.append(behind)

    def _later(self, item: Item, pause: float) -> None:
        def back() -> None:
            self._paused.discard(handle)
            self._queue.append(item)
            self._one_more()

        handle = asyncio.get_running_loop().call_later(pause, back)
        self._paused.add(handle)

    def close(self) -> list[asyncio.Task[None]]:
        """Give up whatever is left; returns the workers, to be ended. A write that is cut off is one whose effect is
        unknown: its claim stays in the ledger until its pod is read."""
        for handle in self._paused:
            handle.cancel()
        self._paused.clear()
        self._queue.clear()
        self._waiting.clear()
        self._busy.clear()
        return list(self._workers)
