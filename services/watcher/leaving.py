"""Readers are left behind in order: a member of a group tells the others, so that its partitions move at once."""

from __future__ import annotations

import inspect

import structlog

from libs.runtime.tasks import at_most

log = structlog.get_logger()


async def leave(reader: object, within_s: float = 3.0) -> None:
    """By `leave()` where the bus lives on beside us, else by `close()`; a reader with neither needs nothing."""
    way = getattr(reader, "leave", None) or getattr(reader, "close", None)
    if way is None:
        return
    done = way()
    if inspect.iscoroutine(done) and not await at_most(done, within_s, "reader close"):
        log.warning("a reader did not close in time")
