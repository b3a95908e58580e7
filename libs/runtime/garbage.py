"""Cyclic garbage without long pauses: a full collection looks at every object that lives, and holds the loop for it.

With tens of thousands of jobs in memory that is a tenth of a second and more, in which nobody is served. Almost all of
what a service drops is freed at once by reference counts; what is left, such as exceptions that name their own frames,
may wait. So the collector's own full collections are put off for good; every `EVERY_S` what was made since the last
time is looked at and then set aside (`gc.freeze`), and once in `ALL_EVERY` times everything is. Its small collections
are for fewer occasions too: by default every 700 objects that stay are looked at, and again with 7,000 others, which is
a tenth of a service's CPU where every pod that is seen stays.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Final, NoReturn

EVERY_S: Final = 120.0
ALL_EVERY: Final = 30
_NEVER: Final = 1_000_000
#: Objects more than before at which the youngest are looked at (half a millisecond), and how often that is done before
#: those that stayed are looked at once more.
_YOUNG: Final = 10_000
_TIMES: Final = 5


async def collect_rarely(
    seen: Callable[[float], None] = lambda _seconds: None, *, every_s: float = EVERY_S, all_every: int = ALL_EVERY
) -> NoReturn:
    """For ever, beside a service that has started. `seen` is told how long each collection held the loop, seconds."""
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG, _TIMES, _NEVER)
    times = 0
    try:
        while True:
            if times % all_every == 0:
                gc.unfreeze()
            times += 1
            began = time.perf_counter()
            gc.collect()
            gc.freeze()
            seen(time.perf_counter() - began)
            await asyncio.sleep(every_s)
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
