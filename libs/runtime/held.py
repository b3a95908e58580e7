"""Who holds the event loop: while one callback runs, nobody else of the service is served.

A beat on the loop says when it last turned; a thread beside it looks whether the beat is late and, if so, takes the
stack of the loop's thread, which a measurement on the loop itself cannot: by then the culprit has returned. CPU time
tells a callback that works from a process that did not get the machine: held for 0.2 s with 0.01 s of CPU, the cause is
a neighbour. A callback that waits for a file or a name holds the loop without CPU as well; its stack shows that.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from traceback import StackSummary, walk_stack
from typing import Final, NoReturn

BEAT_S: Final = 0.05
#: Held for so long and more is told.
LATE_S: Final = 0.1
#: Innermost frames that are told.
_FRAMES: Final = 12


@dataclass(frozen=True, slots=True)
class Held:
    """`seconds` the loop did not turn (a beat less at most), in which the process had `cpu_s` of CPU; `at`: the stack
    when it was seen to be late, innermost frame last."""

    seconds: float
    cpu_s: float
    at: tuple[str, ...]


async def watch(seen: Callable[[Held], None], *, late_s: float = LATE_S, beat_s: float = BEAT_S) -> NoReturn:
    """For ever. `seen` is called on the loop's thread, after the loop has turned again."""
    loop = asyncio.get_running_loop()
    beat = _Beat(threading.get_ident(), late_s, beat_s)
    ended = threading.Event()
    watcher = threading.Thread(target=_look, args=(beat, ended, beat_s), name="who holds the loop", daemon=True)
    watcher.start()
    try:
        while True:
            await asyncio.sleep(beat_s)
            held = beat.turned()
            if held is not None:
                loop.call_soon(seen, held)
    finally:
        ended.set()


class _Beat:
    """Written by the loop, read by the thread. A lock orders them: a stack belongs to the turn it was taken in."""

    def __init__(self, thread: int, late_s: float, beat_s: float) -> None:
        self._thread = thread
        self._late_s = late_s
        self._beat_s = beat_s
        self._lock = threading.Lock()
        self._at, self._cpu = time.monotonic(), time.process_time()
        self._stack: tuple[str, ...] = ()

    def turned(self) -> Held | None:
        """The loop turned; what it was held for since the last time, if that was long."""
        with self._lock:
            now, cpu = time.monotonic(), time.process_time()
            seconds, spent, stack = now - self._at - self._beat_s, cpu - self._cpu, self._stack
            self._at, self._cpu, self._stack = now, cpu, ()
        return Held(seconds, spent, stack) if seconds >= self._late_s else None

    def look(self) -> None:
        """From the other thread: if the loop is late, remember where it stands, once in a turn."""
        with self._lock:
            if self._stack or time.monotonic() - self._at - self._beat_s < self._late_s:
                return
            frame = sys._current_frames().get(self._thread)
            if frame is not None:
                stack = StackSummary.extract(walk_stack(frame), limit=_FRAMES, lookup_lines=False)
                self._stack = tuple(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(stack))


def _look(beat: _Beat, ended: threading.Event, every_s: float) -> None:
    while not ended.wait(every_s):
        beat.look()
