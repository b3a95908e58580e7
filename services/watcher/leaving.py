"""Readers are left behind in order: a member of a group tells the others, so that its partitions move at once."""

from __future__ import annotations

import asyncio
import inspect

import structlog

from libs.runtime.tasks import still_wanted

log = structlog.get_logger()


async def leave(reader: object, within_s: float = 3.0) -> None:
    """By `leave()` where the bus lives on beside us, else by `close()`; a reader with neither needs nothing."""
    way = getattr(reader, "leave", None) or getattr(reader, "close", None)
    if way is None:
        return
    try:
        async with asyncio.timeout(within_s):
            done = way()
            if inspect.isawaitable(done):
                await done
    except TimeoutError:
        log.warning("a reader did not close in time")
    still_wanted()
