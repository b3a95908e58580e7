"""A loop whose time leaps: whenever nothing can run, it is at once as late as the next timer says.

So a test of services with leases of seconds and claims of ten takes milliseconds, and what happens first is decided by
their timers and never by the machine's load. Nothing here waits for real files or sockets.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Generator
from contextvars import Context, ContextVar
from typing import Any, Final, TypeVar

T = TypeVar("T")

#: Whose process a task belongs to: what a task starts belongs to the same.
PROCESS: ContextVar[str] = ContextVar("process", default="")

#: Where wall clocks of such a loop begin, seconds since the epoch.
EPOCH: Final = 1_800_000_000.0


class Standstill(Exception):
    """Nothing is left that could ever happen: no timer, nothing to run."""


class _Leaping(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise Standstill
            self.now += max(timeout, 0.0)
        return ready


class LeapingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leaping = _Leaping()
        super().__init__(self._leaping)
        # Timers that are due at the same moment by their numbers are due together, whatever floats make of them.
        self._clock_resolution = 1e-6
        self._processes: dict[asyncio.Task[Any], str] = {}
        self.set_task_factory(self._task)

    def _task(
        self, _loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, T] | Generator[Any, None, T], **named: Any
    ) -> asyncio.Task[T]:
        context: Context | None = named.get("context")
        process = context.get(PROCESS, "") if context is not None else PROCESS.get()
        task = asyncio.Task(coro, loop=self, **named)
        if process:
            self._processes[task] = process
            task.add_done_callback(lambda done: self._processes.pop(done, None))
        return task

    def tasks_of(self, process: str) -> list[asyncio.Task[Any]]:
        return [task for task, name in self._processes.items() if name == process]

    def time(self) -> float:
        return self._leaping.now


class LoopClock:
    """The `Clock` of services that run in such a loop; `offset_s` sets this host's wall clock apart from others'."""

    def __init__(self, offset_s: float = 0.0) -> None:
        self.offset_s = offset_s

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return EPOCH + self.offset_s + self.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def time(self) -> float:
        """As `time.time`, for what reads that module."""
        return self.wall()


def run_leaping(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        return runner.run(work)
